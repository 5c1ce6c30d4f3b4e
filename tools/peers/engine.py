"""The engine beside llama.cpp and OpenVINO GenAI: same checkpoint, precision, prompt length and two pinned threads.

For each row ours and the peers run one after the other, in turned order the next time, so that what the machine does
meanwhile meets all of them. A figure is the median over the rounds, of medians within one; a ratio is the median of the
rounds' own ratios, to the peer with the best median.
"""
import json
import pathlib
import subprocess
import threading

from peers import setup
from peers.common import Skip, end_group, end_with_parent, json_lines, median, must, pinned

DENSE, EXPERTS = "dense600", "moe700"
# Name, --quantization of ours, llama.cpp's type, OpenVINO's kind.
BF16 = ("bf16", "none", "bf16", "bf16")
BIT8 = ("8-bit", "w8a8_int8", "q8_0", "int8")
BIT4 = ("4-bit", "int4wo-128", "q4_0", "int4")
LONG_STEPS, STEPS, WARM_STEPS = 32, 48, 8
# Weights, load, share of the limit that is wanted, ratio to the best peer that is wanted.
ROWS = [
    (BF16, "prefill:512", 0.35, 2.0), (BF16, "prefill:2048", 0.27, 2.0),
    (BIT8, "prefill:512", 0.25, 3.0), (BIT4, "prefill:512", 0.20, 2.5),
    (BF16, "decode:128:1", 0.90, 1.5), (BIT8, "decode:128:1", 0.88, 1.35), (BIT4, "decode:128:1", 0.75, 2.0),
    (BF16, "decode:2048:1", 0.87, 1.5), (BIT8, "decode:2048:1", 0.75, 2.4),
    (BF16, "decode:128:8", 0.85, 1.5), (BF16, "decode:128:32", 0.75, 2.0), (BIT8, "decode:128:32", 0.60, 2.8),
]
# Forced instruction sets: ours, llama.cpp's variant.
FAMILIES = [("avx512", "avx512"), ("avx2", "avx2")]
# A server that did not promise equal bits could choose among these for each step.
COST_FAMILIES = ["avx512_bf16", "avx512", "avx2"]
COST_LOADS = ["prefill:512", "decode:128:1", "decode:128:8", "decode:128:32"]
COST_NOTE = "a proxy: beside our own families that are not in use; what other orders of sums would gain is not in it"


def words_of(load):
    kind, *numbers = load.split(":")
    return kind, [int(n) for n in numbers]


def title(load):
    kind, numbers = words_of(load)
    if kind == "prefill":
        return f"prefill {numbers[0]}"
    return f"decode {numbers[1]} stream{'s' if numbers[1] > 1 else ''}, context {numbers[0]}"


class Ours:
    def __init__(self, ctx, folder, quantization, family="auto"):
        self.ctx, self.name = ctx, f"ours, {family}"
        self.command = [*pinned(ctx.cpus), ctx.build / "engine_bench", "--model", folder, "--threads", len(ctx.cpus),
                        "--quantization", quantization, "--family", family]
        self.folder, self.quantization, self.family = folder, quantization, family
        self.begin_row()

    def measure(self, load):
        rows = json_lines(must([*self.command, "--row", load], "engine_bench", timeout=300))
        self.ctx.details += rows
        # A line without calls is the load, the others are its ops.
        found = [r for r in rows if r.get("bench") == "engine" and "calls" not in r]
        if not found:
            raise Skip("engine_bench printed no figure")
        self.family = next((r["family"] for r in rows if r.get("bench") == "limits"), self.family)
        self.limit.append(found[0]["target"])
        ops = [{"op": r["row"].removeprefix(found[0]["row"] + ": "), "ms": r["value"], "share_of_step": r["share_of_step"],
                "share_of_bound": r["share_of_bound"], "calls": r["calls"]} for r in rows if "calls" in r]
        self.steps.append((found[0]["ms"], ops))
        return found[0]["median"]

    def of_the_row(self):
        """What is said of a row beside its figure: the limit, and the ops of the fastest step."""
        return {"limit": median(self.limit), "ops": min(self.steps, key=lambda step: step[0])[1]}

    def begin_row(self):
        self.limit, self.steps = [], []

    def close(self):
        pass


class OtherFamily(Ours):
    """Ours with another kernel family than the one that `chosen` runs with."""

    def __init__(self, chosen, family):
        super().__init__(chosen.ctx, chosen.folder, chosen.quantization, family)
        self.chosen = chosen

    def measure(self, load):
        if self.family == self.chosen.family:
            raise Skip("is the one in use")
        return super().measure(load)


class Llama:
    name = "llama.cpp"

    def __init__(self, ctx, model, kind, variant=""):
        self.ctx, self.model = ctx, setup.gguf(ctx, model, kind)
        self.bin = setup.llama(ctx, variant)
        mask = sum(1 << cpu for cpu in ctx.cpus)
        self.threads = ["-t", len(ctx.cpus), "-C", hex(mask), "--cpu-strict", "1"]

    def measure(self, load):
        kind, numbers = words_of(load)
        if kind == "decode" and numbers[1] > 1:
            return self.batched(*numbers)
        # A warm-up is a whole run: long ones do without.
        runs = ["-r", "2"] if numbers[0] < 1024 else ["-r", "1", "--no-warmup"]
        steps = LONG_STEPS if numbers[0] >= 1024 else STEPS
        test = ["-p", numbers[0], "-n", "0"] if kind == "prefill" else ["-p", "0", "-n", steps, "-d", numbers[0]]
        rows = json_lines(must([*pinned(self.ctx.cpus), self.bin / "llama-bench", "-m", self.model, *self.threads, *test,
                                *runs, "-o", "jsonl"], "llama-bench", timeout=300))
        self.ctx.details += [{"peer": self.name, "load": load, **row} for row in rows]
        if not rows:
            raise Skip("llama-bench printed no figure")
        return median(rows[0]["samples_ts"])

    def batched(self, context, streams):
        size = streams * (context + STEPS) + 256
        text = must([*pinned(self.ctx.cpus), self.bin / "llama-batched-bench", "-m", self.model, *self.threads, "-tb",
                     len(self.ctx.cpus), "-c", size, "-b", "2048", "-ub", "512", "-npp", context, "-ntg", STEPS, "-npl",
                     streams, "--output-format", "jsonl"], "llama-batched-bench", timeout=300)
        rows = [r for r in json_lines(text) if r.get("pl") == streams]
        self.ctx.details += [{"peer": self.name, "load": f"decode:{context}:{streams}", **row} for row in rows]
        if not rows:
            raise Skip("llama-batched-bench printed no figure")
        return rows[0]["speed_tg"]

    def close(self):
        pass


class OpenVino:
    """A process that keeps one model and answers measurements."""
    name = "OpenVINO GenAI"

    def __init__(self, ctx, model, kind):
        python, folder = setup.openvino(ctx, model, kind)
        worker = pathlib.Path(__file__).with_name("openvino_worker.py")
        words = [*pinned(ctx.cpus), python, worker, folder, kind, len(ctx.cpus)]
        self.ctx = ctx
        self.process = subprocess.Popen([str(w) for w in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, start_new_session=True,
                                        preexec_fn=end_with_parent)
        self.warm = set()
        self.ask(None)

    def ask(self, question):
        """The answer to a line; the process ends after five minutes without one."""
        timer = threading.Timer(300, self.process.kill)
        timer.start()
        try:
            if question is not None:
                self.process.stdin.write(question + "\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise Skip("OpenVINO GenAI has ended without an answer")
        return json.loads(line)

    def measure(self, load):
        kind, numbers = words_of(load)
        if kind == "prefill":
            question, count = f"prefill {numbers[0]}", 2 if numbers[0] < 1024 else 1
        else:
            steps = LONG_STEPS if numbers[0] >= 1024 else STEPS
            question = f"decode {numbers[0]} {numbers[1]} {steps}"
            count = 2 if numbers[1] == 1 and numbers[0] < 1024 else 1
        if load not in self.warm:
            # The first of a shape compiles it, which is no part of the figure.
            self.ask(question if kind == "prefill" else f"decode {numbers[0]} {numbers[1]} {WARM_STEPS}")
            self.warm.add(load)
        runs = [self.ask(question)["tok_s"] for _ in range(count)]
        self.ctx.details.append({"peer": self.name, "load": load, "samples_ts": runs})
        return median(runs)

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            pass
        end_group(self.process)


def compare(ctx, name, load, ours, peers, limit_want, want, remark=None):
    """One row: all in turn, `rounds` times. `remark` goes into its note."""
    mine, theirs, reasons = [], {p.name: [] for p in peers}, []
    ours.begin_row()
    for turn in range(ctx.rounds):
        order = [ours, *peers]
        for each in order if turn % 2 == 0 else reversed(order):
            try:
                (mine if each is ours else theirs[each.name]).append(each.measure(load))
            except Skip as why:
                if each is ours:
                    raise
                reasons.append(f"{each.name}: {why}")
                theirs[each.name].append(None)
    whole = {peer: values for peer, values in theirs.items() if None not in values}
    best = max(whole, key=lambda peer: median(whole[peer]), default=None)
    others = [f"{peer} {median(values):,.1f}" for peer, values in whole.items() if peer != best]
    note = "; ".join(filter(None, [*others, *dict.fromkeys(reasons), remark])) or None
    ctx.turns(name, mine, whole.get(best, []), "tokens/s", peer=best, limit_want=limit_want, want=want, note=note,
              **ours.of_the_row())


def make_peers(name, makers):
    """Those that can be had, and why the others cannot."""
    peers, reasons = [], []
    for make in makers:
        try:
            peers.append(make())
        except Skip as why:
            reasons.append(str(why))
    for why in reasons:
        setup.say(f"{name}: skipped a peer: {why}")
    return peers, reasons


def compare_rows(ctx, prefix, rows, make_ours, makers, remark=None):
    """Rows of one set of weights; the peers' models are loaded once for all of them."""
    rows = [(load, share, want) for load, share, want in rows if ctx.wants(f"{prefix} {title(load)}")]
    if not rows:
        return
    ours = make_ours()
    peers, reasons = make_peers(prefix, makers)
    try:
        for load, share, want in rows:
            name = f"{prefix} {title(load)}"
            try:
                compare(ctx, name, load, ours, peers, share, want, remark)
                if reasons:
                    ctx.rows[-1]["note"] = "; ".join(filter(None, [ctx.rows[-1]["note"], *reasons]))
            except Skip as why:
                ctx.skip(name, str(why))
    finally:
        for peer in peers:
            peer.close()


def measure(ctx):
    """Every engine row of the table."""
    folder = setup.checkpoint(ctx, DENSE)
    for weights in (BF16, BIT8, BIT4):
        name, mine, theirs, kind = weights
        compare_rows(ctx, f"engine {name}", [(load, share, want) for w, load, share, want in ROWS if w is weights],
                     lambda mine=mine: Ours(ctx, folder, mine),
                     [lambda theirs=theirs: Llama(ctx, DENSE, theirs), lambda kind=kind: OpenVino(ctx, DENSE, kind)])
    for family, variant in FAMILIES:
        compare_rows(ctx, f"engine bf16 {family} forced", [("prefill:512", 0.60, 1.3), ("decode:128:1", 0.85, 1.3)],
                     lambda family=family: Ours(ctx, folder, "none", family),
                     [lambda variant=variant: Llama(ctx, DENSE, "bf16", variant)])
    if ctx.wants("engine MoE 8-bit " + title("decode:128:1")):
        experts = setup.checkpoint(ctx, EXPERTS)
        compare_rows(ctx, "engine MoE 8-bit", [("decode:128:1", None, 1.8)],
                     lambda: Ours(ctx, experts, BIT8[1]), [lambda: Llama(ctx, EXPERTS, "q8_0")])
    # What the promise of the same tokens costs: one family for every load, against the one that is fastest for it.
    ours = Ours(ctx, folder, "none")
    compare_rows(ctx, "engine cost of the same tokens everywhere:", [(load, None, 0.95) for load in COST_LOADS],
                 lambda: ours, [lambda family=family: OtherFamily(ours, family) for family in COST_FAMILIES], COST_NOTE)
