"""./dev bench --peers is fair: what is judged beside whom, with which requests, and what has no figure."""
import importlib
import json
import pathlib
import subprocess
import types

import pytest
from conftest import BINARY_DIR, DEMO_MODEL


def test_a_fault_in_one_part_leaves_the_others(peers, monkeypatch, tmp_path):
    bench = importlib.import_module("bench")
    monkeypatch.setattr(bench, "WORK", tmp_path)
    monkeypatch.setattr(bench, "PROGRAMS", {"router": [], "tokenizer": []})
    monkeypatch.setattr(peers.router, "measure", lambda ctx: {}["no such key"])
    monkeypatch.setattr(peers.tokenizer, "measure", lambda ctx: ctx.row("figure", 1.0, "MB/s"))
    report = {"rows": [], "parts": {}, "failed": {}}
    args = types.SimpleNamespace(build=tmp_path, rounds=1, resume=False)
    bench.compare({"router": "", "tokenizer": ""}, args, report, tmp_path / "bench.json")
    assert report["failed"] == {"router": "KeyError: 'no such key'"}
    assert report["parts"]["tokenizer"]["rows"][0]["value"] == 1.0


class Contender:
    """Someone who is measured: what it gives turn by turn; an exception is raised."""

    def __init__(self, peers, name, figures):
        self.name, self.figures, self.asked = name, list(figures), 0
        self.weights, self.note = peers.setup.Weights("folder"), None

    def begin_row(self):
        pass

    def measure(self, _):
        self.asked += 1
        figure = self.figures.pop(0)
        if isinstance(figure, Exception):
            raise figure
        return figure

    def of_the_row(self):
        return {"limit": 200, "ops": []}


def engine_row(peers, ours, here, missing=None):
    ctx = peers.context(2)
    row = peers.engine.Contestant("row", Contender(peers, "ours", ours), {"prefill:512": (0.4, 1.5)})
    peers.engine.compare(ctx, "prefill:512", [row], peers.engine.Peers(here, missing or {}))
    return ctx.rows[0]


def test_an_engine_row_is_judged_beside_all_of_its_peers_alone(peers):
    skip, not_here = peers.common.Skip("killed"), peers.common.NotHere("is the one in use")
    slow = lambda: Contender(peers, "slow", [50, 50])
    assert engine_row(peers, [100, 100], [slow(), Contender(peers, "fast", [60, 60])])["met"]
    # The one that failed, in one turn or from the start, may have been the best.
    for here, missing in (([slow(), Contender(peers, "fast", [60, skip])], {}), ([slow()], {"fast": "cannot install fast"})):
        row = engine_row(peers, [100, 100], here, missing)
        assert (row["met"], row["peer"], row["ratio"]) == (None, "slow", 2)
        assert (row["unjudged"], row["why_unjudged"]) == (["ratio"], "fast is missing")
        assert "fast: " in row["note"]
    # One that has no part in the row on this machine is not missed.
    assert engine_row(peers, [100, 100], [slow(), Contender(peers, "fast", [not_here])])["met"]
    # Ours alone is held to its limit.
    row = engine_row(peers, [100, 100], [], {"fast": "no index"})
    assert (row["value"], row["share_of_limit"], row["unjudged"]) == (100, 0.5, ["ratio"])
    row = engine_row(peers, [100, skip], [slow()])
    assert (row["value"], row["error"], row["met"]) == (None, "killed", None)
    assert engine_row(peers, [not_here], [slow()])["skipped"] == "is the one in use"


def test_a_peer_that_answers_in_some_turns_is_missing(peers):
    ctx = peers.context(2)
    for theirs, why in (([50, 50], None), ([50], "p is missing"), ([None, 50], "p is missing"), ([], "p is missing")):
        row = ctx.turns("row", [100, 100], theirs, "tokens/s", peer="p", want=1.5)
        assert (row["why_unjudged"], row["met"], row["ratio"]) == (why, None if why else True, 2 if theirs else None)


def test_what_could_not_be_had_is_not_tried_again(peers):
    tried = []

    @peers.setup.remembered
    def install(_, package):
        tried.append(package)
        raise peers.common.Skip(f"no {package}")

    for package in ("a", "a", "b"):
        with pytest.raises(peers.common.Skip, match=f"no {package}"):
            install(peers.context(1), package)
    assert tried == ["a", "b"]


def test_a_family_that_the_machine_lacks_is_not_missed(peers, monkeypatch):
    def must(*_, **__):
        raise peers.common.Skip("engine_bench: engine_bench: kernel family amx needs AMX-BF16; not so here")
    monkeypatch.setattr(peers.engine, "must", must)
    with pytest.raises(peers.common.NotHere):
        peers.engine.Ours(peers.context(1), peers.setup.Weights("folder"), "none", "amx").measure("prefill:512")


def test_a_prompt_is_held_to_the_peak_as_the_peers_are(peers, monkeypatch):
    prompt = {"bench": "engine", "row": "r", "value": 300.0, "ms": 2.0, "target": 1000.0, "share_of_bound": 0.3,
              "parameters_target": 750.0, "share_by_parameters": 0.4, "note": "more"}
    for line, limit, note in ((prompt, 750.0, "30 % of the bound with attention and without the head; more"),
                              ({k: v for k, v in prompt.items() if "parameters" not in k}, 1000.0, "more")):
        monkeypatch.setattr(peers.engine, "must", lambda *_, line=line, **__: json.dumps(line))
        ours = peers.engine.Ours(peers.context(1), peers.setup.Weights("folder"), "none")
        assert ours.measure("prefill:512") == 300.0
        assert (ours.of_the_row()["limit"], ours.note) == (limit, note)


def test_both_kinds_of_8_bit_weights_share_the_peers_runs(peers, monkeypatch):
    made = []

    class Ours(Contender):
        def __init__(self, _, __, quantization, *___, **____):
            super().__init__(peers, quantization, [100] * 99)

    class Peer(Contender):
        def __init__(self, _, model, kind, *___):
            super().__init__(peers, self.name, [50] * 99)
            self.kind = (model, kind)
            made.append(self)

        def close(self):
            pass

    monkeypatch.setattr(peers.engine, "Ours", Ours)
    monkeypatch.setattr(peers.engine, "OtherFamily", lambda _, family: Peer(None, family, family))
    for name, known in (("Llama", "llama.cpp"), ("OpenVino", "OpenVINO GenAI")):
        monkeypatch.setattr(peers.engine, name, type(name, (Peer,), {"name": known}))
    monkeypatch.setattr(Peer, "name", "ours, other", raising=False)
    ctx = peers.context(2, "engine 8-bit")
    peers.engine.measure(ctx)
    names = [row["row"] for row in ctx.rows]
    assert [n for n in names if "int8wo" in n] == [f"engine 8-bit weights (int8wo) {load}" for load in (
        "prefill 512", "decode 1 stream, context 128", "decode 32 streams, context 128")]
    assert [n for n in names if "KV" in n] == [f"engine 8-bit w8a8 with 8-bit KV {load}" for load in (
        "decode 1 stream, context 2048", "decode 32 streams, context 128")]
    assert sum(n.startswith("engine 8-bit w8a8 ") for n in names) == 6 and all(row["ratio"] == 2 for row in ctx.rows)
    # Four loads in two turns, whatever the number of rows.
    assert [(peer.kind, peer.asked) for peer in made] == [(("dense600", "q8_0"), 8), (("dense600", "int8"), 8)]


def test_openvino_that_answers_no_json_is_a_missing_peer(peers):
    peer = object.__new__(peers.engine.OpenVino)
    peer.process = subprocess.Popen(["sh", "-c", "read line; echo Killed"], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True)
    with pytest.raises(peers.common.Skip, match="Killed"):
        peer.ask("prefill 512")
    peer.process.communicate(timeout=10)


def test_weights_are_made_in_memory_where_the_checkpoint_cannot_be_had(peers, monkeypatch, tmp_path):
    def nothing(*_):
        raise peers.common.Skip("no index")
    monkeypatch.setattr(peers.setup, "checkpoint", nothing)
    ctx = peers.context(1)
    ctx.work = tmp_path
    for name, model_type in (("dense600", "qwen3"), ("moe700", "qwen3_moe")):
        weights = peers.setup.weights(ctx, name)
        config = json.loads((weights.folder / "config.json").read_text())
        assert config["model_type"] == model_type
        ids = json.loads((weights.folder / "tokenizer.json").read_text())["model"]["vocab"].values()
        assert sorted(ids) == list(range(config["vocab_size"])), "each token has a text"
        assert weights.for_bench() == ["--model", weights.folder, "--dummy"] and "no index" in weights.note
    assert weights.for_server()[2:4] == ["--load-format", "dummy"]
    # A start-up that reads no weights is not compared.
    peers.server.start_up(ctx)
    assert [row["skipped"] for row in ctx.rows] == ["no index"] * 4


@pytest.mark.parametrize("lines, why, error", [
    ([{"errors": 0}, {"errors": 2}], None, "2 requests failed"),
    ([{}, {"value": None, "error": "events are missing"}], None, "events are missing"),
    ([{}, None], "router_bench: added latency", "router_bench: added latency"),
    ([{}, None], None, "router_bench printed no such figure in one of the turns"),
    ([{}, {}], None, None),
])
def test_a_router_row_with_errors_has_no_figure(peers, monkeypatch, lines, why, error):
    row = {"row": "stream_rate_fast", "policy": "round_robin", "connections": 1, "value": 90000.0}
    turns = list(lines)

    def run_lines(*_, **__):
        line = turns.pop(0)
        return [row | line] if line is not None else [{"row": "else", "policy": "", "connections": 1, "value": 1}], why

    monkeypatch.setattr(peers.router, "run_lines", run_lines)
    monkeypatch.setattr(peers.router, "theirs", lambda *_: ({("sglang-router", 1, "tokens_s fast"): 10000.0}, None))
    ctx = peers.context(2, "router one stream's rate")
    peers.router.measure(ctx)
    made = ctx.rows[0]
    # Otherwise another turn's figure would stand there as if nothing had happened.
    assert (made["error"], made["value"], made["met"]) == (error, None if error else 90000.0, None if error else False)


def test_a_transfer_row_names_each_version_and_kind(peers, monkeypatch):
    rates = {"A tag_bw": 4.0, "A ucp_am_bw": 5.0, "B tag_bw": 3.0, "B ucp_am_bw": 3.0}
    mine = {"gb_per_s_median": 10.0, "memcpy_gb_per_s": 16.0, "transports": "tcp"}
    monkeypatch.setattr(peers.transfer, "ours", lambda *_: mine)
    monkeypatch.setattr(peers.transfer, "perftest",
                        lambda ctx, net, tls, test, size, program, env: rates.get(f"{program[0]} {test}"))
    here, missing = {"A": (["A"], {}), "B": (["B"], {})}, {}
    monkeypatch.setattr(peers.setup, "ucx_perftest", lambda _: (here, missing))

    def row(ctx):
        peers.transfer.compare(ctx, "transfer x", peers.transfer.Net("x", ("tcp", ("tcp",))), 1 << 20, 64, False, 1.5)
        return ctx.rows[-1]

    ctx = peers.context(2)
    assert row(ctx)["met"]
    del rates["B ucp_am_bw"]
    assert (row(ctx)["why_unjudged"], ctx.rows[-1]["ratio"]) == ("B ucp_am_bw is missing", 2)
    del here["B"]
    missing["B"] = "cannot install B"
    assert (row(ctx)["why_unjudged"], ctx.rows[-1]["met"]) == ("B is missing", None)
    assert "cannot install B" in ctx.rows[-1]["note"]
    ctx.places = peers.machine.Places([3], [3], "one processor")
    missing.clear()
    assert (row(ctx)["why_unjudged"], ctx.rows[-1]["met"]) == ("one processor for both sides", None)


@pytest.mark.parametrize("cpus, pin", [([0, 2], "0,2"), ([3], "3,3")])
def test_both_ends_of_a_transfer_are_pinned(peers, monkeypatch, cpus, pin):
    seen = []

    def run_lines(words, *_, **__):
        seen.extend(map(str, words))
        return [{"errors": 0}], None
    monkeypatch.setattr(peers.transfer, "run_lines", run_lines)
    ctx = peers.context(1)
    ctx.places = peers.machine.Places(cpus, cpus, "")
    peers.transfer.ours(ctx, peers.transfer.Net("x", ("", ())), 64, False)
    assert seen[seen.index("--pin") + 1] == pin


def option(words, name):
    words = list(map(str, words))
    return words[words.index(name) + 1]


def test_no_cache_knows_a_prompt_that_is_measured(peers, monkeypatch):
    """serve warms up with the first request that it measures."""
    runs = []

    class Fleet:
        processes = ()

        def __init__(self, ctx, *_, **__):
            self.ctx = ctx

        def run(self, prompt, new, requests, *more):
            runs.append(peers.server.client(self.ctx, 1, "sglang", requests, prompt, new, *more))
            return {"median_ttft_ms": 10.0, "median_itl_ms": 1.0}

    def must(words, *_, **__):
        runs.append(words)
        return '{"failed": 0}'

    monkeypatch.setattr(peers.pd, "Fleet", Fleet)
    monkeypatch.setattr(peers.server, "must", must)
    ctx, weights = peers.context(2), peers.setup.Weights("folder")
    # In the first token's row both fleets are warmed up.
    for warm, measure in ((2, lambda: peers.pd.first_token(ctx, "row", weights)), (1, lambda: peers.server.load(ctx, 1))):
        runs.clear()
        measure()
        assert len(runs) > warm and {option(run, "--warmup-requests") for run in runs} == {"0"}
        seeds = [option(run, "--seed") for run in runs]
        assert set(seeds[:warm]).isdisjoint(seeds[warm:]), "other prompts"
        # On the client's CPUs, not the servers'.
        assert {option(run, "-c") for run in runs} == {"4"}
    assert [row["met"] for row in ctx.rows] == [True]


def test_one_processor_judges_no_prefill_and_decode_apart(peers, monkeypatch):
    times = {"p99_itl_ms": 5.0, "median_itl_ms": 1.0, "max_itl_ms": 9.0}
    monkeypatch.setattr(peers.pd, "under_long_prompts", lambda *_: times)
    ctx, weights = peers.context(1), peers.setup.Weights("folder")
    peers.pd.inter_token(ctx, "two", weights)
    ctx.places = peers.machine.Places([0], [0], "one processor")
    peers.pd.inter_token(ctx, "one", weights)
    assert [(row["missed"], row["why_unjudged"]) for row in ctx.rows] == [
        (["ratio"], None), ([], "one processor for both sides")]


def test_a_fleet_of_ours_that_fails_gives_no_figure(peers, monkeypatch):
    def fails(*_):
        raise peers.common.Skip("3 requests failed")
    monkeypatch.setattr(peers.setup, "checkpoint", lambda *_: pathlib.Path("folder"))
    monkeypatch.setattr(peers.pd, "ROWS", dict.fromkeys(peers.pd.ROWS, fails))
    ctx = peers.context(1)
    peers.pd.measure(ctx)
    assert [(row["error"], row["value"]) for row in ctx.rows] == [("3 requests failed", None)] * 3


@pytest.mark.parametrize("tokens, error", [(700, None), (701, "ours makes 700 tokens of the text, the peers 701")])
def test_a_tokenizer_that_makes_other_tokens_has_no_figure(peers, monkeypatch, tokens, error):
    mine = {row: {"value": 30.0, "tokens": 700} for row in peers.tokenizer.ROWS}
    theirs = {(row, peer): 10.0 for row in peers.tokenizer.ROWS for peer in peers.tokenizer.WANT}
    # One peer printed nothing of one row.
    del theirs["decode_2kB", "tiktoken"]
    monkeypatch.setattr(peers.tokenizer, "beside", lambda _: ([], lambda: (theirs, {"encode_2kB": tokens})))
    monkeypatch.setattr(peers.tokenizer, "ours", lambda *_: mine)
    ctx = peers.context(2)
    peers.tokenizer.measure(ctx)
    rows = {row["row"]: row for row in ctx.rows}
    assert rows["tokenizer 131k encode_2kB / tiktoken"]["error"] == error
    assert rows["tokenizer 131k encode_2kB / tiktoken"]["met"] == (None if error else True)
    assert rows["tokenizer 131k decode_2kB / tiktoken"]["why_unjudged"] == "tiktoken is missing"
    assert rows["tokenizer 131k decode_2kB / hf-tokenizers"]["ratio"] == 3


def test_tokenizer_bench_cuts_the_text_as_python_does(peers, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    program = BINARY_DIR / "bench" / "tokenizer_bench"
    if not program.exists():
        pytest.skip("skipped: tokenizer_bench is not built")
    text = ("Größe 12 \U0001F600 日本語 plain words, " * 60000)[:(1 << 20) + 5000]
    (tmp_path / "text").write_text(text, encoding="utf-8")
    words = ["--model", DEMO_MODEL, "--corpus", tmp_path / "text", "--mib", 1, "--reps", 1]
    rows, why = peers.common.run_lines([program, *words])
    assert why is None
    tokenizer = tokenizers.Tokenizer.from_file(str(DEMO_MODEL / "tokenizer.json"))
    for size, name in peers.tokenizer.SIZES.items():
        chunks = [text[i:min(i + size, 1 << 20)] for i in range(0, 1 << 20, size)]
        count = sum(len(each.ids) for each in tokenizer.encode_batch(chunks, add_special_tokens=False))
        assert next(row["tokens"] for row in rows if row["row"] == f"encode_{name}") == count
