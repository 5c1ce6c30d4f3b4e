"""Whole servers: start-up and memory, and 32 streaming clients, ours beside llama-server on the same weights."""
import time

from peers import engine, setup
from peers.common import Servers, Skip, free_port, get, in_turn, json_lines, memory_mib, must, nice, stop

PROMPT, NEW, CLIENTS, REQUESTS = 132, 48, 32, 64
CONTEXT = 4096


def quantization(name):
    """Our arguments for weights by engine_bench's name."""
    if name == "none":
        return []
    return ["--quantization", name] if name.startswith("w8a8") else ["--torchao-config", name]


def start_ours(ctx, servers, folder, weights, tokens=4 * CONTEXT):
    return servers.ours(ctx, "prefill-server", "--model-path", folder, *quantization(weights), "--max-total-tokens", tokens)


def start_llama(ctx, servers, model, slots, port):
    mask = sum(1 << cpu for cpu in ctx.cpus)
    threads = len(ctx.cpus)
    return servers.start([setup.llama(ctx) / "llama-server", "-m", model, "-t", threads, "-tb", threads, "-C", hex(mask),
                          "--cpu-strict", "1", "-c", CONTEXT if slots <= 4 else 4 * CONTEXT, "-np", slots,
                          "--host", "127.0.0.1", "--port", port, "--no-webui"], ctx.cpus)


def first_token(port):
    status, answer = get(port, "/v1/completions", {"model": "default", "prompt": "hello there", "max_tokens": 1,
                                                   "temperature": 0})
    if status != 200:
        raise Skip(f"no first token: {status} {answer[:200]!r}")


def settled_memory_mib(pid, seconds=10.0):
    """MiB resident once it has stopped growing: a server may go on making room for weights after its first answer."""
    deadline = time.monotonic() + seconds
    now, steady = memory_mib(pid), 0
    while steady < 5 and time.monotonic() < deadline:
        time.sleep(0.1)
        before, now = now, memory_mib(pid)
        steady = steady + 1 if now <= before else 0
    return now


def started(start):
    """(seconds from process start to the first token, MiB resident soon after) of one server."""
    with Servers() as servers:
        begin = time.monotonic()
        process, port = start(servers)
        port = servers.ready(process, port=port)
        first_token(port)
        seconds = time.monotonic() - begin
        return seconds, settled_memory_mib(process.pid)


def start_up(ctx):
    """Process start to first token and resident memory, warm page cache, bf16 and 8 bit; ours and the peer in turn."""
    folder = setup.checkpoint(ctx, engine.DENSE)
    for (label, mine, theirs, _), wants in ((engine.BF16, (3.0, 1.25)), (engine.BIT8, (None, None))):
        if not ctx.wants(f"server {label} process start to first token") and not ctx.wants(f"server {label} resident memory"):
            continue
        reason, ours, peer = None, [], []

        def llama(servers, theirs=theirs):
            port = free_port()
            return start_llama(ctx, servers, setup.gguf(ctx, engine.DENSE, theirs), 4, port), port

        def mine_once(servers, mine=mine):
            return start_ours(ctx, servers, folder, mine, CONTEXT), None

        for turn in range(max(3, ctx.rounds)):
            for who in in_turn(turn, mine_once, llama):
                try:
                    if who is mine_once:
                        ours.append(started(mine_once))
                    elif reason is None:
                        peer.append(started(llama))
                except Skip as why:
                    if who is mine_once:
                        raise
                    reason = str(why)
        for i, (what, unit) in enumerate((("process start to first token", "s"), ("resident memory", "MiB"))):
            ctx.turns(f"server {label} {what}", [r[i] for r in ours], [r[i] for r in peer], unit, peer="llama-server",
                      want=wants[i], note=reason)


def load(ctx, port, backend="sglang-oai", clients=CLIENTS, requests=REQUESTS, extra=()):
    """What our load client says of a server under so many streaming clients."""
    output = must([*nice(), ctx.build / "serve", "--backend", backend, "--base-url", f"http://127.0.0.1:{port}",
                   "--num-prompts", requests, "--random-input-len", PROMPT, "--random-output-len", NEW,
                   "--random-range-ratio", 1, "--max-concurrency", clients, "--warmup-requests", 4, "--seed", 7,
                   "--output-file", "/dev/stdout", *extra], "serve", timeout=400)
    rows = json_lines(output)
    if not rows or rows[-1]["failed"]:
        raise Skip(f"{rows[-1]['failed'] if rows else 'all'} requests failed")
    return rows[-1]


def streaming(ctx):
    """32 streaming clients on both servers, one after the other; each is alone on the machine while it is measured."""
    names = (f"server {CLIENTS} clients", f"server {CLIENTS} clients p99 inter-token")
    if not any(ctx.wants(n) for n in names):
        return
    label, mine, theirs, _ = engine.BIT8
    folder = setup.checkpoint(ctx, engine.DENSE)
    runs = {"ours": [], "llama-server": []}
    reason = None
    for turn in range(ctx.rounds):
        for name in in_turn(turn, "ours", "llama-server"):
            if name != "ours" and reason:
                continue
            try:
                with Servers() as servers:
                    if name == "ours":
                        process, port = start_ours(ctx, servers, folder, mine), None
                    else:
                        port = free_port()
                        process = start_llama(ctx, servers, setup.gguf(ctx, engine.DENSE, theirs), CLIENTS, port)
                    port = servers.ready(process, port=port)
                    result = load(ctx, port)
                    stop(process)
                runs[name].append(result)
                ctx.details.append({"peer": name, "load": names[0], "weights": label, **result})
            except Skip as why:
                if name == "ours":
                    raise
                reason = str(why)
    for name, key, unit, want, note in (
            (f"{names[0]} output", "output_throughput", "tokens/s", 2.9, f"{label}, {PROMPT}-token prompts, {NEW} new"),
            (names[1], "p99_itl_ms", "ms", 20, None),
            (f"{names[0]} median time to first token", "median_ttft_ms", "ms", None, None)):
        ctx.turns(name, [r[key] for r in runs["ours"]], [r[key] for r in runs["llama-server"]], unit, peer="llama-server",
                  want=want, note=reason or note)


def measure(ctx):
    for part in (streaming, start_up):
        try:
            part(ctx)
        except Skip as why:
            ctx.skip(f"server {part.__name__}", str(why))
