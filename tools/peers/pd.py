"""Prefill and decode apart against one server for both, on the same two cores; the one is the other's peer."""
import subprocess
import time

from peers import engine, server, setup
from peers.common import Servers, Skip, end_group, end_with_parent, failed_requests, in_turn, json_lines, median, take_turns

LONG, TTFT_PROMPT = 2048, 512
STREAMS, STREAM_PROMPT, STREAM_NEW = 8, 128, 300
# Enough of them that stalled tokens are more than one in a hundred.
LONG_PROMPTS, LONG_PER_S = 6, 0.5
POOL = 32768


class Fleet:
    """A router and its workers: prefill and decode apart, or one worker for both."""

    def __init__(self, ctx, servers, weights, kind, apart, own_cores):
        self.ctx = ctx
        common = [*weights.for_server(), *server.quantization(kind), "--max-total-tokens", POOL]
        if apart:
            cpus = ([ctx.cpus[:1], ctx.cpus[-1:]] if own_cores else [ctx.cpus, ctx.cpus])
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
        words = server.client(self.ctx, self.port, "sglang", requests, prompt, new, *more)
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
        raise Skip(failed_requests(rows[-1]["failed"] if rows else "all"))
    return rows[-1]


def under_long_prompts(ctx, weights, apart):
    """Inter-token times of running streams while long prompts come, which want one token each."""
    with Servers() as servers:
        fleet = Fleet(ctx, servers, weights, engine.BIT8.ours, apart, own_cores=True)
        fleet.run(STREAM_PROMPT, 8, STREAMS, "--seed", 3)
        streams = fleet.client(STREAM_PROMPT, STREAM_NEW, STREAMS, "--seed", 5)
        try:
            # Until they all stream; the long ones then come at the same times in either mode.
            time.sleep(2)
            beside = finish(fleet.client(LONG, 1, LONG_PROMPTS, "--request-rate", LONG_PER_S, "--seed", 9))
        finally:
            result = finish(streams)
    ctx.details.append({"pd": apart, "load": "streams beside long prompts", "streams": result, "long": beside})
    return result


def inter_token(ctx, name, weights):
    found = take_turns(ctx.rounds, lambda: under_long_prompts(ctx, weights, True),
                       lambda: under_long_prompts(ctx, weights, False))
    of = lambda runs, key: [r[key] for r in runs]
    words = [f"{what} {median(of(found.mine, key)):,.1f}, unified {median(of(found.theirs, key)):,.1f} ms"
             for what, key in (("median", "median_itl_ms"), ("longest", "max_itl_ms")) if found.mine and found.theirs]
    ctx.turns(name, of(found.mine, "p99_itl_ms"), of(found.theirs, "p99_itl_ms"), "ms", peer="unified, same cores", want=2.0,
              unfair=ctx.places.shared, error=found.error,
              note="; ".join(filter(None, [*words, weights.note, found.reason])) or None)


def settle(fleets):
    """Waits until workers have done what they leave for times without requests: it would be beside what is measured."""
    for fleet in fleets:
        for worker in fleet.processes:
            server.settled_memory_mib(worker.pid)


def first_token(ctx, name, weights):
    runs = {True: [], False: []}
    with Servers() as servers:
        fleets = {apart: Fleet(ctx, servers, weights, engine.BF16.ours, apart, own_cores=False) for apart in (True, False)}
        for fleet in fleets.values():
            fleet.run(TTFT_PROMPT, 3, 1, "--seed", 3)
        for turn in range(2 * ctx.rounds):
            for apart in in_turn(turn, True, False):
                settle(fleets.values())
                # New prompts each time, so that no cache knows them.
                runs[apart].append(fleets[apart].run(TTFT_PROMPT, 3, 4, "--max-concurrency", 1, "--seed", 100 + turn))
    ttft = {apart: [r["median_ttft_ms"] for r in results] for apart, results in runs.items()}
    ctx.details.append({"load": name, "apart": ttft[True], "unified": ttft[False]})
    ctx.turns(name, ttft[True], ttft[False], "ms", peer="unified", target=1.03 * median(ttft[False]) + 1,
              unfair=ctx.places.shared, note=weights.note)


def second_token(ctx, name, weights):
    """The hand-off of a long prompt, which lies between its first and its second token, and one decode step."""
    gaps = {}
    for apart in (True, False):
        with Servers() as servers:
            fleet = Fleet(ctx, servers, weights, engine.BF16.ours, apart, own_cores=True)
            # New prompts, for which the decode worker has memory that nobody has used.
            gaps[apart] = [fleet.run(LONG, 2, 1, "--seed", 200 + turn)["median_itl_ms"] for turn in range(2 * ctx.rounds)]
    ctx.details.append({"load": name, "apart": gaps[True], "unified": gaps[False]})
    ctx.row(name, median(gaps[True]), "ms", peer="unified: a decode step", peer_value=median(gaps[False]),
            unfair=ctx.places.shared, note=weights.note)


ROWS = {f"pd p99 inter-token of {STREAMS} streams while {LONG}-token prompts arrive": inter_token,
        f"pd time to first token, {TTFT_PROMPT}-token prompt, idle": first_token,
        f"pd first to second token, {LONG}-token prompt, idle": second_token}


def measure(ctx):
    weights = setup.weights(ctx, engine.DENSE)
    for name, part in ROWS.items():
        if not ctx.wants(name):
            continue
        try:
            part(ctx, name, weights)
        except Skip as why:
            # Both sides are ours.
            ctx.row(name, None, "ms", error=str(why))
