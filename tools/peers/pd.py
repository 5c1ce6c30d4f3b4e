"""Prefill and decode apart against one server for both, on the same two cores; the one is the other's peer."""
import json
import subprocess
import time

from peers import engine, server, setup
from peers.common import Servers, Skip, end_group, end_with_parent, in_turn, json_lines, median, nice

LONG, TTFT_PROMPT = 2048, 512
STREAMS, STREAM_PROMPT, STREAM_NEW = 8, 128, 300
# Enough of them that stalled tokens are more than one in a hundred.
LONG_PROMPTS, LONG_PER_S = 6, 0.5
POOL = 32768


class Fleet:
    """A router and its workers: prefill and decode apart, or one worker for both."""

    def __init__(self, ctx, servers, folder, weights, apart, own_cores):
        self.ctx = ctx
        common = ["--model-path", folder, *server.quantization(weights), "--max-total-tokens", POOL]
        if apart:
            cpus = ([ctx.cpus[:1], ctx.cpus[1:]] if own_cores else [ctx.cpus, ctx.cpus])
            workers = [servers.ours(ctx, f"{mode}-server", *common, "--disaggregation-mode", mode, cpus=cores)
                       for mode, cores in zip(("prefill", "decode"), cpus)]
        else:
            workers = [servers.ours(ctx, "prefill-server", *common)]
        urls = [f"http://127.0.0.1:{servers.ready(w)}" for w in workers]
        words = ["--worker-urls", *urls]
        if apart:
            words = ["--pd-disaggregation", "--prefill", urls[0], workers[0].ports["bootstrap_port"], "--decode", urls[1]]
        self.port = servers.ready(servers.ours(ctx, "router", *words))
        self.processes = workers

    def client(self, prompt, new, requests, *more):
        """The load client, started; its figures are finish()'s."""
        words = [*nice(), self.ctx.build / "serve", "--backend", "sglang", "--base-url",
                 f"http://127.0.0.1:{self.port}", "--num-prompts", requests, "--random-input-len", prompt,
                 "--random-output-len", new, "--random-range-ratio", 1, "--output-file", "/dev/stdout", *more]
        return subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                start_new_session=True, preexec_fn=end_with_parent)

    def run(self, *arguments):
        return finish(self.client(*arguments))


def finish(client, seconds=300):
    try:
        rows = json_lines(client.communicate(timeout=seconds)[0])
    except subprocess.TimeoutExpired as error:
        raise Skip(f"the load took longer than {seconds} s") from error
    finally:
        end_group(client)
    if not rows or rows[-1]["failed"]:
        raise Skip(f"{rows[-1]['failed'] if rows else 'all'} requests failed")
    return rows[-1]


def under_long_prompts(ctx, folder, apart):
    """Inter-token times of running streams while long prompts come, which want one token each."""
    with Servers() as servers:
        fleet = Fleet(ctx, servers, folder, engine.BIT8[1], apart, own_cores=True)
        fleet.run(STREAM_PROMPT, 8, STREAMS, "--seed", 3, "--warmup-requests", 0)
        streams = fleet.client(STREAM_PROMPT, STREAM_NEW, STREAMS, "--seed", 5, "--warmup-requests", 0)
        try:
            # Until they all stream; the long ones then come at the same times in either mode.
            time.sleep(2)
            long = fleet.client(LONG, 1, LONG_PROMPTS, "--request-rate", LONG_PER_S, "--seed", 9, "--warmup-requests", 0)
            beside = finish(long)
        finally:
            result = finish(streams)
    ctx.details.append({"pd": apart, "load": "streams beside long prompts", "streams": result, "long": beside})
    return result


def inter_token(ctx):
    name = f"pd p99 inter-token of {STREAMS} streams while {LONG}-token prompts arrive"
    if not ctx.wants(name):
        return
    folder = setup.checkpoint(ctx, engine.DENSE)
    apart, unified = [], []
    for turn in range(ctx.rounds):
        for is_apart in in_turn(turn, True, False):
            (apart if is_apart else unified).append(under_long_prompts(ctx, folder, is_apart))
    p99 = lambda runs: [r["p99_itl_ms"] for r in runs]
    ctx.turns(name, p99(apart), p99(unified), "ms", peer="unified, same cores", want=2.0,
              note=f"median {median([r['median_itl_ms'] for r in apart]):.1f}, unified "
                   f"{median([r['median_itl_ms'] for r in unified]):.1f} ms; longest "
                   f"{median([r['max_itl_ms'] for r in apart]):,.0f} and {median([r['max_itl_ms'] for r in unified]):,.0f} ms")


def settle(fleets):
    """Waits until workers have done what they leave for times without requests: it would be beside what is measured."""
    for fleet in fleets:
        for worker in fleet.processes:
            server.settled_memory_mib(worker.pid)


def first_token(ctx):
    name = f"pd time to first token, {TTFT_PROMPT}-token prompt, idle"
    if not ctx.wants(name):
        return
    folder = setup.checkpoint(ctx, engine.DENSE)
    runs = {True: [], False: []}
    with Servers() as servers:
        fleets = {apart: Fleet(ctx, servers, folder, engine.BF16[1], apart, own_cores=False) for apart in (True, False)}
        for turn in range(2 * ctx.rounds):
            for apart in in_turn(turn, True, False):
                settle(fleets.values())
                # New prompts each time, so that no cache knows them.
                runs[apart].append(fleets[apart].run(TTFT_PROMPT, 3, 4, "--max-concurrency", 1, "--seed", 100 + turn))
    ttft = {apart: [r["median_ttft_ms"] for r in results] for apart, results in runs.items()}
    ctx.details.append({"load": name, "apart": ttft[True], "unified": ttft[False]})
    ctx.turns(name, ttft[True], ttft[False], "ms", peer="unified", target=1.03 * median(ttft[False]) + 1)


def second_token(ctx):
    """The hand-off of a long prompt, which lies between its first and its second token, and one decode step."""
    name = f"pd first to second token, {LONG}-token prompt, idle"
    if not ctx.wants(name):
        return
    folder = setup.checkpoint(ctx, engine.DENSE)
    gaps = {}
    for apart in (True, False):
        with Servers() as servers:
            fleet = Fleet(ctx, servers, folder, engine.BF16[1], apart, own_cores=True)
            # New prompts, for which the decode worker has memory that nobody has used.
            gaps[apart] = [fleet.run(LONG, 2, 1, "--warmup-requests", 0, "--seed", 200 + turn)["median_itl_ms"]
                           for turn in range(2 * ctx.rounds)]
    ctx.details.append({"load": name, "apart": gaps[True], "unified": gaps[False]})
    ctx.row(name, median(gaps[True]), "ms", peer="unified: a decode step", peer_value=median(gaps[False]))


def measure(ctx):
    for part in (inter_token, first_token, second_token):
        try:
            part(ctx)
        except (Skip, json.JSONDecodeError) as why:
            ctx.skip(f"pd {part.__name__}", str(why))
