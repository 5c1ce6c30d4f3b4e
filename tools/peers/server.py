"""Whole servers: start-up and memory, and 32 streaming clients, ours beside llama-server on the same weights."""
import time

from peers import engine, setup
from peers.common import (Servers, Skip, failed_requests, free_port, get, json_lines, memory_mib, must, pinned, stop,
                          take_turns)

PROMPT, NEW, CLIENTS, REQUESTS = 132, 48, 32, 64
WARM_REQUESTS, WARM_SEED, SEED = 4, 3, 7
CONTEXT = 4096


def quantization(name):
    """Our arguments for weights by engine_bench's name."""
    if name == "none":
        return []
    return ["--quantization", name] if name.startswith("w8a8") else ["--torchao-config", name]


def start_ours(ctx, servers, weights, kind, tokens=4 * CONTEXT):
    return servers.ours(ctx, "prefill-server", *weights.for_server(), *quantization(kind), "--max-total-tokens", tokens)


def start_llama(ctx, servers, kind, slots, port):
    model = setup.gguf(ctx, engine.DENSE, kind)
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
    weights = setup.weights(ctx, engine.DENSE)
    for kind, wants in ((engine.BF16, (3.0, 1.25)), (engine.BIT8, (None, None))):
        label, mine, theirs = kind.name, kind.ours, kind.llama
        figures = [row for row in zip((0, 1), ("process start to first token", "resident memory"), ("s", "MiB"), wants)
                   if ctx.wants(f"server {label} {row[1]}")]
        if not figures:
            continue
        if weights.why_dummy:
            # Weights that are made at start are neither read nor mapped.
            for _, what, _, _ in figures:
                ctx.skip(f"server {label} {what}", weights.why_dummy)
            continue

        def llama(servers, theirs=theirs):
            port = free_port()
            return start_llama(ctx, servers, theirs, 4, port), port

        def ours(servers, mine=mine):
            return start_ours(ctx, servers, weights, mine, CONTEXT), None

        found = take_turns(max(3, ctx.rounds), lambda start=ours: started(start), lambda start=llama: started(start))
        for i, what, unit, want in figures:
            ctx.turns(f"server {label} {what}", [r[i] for r in found.mine], [r[i] for r in found.theirs], unit,
                      peer="llama-server", want=want, note=found.reason, error=found.error)


def client(ctx, port, backend, requests, prompt, new, *more):
    """The words of our load client. It warms nothing up with a request that is measured: a cache would know that."""
    return [*pinned(ctx.places.clients), ctx.build / "serve", "--backend", backend, "--base-url",
            f"http://127.0.0.1:{port}", "--num-prompts", requests, "--random-input-len", prompt, "--random-output-len", new,
            "--random-range-ratio", 1, "--warmup-requests", 0, "--output-file", "/dev/stdout", *more]


def load(ctx, port, backend="sglang-oai", clients=CLIENTS, requests=REQUESTS, extra=()):
    """What our load client says of a server under so many streaming clients."""
    for count, seed in ((WARM_REQUESTS, WARM_SEED), (requests, SEED)):
        output = must(client(ctx, port, backend, count, PROMPT, NEW, "--max-concurrency", clients, "--seed", seed, *extra),
                      "serve", timeout=400)
    rows = json_lines(output)
    if not rows or rows[-1]["failed"]:
        raise Skip(failed_requests(rows[-1]["failed"] if rows else "all"))
    return rows[-1]


def streaming(ctx):
    """32 streaming clients on both servers, one after the other; each is alone on the machine while it is measured."""
    names = [f"server {CLIENTS} clients {what}" for what in ("output", "p99 inter-token", "median time to first token")]
    if not any(ctx.wants(n) for n in names):
        return
    label, mine, theirs = engine.BIT8.name, engine.BIT8.ours, engine.BIT8.llama
    weights = setup.weights(ctx, engine.DENSE)

    def loaded(name, start):
        with Servers() as servers:
            process, port = start(servers)
            result = load(ctx, servers.ready(process, port=port))
            stop(process)
        ctx.details.append({"peer": name, "load": f"{CLIENTS} clients", "weights": label, **result})
        return result

    def llama(servers):
        port = free_port()
        return start_llama(ctx, servers, theirs, CLIENTS, port), port

    found = take_turns(ctx.rounds, lambda: loaded("ours", lambda servers: (start_ours(ctx, servers, weights, mine), None)),
                       lambda: loaded("llama-server", llama))
    notes = [f"{label}, {PROMPT}-token prompts, {NEW} new", weights.note, found.reason]
    for name, key, unit, want in zip(names, ("output_throughput", "p99_itl_ms", "median_ttft_ms"), ("tokens/s", "ms", "ms"),
                                     (2.9, 20, None)):
        ctx.turns(name, [r[key] for r in found.mine], [r[key] for r in found.theirs], unit, peer="llama-server", want=want,
                  note="; ".join(filter(None, notes)), error=found.error)


def measure(ctx):
    for part in (streaming, start_up):
        part(ctx)
