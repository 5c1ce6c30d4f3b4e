"""The router beside sglang-router, nginx and HAProxy: ours before workers that speak its protocol, they before HTTP ones."""
from peers import setup
from peers.common import Skip, nice, run_lines

# Ours, sglang-router's, target in microseconds.
POLICIES = [("round_robin", "round_robin", 18), ("least_load", "power_of_two", 18), ("power_of_two", "power_of_two", 18),
            ("cache_aware", "cache_aware", 25)]
KINDS = {"ids": "cpu_per_request_ids", "text": "cpu_per_request_text"}


def requests_of_peers(ctx, python):
    """{(router, connections): row} of CPU time per request, and {router: row} of what they say at the start."""
    for program, package in (("wrk", "wrk"), ("nginx", "nginx-light"), ("haproxy", "haproxy")):
        setup.debian(program, package)
    rows, why = run_lines([*nice(), python, ctx.shared / "e_router.py", "--dur", "2", "--reps", "1", "--conns", "1,8,32"],
                          {"BENCH_VENV": str(python.parent.parent), "PATH": setup.path()}, timeout=400)
    if not rows:
        raise Skip(why or "e_router.py printed nothing")
    ctx.details += rows
    loads = {(r["router"], r["conns"]): r for r in rows if "cpu_us_per_req" in r}
    return loads, {r["router"]: r for r in rows if "idle_rss_MiB" in r}


def streams_of_peers(ctx, python):
    """{(router, connections): row} of relayed streams."""
    rows, why = run_lines([*nice(), "bash", ctx.shared / "e_sse.sh"],
                          {"BENCH_VENV": str(python.parent.parent), "PATH": setup.path(), "DUR": "2", "CONNS": "1 16"},
                          timeout=300)
    if not rows:
        raise Skip(why or "e_sse.sh printed nothing")
    ctx.details += rows
    return {(r["router"], r["conns"]): r for r in rows}


def references(rows, key, connections):
    """"nginx 12.1, haproxy 11.0" of that many connections, for the note."""
    return ", ".join(f"{router} {row[key]}" for (router, conns), row in rows.items()
                     if conns == connections and router in ("nginx-proxy", "haproxy")) or None


def measure(ctx):
    rows, why = run_lines([*nice(), ctx.build / "router_bench"], timeout=400)
    if why and not rows:
        raise Skip(why)
    ctx.details += rows
    mine = {(r["row"], r["policy"], r["connections"]): r["value"] for r in rows}
    loads, idle, relayed, reason = {}, {}, {}, None
    try:
        python = setup.venv(ctx, ["sglang-router", "uvloop"])
        loads, idle = requests_of_peers(ctx, python)
        relayed = streams_of_peers(ctx, python)
    except Skip as skipped:
        reason = f"peers skipped: {skipped}"
    for ours, theirs, target in POLICIES:
        peer = f"sglang-router/{theirs}"
        found = [(kind, c) for kind, row in KINDS.items() for c in (8, 32) if (row, ours, c) in mine]
        if not found and ours != "power_of_two":
            ctx.skip(f"router {ours} CPU per request", "the policy is not built")
        for kind, connections in found:
            # The peers parse text that they do not tokenize; ours does for text.
            row = loads.get((peer, connections), {})
            ctx.row(f"router {ours} CPU per request, {kind}, {connections} connections",
                    mine[KINDS[kind], ours, connections], "us", peer=peer if row else None,
                    peer_value=row.get("cpu_us_per_req"), target=target if kind == "ids" else None,
                    note=references(loads, "cpu_us_per_req", connections) or reason)
    latency(ctx, mine, loads, reason)
    memory(ctx, mine, loads, idle, reason)
    streams(ctx, mine, relayed, reason)


def latency(ctx, mine, loads, reason):
    value = mine.get(("added_p50", "round_robin", 1))
    if value is None:
        return
    direct = loads.get(("direct", 1), {}).get("p50_us")
    peer = loads.get(("sglang-router/round_robin", 1), {}).get("p50_us")
    added = peer - direct if peer and direct else None
    ctx.row("router added p50, 1 connection", value, "us", target=20, peer="sglang-router" if added else None,
            peer_value=added, note=reason)


def memory(ctx, mine, loads, idle, reason):
    peer = idle.get("sglang-router/round_robin", {}).get("idle_rss_MiB")
    loaded = loads.get(("sglang-router/round_robin", 32), {}).get("rss_MiB")
    for name, key, target, value in (("idle", ("rss_idle", "round_robin", 0), 20, peer),
                                     ("loaded", ("rss_loaded", "round_robin", 128), 40, loaded)):
        if key in mine:
            ctx.row(f"router resident memory, {name}", mine[key], "MiB", target=target,
                    peer="sglang-router" if value else None, peer_value=value, note=reason)


def streams(ctx, mine, relayed, reason):
    peer = relayed.get(("sglang-router", 16), {})
    value = mine.get(("cpu_per_token_fast", "round_robin", 32))
    if value is not None:
        ctx.row("router relay CPU per token", value, "us/token", target=1.5, peer="sglang-router" if peer else None,
                peer_value=peer.get("cpu_us_per_token"), note=references(relayed, "cpu_us_per_token", 16) or reason)
    rate, one = mine.get(("stream_rate_fast", "round_robin", 1)), relayed.get(("sglang-router", 1), {})
    if rate is not None:
        ctx.row("router one stream's rate", rate, "tokens/s", peer="sglang-router" if one else None,
                peer_value=one.get("tokens_s"), want=10, note=reason)
