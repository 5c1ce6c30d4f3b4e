"""./dev bench: the table, the JSON and what is said of peers that are not here."""
import importlib
import json
import subprocess
import sys

import pytest
from conftest import ROOT, SLOW

PROGRAM = """#!/bin/sh
echo '{"bench":"x","row":"cost","policy":"p","connections":8,"value":20,"unit":"us","target":10}'
echo '{"bench":"x","row":"rate","value":300,"unit":"MB/s","target":200}'
echo 'not a line of figures'
echo '{"bench":"linear","family":"f","dtype":"bf16","shape":"s","gb_s":9.0,"limit":"read_gb_s","limit_value":10.0,"fraction":0.9}'
"""


def bench(tmp_path, *words, shared="none"):
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "bench.py"), "--build", str(tmp_path / "bench"), *words],
                          capture_output=True, text=True, timeout=60 * SLOW,
                          env={"PATH": "/usr/bin:/bin", "TANDEM_SHARED_DIR": str(tmp_path / shared),
                               "TANDEM_BENCH_DIR": str(tmp_path / "work")})
    return done


def program(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def test_ratios_and_failures(tmp_path):
    for name, text in (("x_bench", PROGRAM), ("y_bench", "#!/bin/sh\necho broken >&2\nexit 3\n"),
                       ("serve", "#!/bin/sh\nexit 1\n")):
        program(tmp_path / "bench", name, text)
    done = bench(tmp_path, "x_")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["machine"].keys() >= {"cpu", "threads", "flags", "kernel", "commit", "cpus", "cpus_are", "client_cpus",
                                        "caches", "transparent_hugepage", "hypervisor"}
    assert report["rounds"] == 2 and report["peers"] == {}
    ratios = {row["figure"]: row["ratio"] for row in report["ratios"]}
    # Of microseconds less is better, of a rate more.
    assert ratios == {"x cost p 8": 0.5, "x rate": 1.5, "linear f bf16 s": 0.9}
    assert "x cost p 8" in done.stdout

    done = bench(tmp_path, "--peers")
    assert done.returncode == 1 and "broken" in done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["failed"] == {"y_bench": "broken"}
    rows = [row for part in report["parts"].values() for row in part["rows"]]
    assert [row["row"] for row in rows] == ["engine", "server", "pd", "router", "tokenizer", "transfer"]
    assert all(row["skipped"].endswith("is not built") for row in rows)
    assert "engine" in done.stdout and "skipped: engine_bench is not built" in done.stdout

    assert bench(tmp_path, "nothing-like-it").returncode == 2


def test_a_figure_with_failed_requests_in_it_is_none(tmp_path):
    program(tmp_path / "bench", "x_bench", """#!/bin/sh
echo '{"bench":"x","row":"cost","value":20,"unit":"us","target":40,"errors":3}'
echo '{"bench":"x","row":"none","value":null,"unit":"us","target":40,"error":"events are missing"}'
echo '{"bench":"x","row":"rate","value":300,"unit":"MB/s","target":200,"errors":0}'
""")
    done = bench(tmp_path)
    assert done.returncode == 1 and "x_bench: 3 requests failed" in done.stderr
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["failed"] == {"x_bench": "3 requests failed"}
    assert [row["figure"] for row in report["ratios"]] == ["x rate"]
    assert "20.000" not in done.stdout


def test_without_shared_ours_is_measured_and_every_program_runs(tmp_path):
    program(tmp_path / "bench", "tokenizer_bench", """#!/bin/sh
echo '{"bench":"tokenizer","row":"encode_2kB","value":30,"unit":"MB/s","tokens":1}'
""")
    done = bench(tmp_path, "tokenizer", "--peers", "--rounds", "1")
    report = json.loads((tmp_path / "bench.json").read_text())
    rows = {row["row"]: row for row in report["parts"]["tokenizer"]["rows"]}
    row = rows["tokenizer demo vocabulary encode_2kB / tiktoken"]
    assert (row["value"], row["met"], row["why_unjudged"]) == (30, None, "tiktoken is missing")
    assert "f_tokenizer.py of ../shared/bench is not here" in row["note"]
    # As without --peers.
    assert [line["row"] for line in report["rows"]] == ["encode_2kB"]
    # A figure that is not there is a failure of ours, whoever is missing beside it.
    assert done.returncode == 1 and report["failed"].keys() >= {"tokenizer demo vocabulary stream_decode / tiktoken"}


def test_bench_sets_up_what_building_needs(tmp_path):
    """On a fresh machine `./dev bench` is the first command."""
    (tmp_path / "dev").write_text((ROOT / "dev").read_text())
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "install_deps.sh").write_text('echo "setup $*" >>log\n')
    (tmp_path / "tools" / "bench.py").write_text('print("bench", file=open("log", "a"))\n')
    program(tmp_path / "bin", "cmake", '#!/bin/sh\necho build >>log\n')
    subprocess.run(["bash", str(tmp_path / "dev"), "bench"], check=True, timeout=60,
                   env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "setup --group build --no-python" and lines[-1] == "bench" and "build" in lines[1:-1]


def printed(peers, ctx, capsys):
    """The lines of the table by the row's name, and the line below it."""
    capsys.readouterr()
    peers.common.table(ctx.rows)
    lines = capsys.readouterr().out.splitlines()
    return {row["row"]: next((line, *lines[i + 1:i + 2]) for i, line in enumerate(lines) if line.startswith(row["row"] + " "))
            for row in ctx.rows}


def test_a_row_says_which_of_the_two_it_misses(peers, capsys):
    ctx = peers.context(1)
    for name, share, ratio, missing in (
            ("row-a", 0.95, 1.6, ()), ("row-b", 0.8, 1.6, ()), ("row-c", 0.92, 1.4, ()), ("row-d", 0.8, 1.4, ()),
            ("row-e", 0.95, None, ["p"]), ("row-f", 0.8, None, ["p"]), ("row-g", 0.95, 1.6, ["q", "r"])):
        ctx.row(name, 100, "tokens/s", limit=100 / share, limit_want=0.9, peer="p", peer_value=ratio and 100 / ratio, want=1.5,
                missing=missing)
    ctx.row("row-h", 2.0, "us/token", target=1.5)
    ctx.row("row-i", 100, "tokens/s", peer="p", want=1.5, missing=["p"])
    ctx.row("row-j", 100, "tokens/s", missing=["p"])
    ctx.row("row-k", 100, "tokens/s", limit=50, limit_want=0.9, peer="p", peer_value=900, want=1.5, unfair="one processor")
    ctx.row("row-l", 1.0, "us/token", limit=9.0, peer="p", peer_value=9.0, want=1.5, target=1.5, error="3 requests failed")
    ctx.row("row-m", 100, "tokens/s", unfair="one processor")
    ctx.row("row-n", 2.0, "us/token", peer="p", peer_value=9.0, want=4, target=1.5)
    for name, share, ratio in (("row-o", 0.95, 1.4), ("row-p", 0.8, 1.1)):
        ctx.row(name, 2.0, "ms", limit=2.0 * share, limit_want=0.9, peer="p", peer_value=2.0 * ratio, want=1.5)
    lines = printed(peers, ctx, capsys)
    for name, mark, met in (("row-a", "met", True), ("row-b", "MISSED share", False), ("row-c", "MISSED ratio", False),
                            ("row-d", "MISSED both", False), ("row-e", "share met, ratio not judged (p is missing)", None),
                            ("row-f", "MISSED share, ratio not judged (p is missing)", False),
                            ("row-g", "share met, ratio not judged (q and r are missing)", None),
                            ("row-h", "MISSED target", False), ("row-i", "ratio not judged (p is missing)", None),
                            ("row-j", "", None), ("row-k", "share and ratio not judged (one processor)", None),
                            ("row-l", "no figure, not judged (3 requests failed)", None), ("row-m", " not judged (one processor)", None),
                            ("row-n", "4.00 <=1.500 MISSED target, ratio met", False),
                            ("row-o", "MISSED ratio, the limit is 1.47x", False),
                            ("row-p", "MISSED both, the limit is 1.38x", False)):
        made = next(row for row in ctx.rows if row["row"] == name)
        assert made["met"] is met, name
        assert lines[name][0].rstrip().endswith(mark), lines[name]
    assert "met" not in lines["row-i"][0] and "judged" not in lines["row-j"][0]
    by_name = {row["row"]: row for row in ctx.rows}
    assert by_name["row-g"]["ratio"] == pytest.approx(1.6), "is shown all the same"
    assert by_name["row-l"]["value"] is by_name["row-l"]["ratio"] is by_name["row-l"]["share_of_limit"] is None


def test_all_ratios_are_in_one_list(peers):
    ctx = peers.context(1)
    ctx.row("both", 50, "tokens/s", limit=100, limit_want=0.9, peer="p", peer_value=25, want=1.5)
    ctx.row("target", 2.0, "us/token", target=1.5)
    ctx.row("nothing", 2.0, "us/token")
    ctx.skip("skipped", "why")
    report = {"rows": [{"bench": "x", "row": "rate", "value": 300, "unit": "MB/s", "target": 200},
                       {"bench": "x", "other": 3}], "parts": {"engine": {"rows": ctx.rows}}}
    made = importlib.import_module("bench").ratios(report)
    assert [(r["figure"], r["against"], r["against_value"], r["ratio"], r["wanted"]) for r in made] == [
        ("x rate", "limit or target", 200, 1.5, None), ("both", "limit", 100, 0.5, 0.9), ("both", "p", 25, 2.0, 1.5),
        ("target", "target", 1.5, 0.75, 1.0)]


def engine_lines(ms, share, ops):
    rows = [{"bench": "limits", "family": "f"},
            {"bench": "engine", "row": "m", "value": 1e3 / ms, "target": 100, "share_of_bound": share, "ms": ms}]
    rows += [{"bench": "engine", "row": f"m: {name}", "value": each, "calls": 2, "share_of_step": each / ms,
              "share_of_bound": 0.5} for name, each in ops.items()]
    return "\n".join(map(json.dumps, rows))


def test_engine_rows_show_the_ops_of_the_fastest_step(peers, monkeypatch, capsys):
    steps = [engine_lines(20, 0.5, {"attention": 12, "norm": 8}),
             engine_lines(10, 0.9, {"a": 1.0, "b": 3.5, "gated linear 6144x1024": 4.0, "c": 0.5, "d": 0.4, "e": 0.3}),
             engine_lines(16, 0.6, {"attention": 15})]
    monkeypatch.setattr(peers.engine, "must", lambda *_, **__: steps.pop(0))
    ctx = peers.context(3)
    ours = peers.engine.Ours(ctx, peers.setup.Weights("folder"), "none")
    ours.steps, ours.limit = [(0.1, [])], [9.9]  # of a row that has failed
    row = peers.engine.Contestant("engine row", ours, {"decode:128:1": (0.7, None)})
    peers.engine.compare(ctx, "decode:128:1", [row], peers.engine.Peers([], {}), "a remark")
    assert ctx.rows[0]["share_of_limit"] == 0.625 and ctx.rows[0]["missed"] == ["share"]
    line, below = printed(peers, ctx, capsys)["engine row decode 1 stream, context 128"]
    assert line.endswith("(a remark)")
    assert below == ("    gated linear 6144x1024 4.000 ms, 40 % of the step at 50 % of its bound; b 3.500 ms, 35 % at 50 %; "
                     "a 1.000 ms, 10 % at 50 %; c 0.500 ms, 5 % at 50 %; d 0.400 ms, 4 % at 50 %")


def test_the_first_run_of_a_shape_is_not_in_openvinos_figure(peers):
    peer = object.__new__(peers.engine.OpenVino)
    peer.ctx, peer.warm, asked = peers.context(1), set(), []

    def ask(question):
        first = question.split()[:3] not in [q.split()[:3] for q in asked]
        asked.append(question)
        return {"tok_s": 1 if first else 900}

    peer.ask = ask
    for load in ("prefill:2048", "prefill:512", "decode:128:1", "decode:2048:1", "decode:128:32"):
        asked.clear()
        assert peer.measure(load) == 900, load
        assert len(asked) == peers.engine.RUNS + 1
        asked[:] = asked[-1:]
        assert peer.measure(load) == 900
        assert len(asked) == peers.engine.RUNS + 1, "warm already"


class RouterRuns:
    """What the programs of the router's part print: a little more in every turn, ours and theirs apart."""

    def __init__(self):
        self.order, self.words = [], []

    def __call__(self, words, env=None, timeout=0):
        words = [str(word) for word in words]
        what = next(each for each in ("router_bench", "e_router.py", "e_sse.sh") if any(each in word for word in words))
        turn = self.order.count(what)
        if what == "e_sse.sh":
            pace = float(env["PACE_MS"])
            what += " paced" if pace else " fast"
            turn = self.order.count(what)
            self.order.append(what)
            # 32 paced streams of 512 tokens in 2 s each: a run of 3 s lasts 4 s.
            rate = {1: 256 if pace else 10000, 32: 8192 if pace else 300000}
            return [{"router": name, "conns": c, "tokens_s": rate[c], "cpu_us_per_token": cost + turn}
                    for name, cost in (("direct", 1), ("haproxy", 1.25), ("sglang-router", 4)) for c in (1, 32)], None
        self.words.append(words)
        if words[-2:] == ["--conns", "1"]:
            self.order.append("e_router.py, one processor")
            assert words[words.index("taskset") + 2].isdigit()
            return [{"router": name, "conns": 1, "p50_us": p50}
                    for name, p50 in (("direct", 15), ("haproxy", 22), ("sglang-router/round_robin", 75))], None
        self.order.append(what)
        if what == "e_router.py":
            rows = [{"router": "sglang-router/round_robin", "idle_rss_MiB": 90.0}]
            return rows + [{"router": name, "conns": c, "cpu_us_per_req": cost * (1 + turn), "p50_us": p50, "rss_MiB": 100.0}
                           for name, cost, p50 in (("direct", 1, 20), ("nginx-proxy", 12, 30),
                                                   ("sglang-router/round_robin", 80, 100)) for c in (1, 8, 32)], None
        ours = {"cpu_per_request_ids": (8, 10.0), "cpu_per_request_text": (8, 20.0 * (1 + turn)), "added_p50": (1, 40.0),
                # In the last turn the bound is noise.
                "relay_p50": (1, [10.0, 30.0, -5.0][turn]), "added_p50_one_cpu": (1, 40.0), "relay_p50_one_cpu": (1, 8.0),
                "rss_idle": (0, 10.0), "cpu_per_token_fast": (32, 1.0), "cpu_per_token_paced": (32, 2.0),
                "stream_rate_fast": (1, 90000.0)}
        return [{"row": row, "policy": "round_robin", "connections": c, "value": value} for row, (c, value) in ours.items()], None


def test_router_and_peers_take_turns(peers, monkeypatch, capsys):
    runs = RouterRuns()
    monkeypatch.setattr(peers.router, "run_lines", runs)
    ctx = peers.context(3)
    peers.router.measure(ctx)
    theirs = ["e_router.py", "e_router.py, one processor", "e_sse.sh fast", "e_sse.sh paced"]
    assert runs.order == ["router_bench", *theirs, *theirs, "router_bench", "router_bench", *theirs]
    rows = {row["row"]: row for row in ctx.rows}
    # 20, 40, 60 beside 80, 160, 240: medians of the figures, and of 4, 4, 4.
    text = rows["router round_robin CPU per request, text, 8 connections"]
    assert (text["value"], text["peer_value"], text["ratio"]) == (40, 160, 4)
    assert text["missed"] == ["ratio", "target"] and "nginx-proxy 24.0" in text["note"]
    assert rows["router round_robin CPU per request, ids, 8 connections"]["met"]
    added = rows["router added p50, 1 connection"]
    assert (added["peer_value"], added["limit"], added["share_of_limit"]) == (80, 10, 0.5)
    assert added["missed"] == ["ratio", "target"] and "nginx-proxy 10.0;" in added["note"]
    added = rows["router added p50, 1 connection, one processor"]
    assert (added["peer_value"], added["limit"], added["share_of_limit"], added["ratio"]) == (60, 8, 0.2, 1.5)
    assert added["met"] is None and "haproxy 7.000;" in added["note"]
    paced = rows["router relay CPU per token, paced, 32 streams"]
    # 4, 5, 6 us over 3 of 4 seconds.
    assert paced["peer_value"] == pytest.approx(3.75) and paced["missed"] == []
    assert rows["router relay CPU per token, fast, 32 streams"]["peer_value"] == pytest.approx(5, rel=0.05)
    assert rows["router one stream's rate"]["ratio"] == 9
    assert rows["router cache_aware CPU per request, ids, 8 connections"]["skipped"]
    assert "MISSED both" in printed(peers, ctx, capsys)["router round_robin CPU per request, text, 8 connections"][0]

    # Rows that were asked for alone: what they do not need does not run.
    runs.order.clear()
    ctx = peers.context(1, "router relay CPU per token, paced")
    peers.router.measure(ctx)
    assert runs.order == ["router_bench", "e_sse.sh paced"]
    assert runs.words[-1][-2:] == ["--only", "cpu_per_token_paced"]

    runs.order.clear()
    ctx = peers.context(1, "router added p50, 1 connection, one")
    peers.router.measure(ctx)
    assert runs.order == ["router_bench", "e_router.py, one processor"]
    assert runs.words[-2][-2:] == ["--only", "added_p50_one_cpu"]

    # Without the peers, rows with targets are judged and the others say that they are not.
    def nothing(*_):
        raise peers.common.Skip("no index")
    monkeypatch.setattr(peers.setup, "venv", nothing)
    ctx = peers.context(2, "router one stream's rate")
    peers.router.measure(ctx)
    assert ctx.rows[0]["unjudged"] == ["ratio"] and ctx.rows[0]["note"] == "peers skipped: no index"


def test_transfer_and_ucx_take_turns(peers, monkeypatch):
    order = []

    def ours(*_):
        order.append("ours")
        return {"gb_per_s_median": 6.0 + 2 * order.count("ours"), "memcpy_gb_per_s": 16.0, "transports": "tcp"}

    def perftest(ctx, net, tls, test, size, *_):
        order.append(test)
        # tag_bw is better in one turn; the other one in two.
        return {"tag_bw": [9, 3, 3], "ucp_am_bw": [4, 5, 6]}[test][order.count(test) - 1]

    monkeypatch.setattr(peers.transfer, "ours", ours)
    monkeypatch.setattr(peers.transfer, "perftest", perftest)
    monkeypatch.setattr(peers.setup, "ucx_perftest", lambda _: ({"UCX": (["ucx_perftest"], {})}, {}))
    ctx = peers.context(3)
    peers.transfer.compare(ctx, "transfer x", peers.transfer.Net("x", ("tcp", ("tcp",))), 1 << 20, 64, False, 2.5)
    kinds = ["tag_bw", "ucp_am_bw"]
    assert order == ["ours", *kinds, *kinds, "ours", "ours", *kinds]
    row = ctx.rows[0]
    # 8, 10, 12 beside 4, 5, 6.
    assert (row["value"], row["peer"], row["peer_value"], row["ratio"]) == (10, "UCX ucp_am_bw", 5, 2)
    assert row["missed"] == ["ratio"] and row["limit"] == 16 and "copies: 3.00" in row["note"]
