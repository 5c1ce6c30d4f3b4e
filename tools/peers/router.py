"""The router beside sglang-router, nginx and HAProxy: ours before workers that speak its protocol, they before HTTP ones.

Ours and they take turns, one run of two seconds for each load; router_bench takes the best of three for the added latency alone.
A figure is the median of the turns, a ratio the median of their own ratios.
"""
import dataclasses
import math
import os

from peers import setup
from peers.common import Skip, median, number, pinned, run_lines, spoiled, take_turns

SECONDS, PACED_SECONDS, PACE_MS = 2, 3, 1
# Of an answer: what e_sse.py sends unless it is told otherwise.
STREAM_TOKENS = 512
# Ours and sglang-router's by the same name; target in microseconds, and how many times less that is than the peer's where
# PEERS.md was measured: machines differ in speed.
POLICIES = [("round_robin", 18, 4.8), ("power_of_two", 18, 4.8), ("cache_aware", 25, 4.5)]
ADDED_WANT = 4


@dataclasses.dataclass
class Row:
    """A row of the table: what router_bench calls our figure, and what the peers' script calls theirs."""
    name: str
    ours: tuple     # row, policy, connections
    unit: str
    peer: str
    key: str
    connections: int
    target: float | None = None
    want: float | None = None
    added: bool = False         # to what it takes without a router
    limit: tuple | None = None  # what router_bench calls the bound, like ours
    one_cpu: bool = False       # all of the processes share one processor
    references: bool = False    # nginx and HAProxy go into the note
    remark: str | None = None

    def of_peer(self, name):
        """Where a turn of the peers has the figure of that one."""
        return name, self.connections, self.key + (" one_cpu" if self.one_cpu else "")


def rows():
    made = []
    for policy, target, want in POLICIES:
        for kind in ("ids", "text"):
            # The peers get text of that length, too, which they parse and ours tokenizes.
            made += [Row(f"router {policy} CPU per request, {kind}, {connections} connections",
                         (f"cpu_per_request_{kind}", policy, connections), "us", f"sglang-router/{policy}", "cpu_us_per_req",
                         connections, target=target, want=want, references=True) for connections in (8, 32)]
    # Wakes on the other processor are most of it (docs/benchmarks.md); on one processor there are none.
    for where, suffix, target, want, remark in (
            ("", "", 20, ADDED_WANT, "; both have several values, as threads happen to be placed"),
            (", one processor", "_one_cpu", None, None, "")):
        made.append(Row(f"router added p50, 1 connection{where}", (f"added_p50{suffix}", "round_robin", 1), "us",
                        "sglang-router/round_robin", "p50_us", 1, target=target, want=want, added=True, one_cpu=bool(suffix),
                        limit=(f"relay_p50{suffix}", "round_robin", 1), references=True,
                        remark=f"limit: a relay that looks at nothing{remark}"))
    for state, policy, connections, of_peer, key, target in (
            ("idle", "round_robin", 0, 0, "idle_rss_MiB", 20), ("loaded", "round_robin", 128, 32, "rss_MiB", 40),
            ("loaded", "cache_aware", 128, 32, "rss_MiB", 40)):
        made.append(Row(f"router resident memory, {state}" + ("" if policy == "round_robin" else f", {policy}"),
                        (f"rss_{state}", policy, connections), "MiB", f"sglang-router/{policy}", key, of_peer, target=target,
                        remark=f"{connections} connections, the peer's {of_peer}" if connections else None))
    # A write for each token is the kernel's time for the most part: no target.
    for pace, target, remark in (("fast", 1.5, None), ("paced", None, f"a token each {PACE_MS} ms, each a write of its own")):
        made += [Row(f"router relay CPU per token, {pace}, {streams} stream{'s' if streams > 1 else ''}",
                     (f"cpu_per_token_{pace}", "round_robin", streams), "us/token", "sglang-router",
                     f"cpu_us_per_token {pace}", streams, target=target, references=True, remark=remark)
                 for streams in (1, 32)]
    made.append(Row("router one stream's rate", ("stream_rate_fast", "round_robin", 1), "tokens/s", "sglang-router",
                    "tokens_s fast", 1, want=10))
    return made


@dataclasses.dataclass
class Ours:
    """One turn of ours by (row, policy, connections): the figures, and why the others have none."""
    figures: dict
    errors: dict

    def __contains__(self, key):
        return key in self.figures


def ours(ctx, wanted):
    # What all the wanted ones have in common; the program leaves out what does not contain it.
    only = os.path.commonprefix([row.ours[0] for row in wanted])
    found, why = run_lines([*pinned(ctx.cpus), ctx.build / "router_bench", "--seconds", SECONDS, "--reps", 1, "--only", only],
                           timeout=400)
    if why and not found:
        raise Skip(why)
    ctx.details += found
    key = lambda r: (r["row"], r["policy"], r["connections"])
    found = [r for r in found if {"row", "policy", "connections"} <= r.keys()]
    errors = {key(r): spoiled(r) for r in found if spoiled(r)}
    figures = {key(r): r["value"] for r in found if not spoiled(r) and r.get("value") is not None}
    # What a program that has failed left out is not what this machine cannot do.
    absent = {row.ours for row in wanted if row.ours not in figures and row.ours not in errors} if why else ()
    return Ours(figures, errors | dict.fromkeys(absent, why))


def requests_of_peers(ctx, python, one_cpu):
    """One turn of the peers with whole answers, {(router, connections, key): figure}; on the last processor alone, where
    router_bench measures the same, only what one connection takes."""
    for program, package in (("wrk", "wrk"), ("nginx", "nginx-light"), ("haproxy", "haproxy")):
        setup.debian(program, package)
    cpus, connections, keys = ((ctx.cpus[-1:], "1", ("p50_us",)) if one_cpu else
                               (ctx.cpus, "1,8,32", ("cpu_us_per_req", "p50_us", "rss_MiB", "idle_rss_MiB")))
    printed, why = run_lines([*pinned(cpus), python, setup.script(ctx, "e_router.py"), "--dur", SECONDS, "--reps", 1, "--conns",
                              connections], {"BENCH_VENV": str(python.parent.parent), "PATH": setup.path()}, timeout=400)
    if not printed:
        raise Skip(why or "e_router.py printed nothing")
    ctx.details += [{"one_cpu": True, **row} for row in printed] if one_cpu else printed
    return {(r["router"], r.get("conns", 0), key + (" one_cpu" if one_cpu else "")): r[key]
            for r in printed for key in keys if key in r}


def of_whole_answers(row, seconds):
    """CPU time per token of a line of e_sse.sh. It divides by the tokens of `seconds`, but the streams then in progress go
    on to their end, and so does the router's work: with paced ones up to an answer's time more."""
    if not row["tokens_s"]:
        return None
    answer = row["conns"] * STREAM_TOKENS / row["tokens_s"]
    return row["cpu_us_per_token"] * seconds / (answer * math.ceil(seconds / answer))


def streams_of_peers(ctx, python, pace):
    """One turn of the peers with streams, as fast as they are taken or paced, {(router, connections, key): figure}."""
    seconds = PACED_SECONDS if pace == "paced" else SECONDS
    variables = {"BENCH_VENV": str(python.parent.parent), "PATH": setup.path(), "DUR": str(seconds), "CONNS": "1 32",
                 "TOK": str(STREAM_TOKENS), "PACE_MS": str(PACE_MS if pace == "paced" else 0)}
    printed, why = run_lines([*pinned(ctx.cpus), "bash", setup.script(ctx, "e_sse.sh")], variables, timeout=300)
    if not printed:
        raise Skip(why or "e_sse.sh printed nothing")
    ctx.details += [{"pace": pace, **row} for row in printed]
    found = {}
    for row in printed:
        found[row["router"], row["conns"], f"cpu_us_per_token {pace}"] = of_whole_answers(row, seconds)
        found[row["router"], row["conns"], f"tokens_s {pace}"] = row["tokens_s"]
    return found


def theirs(ctx, wanted):
    """(One turn of the peers, why something of it is not there or None)."""
    keys, found, reasons = [row.key for row in wanted], {}, []
    try:
        setup.script(ctx, "e_router.py")
        python = setup.venv(ctx, ["sglang-router", "uvloop"])
    except Skip as why:
        return {}, str(why)
    # With a single processor everything is on it as it is.
    placements = (False, True) if len(ctx.cpus) > 1 else (False,)
    runs = [lambda one_cpu=one_cpu: requests_of_peers(ctx, python, one_cpu) for one_cpu in placements
            if any("token" not in row.key and row.one_cpu == one_cpu for row in wanted)]
    runs += [lambda pace=pace: streams_of_peers(ctx, python, pace) for pace in ("fast", "paced")
             if any(key.endswith(pace) for key in keys)]
    for run in runs:
        try:
            found |= run()
        except Skip as why:
            reasons.append(str(why))
    return found, "; ".join(reasons) or None


def peer_figure(row, turn, name):
    """What one of the peers did in a turn, less what it takes without a router where that is asked; None if not there."""
    value = turn.get(row.of_peer(name))
    if value is None or not row.added:
        return value
    direct = turn.get(row.of_peer("direct"))
    return value - direct if direct else None


def references(row, peers):
    """"nginx-proxy 12.1, haproxy 11.0" of as many connections, for the note."""
    if not row.references:
        return None
    found = {name: [figure for turn in peers if (figure := peer_figure(row, turn, name))] for name in ("nginx-proxy", "haproxy")}
    return ", ".join(f"{name} {number(median(values))}" for name, values in found.items() if values)


def limit_of(row, turns):
    """The bound beside ours as ctx.turns() takes it: its median, and the median of the turns' own shares."""
    found = [(turn.figures[row.limit], turn.figures[row.ours]) for turn in turns if row.limit in turn and row.ours in turn]
    limit = median([limit for limit, _ in found])
    # Differences of two medians, which noise may have made negative: then they bound nothing.
    shares = [limit / value for limit, value in found if min(limit, value) > 0]
    return {"limit": limit, "share": median(shares)} if limit and limit > 0 and shares else {}


def why_no_figure(row, mine):
    """None where every turn of ours gave one. A figure of the turns that went well would be the best of them."""
    reasons = [turn.errors.get(row.ours, "router_bench printed no such figure in one of the turns")
               for turn in mine if row.ours not in turn]
    return max(reasons, key=reasons.count, default=None)


def measure(ctx):
    wanted = [row for row in rows() if ctx.wants(row.name)]
    if not wanted:
        return
    reasons = []

    def peers_once():
        # What went wrong before takes its time again and gives no figure.
        if reasons:
            return {}
        found, why = theirs(ctx, wanted)
        reasons.extend([why] if why else [])
        return found

    turns = take_turns(ctx.rounds, lambda: ours(ctx, wanted), peers_once)
    for row in wanted:
        error = turns.error or why_no_figure(row, turns.mine)
        if not turns.error and not any(row.ours in turn or row.ours in turn.errors for turn in turns.mine):
            ctx.skip(row.name, "router_bench printed no such figure")
            continue
        values = [turn.figures[row.ours] for turn in turns.mine if row.ours in turn]
        figures = [peer_figure(row, turn, row.peer) for turn in turns.theirs]
        missing = f"peers skipped: {reasons[0]}" if reasons and (None in figures or len(figures) < ctx.rounds) else None
        ctx.turns(row.name, values, figures, row.unit, peer=row.peer, want=row.want, target=row.target, error=error,
                  **limit_of(row, turns.mine),
                  note="; ".join(filter(None, [references(row, turns.theirs), row.remark, missing])) or None)
