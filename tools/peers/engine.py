"""The engine beside llama.cpp and OpenVINO GenAI: same checkpoint, precision, prompt length and two pinned threads.

For each row ours and the peers run one after the other, in turned order the next time, so that what the machine does
meanwhile meets all of them. A figure is the median over the rounds, of medians within one; a ratio is the median of the
rounds' own ratios, to the peer with the best median. Kinds of weights of ours that have the same peers share their runs.
"""
import dataclasses
import json
import pathlib
import subprocess
import threading
import time

from peers import setup
from peers.common import NotHere, Skip, end_group, end_with_parent, json_lines, median, must, pinned, spoiled

DENSE, EXPERTS = "dense600", "moe700"


@dataclasses.dataclass(frozen=True)
class Kind:
    """Weights, and keys and values, of ours and of what is compared with them."""
    name: str
    ours: str               # --quantization
    llama: str
    openvino: str
    kv_dtype: str = None    # --kv-cache-dtype of ours


BF16 = Kind("bf16", "none", "bf16", "bf16")
BIT8 = Kind("8-bit w8a8", "w8a8_int8", "q8_0", "int8")
BIT8_WEIGHTS = Kind("8-bit weights (int8wo)", "int8wo", "q8_0", "int8")
BIT4 = Kind("4-bit", "int4wo-128", "q4_0", "int4")
# OpenVINO keeps keys and values in 8 bit, whatever the weights are, unless it is told otherwise; so do ours here.
BF16_KV8 = dataclasses.replace(BF16, name="bf16 with 8-bit KV", kv_dtype="fp8_e4m3")
BIT8_KV8 = dataclasses.replace(BIT8, name="8-bit w8a8 with 8-bit KV", kv_dtype="fp8_e4m3")
LONG_STEPS, STEPS, WARM_STEPS = 32, 48, 8
RUNS = 3        # within a turn, as ours at least; the one in the middle counts
# A guest gives the memory of a process that has ended back to its hypervisor 2 s later (free page reporting), which takes
# the processors away for some 0.3 s: the next one must not pay for that.
REST_S = 3
# Weights, load, share of the limit that is wanted (of prompts: of the peak, as PEERS.md counts it), ratio to the best peer
# that is wanted.
ROWS = [
    (BF16, "prefill:512", 0.35, 2.0), (BF16, "prefill:2048", 0.27, 2.0),
    (BIT8, "prefill:512", 0.25, 3.0), (BIT4, "prefill:512", 0.20, 2.5),
    (BF16, "decode:128:1", 0.90, 1.5), (BIT8, "decode:128:1", 0.88, 1.35), (BIT4, "decode:128:1", 0.75, 2.0),
    (BF16, "decode:2048:1", 0.87, 1.5), (BIT8, "decode:2048:1", 0.75, 2.4),
    (BF16, "decode:128:8", 0.85, 1.5), (BF16, "decode:128:32", 0.75, 2.0), (BIT8, "decode:128:32", 0.60, 2.8),
    # Activations stay 16 bit there; held to what is wanted of 8 bit all the same.
    (BIT8_WEIGHTS, "prefill:512", 0.25, 3.0), (BIT8_WEIGHTS, "decode:128:1", 0.88, 1.35),
    (BIT8_WEIGHTS, "decode:128:32", 0.60, 2.8),
    # The ratios that are wanted with keys and values of 16 bit; no share is, since their limit is another one.
    (BF16_KV8, "decode:2048:1", None, 1.5), (BF16_KV8, "decode:128:32", None, 2.0),
    (BIT8_KV8, "decode:2048:1", None, 2.4), (BIT8_KV8, "decode:128:32", None, 2.8),
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
    def __init__(self, ctx, weights, quantization, family="auto", kv_dtype=None):
        self.ctx, self.name = ctx, f"ours, {family}"
        self.command = [*pinned(ctx.cpus), ctx.build / "engine_bench", *weights.for_bench(), "--threads", len(ctx.cpus),
                        "--quantization", quantization, "--family", family,
                        *(["--kv-cache-dtype", kv_dtype] if kv_dtype else [])]
        self.weights, self.quantization, self.family = weights, quantization, family
        self.begin_row()

    def measure(self, load):
        try:
            rows = json_lines(must([*self.command, "--row", load], "engine_bench", timeout=300))
        except Skip as why:
            if "kernel family" in str(why):
                raise NotHere(str(why)) from why
            raise
        self.ctx.details += rows
        # A line without calls is the load, the others are its ops.
        found = [r for r in rows if r.get("bench") == "engine" and "calls" not in r]
        if not found:
            raise Skip("engine_bench printed no figure")
        if why := spoiled(found[0]):
            raise Skip(f"engine_bench: {why}")
        self.family = next((r["family"] for r in rows if r.get("bench") == "limits"), self.family)
        # What is wanted of a prompt is a share as PEERS.md counts it: of the peak by all parameters. The stricter one is noted.
        self.limit.append(found[0].get("parameters_target", found[0]["target"]))
        ops = [{"op": r["row"].removeprefix(found[0]["row"] + ": "), "ms": r["value"], "share_of_step": r["share_of_step"],
                "share_of_bound": r["share_of_bound"], "calls": r["calls"]} for r in rows if "calls" in r]
        self.steps.append((found[0]["ms"], ops))
        strict = (f"{100 * found[0]['share_of_bound']:.0f} % of the bound with attention and without the head"
                  if "parameters_target" in found[0] else None)
        self.note = "; ".join(filter(None, [strict, found[0].get("note")])) or None
        return found[0]["value"]

    def of_the_row(self):
        """What is said of a row beside its figure: the limit, and the ops of the fastest step."""
        return {"limit": median(self.limit), "ops": min(self.steps, key=lambda step: step[0])[1]}

    def begin_row(self):
        self.limit, self.steps, self.note = [], [], None

    def close(self):
        pass


class OtherFamily(Ours):
    """Ours with another kernel family than the one that `chosen` runs with."""

    def __init__(self, chosen, family):
        super().__init__(chosen.ctx, chosen.weights, chosen.quantization, family)
        self.chosen = chosen

    def measure(self, load):
        if self.family == self.chosen.family:
            raise NotHere("is the one in use")
        return super().measure(load)


class Llama:
    name = "llama.cpp"

    def __init__(self, ctx, model, kind, variant="", name=None):
        self.name = f"{self.name} ({name})" if name else self.name
        self.ctx, self.model = ctx, setup.gguf(ctx, model, kind)
        self.bin = setup.llama(ctx, variant)
        mask = sum(1 << cpu for cpu in ctx.cpus)
        self.threads = ["-t", len(ctx.cpus), "-C", hex(mask), "--cpu-strict", "1"]

    def measure(self, load):
        kind, numbers = words_of(load)
        if kind == "decode" and numbers[1] > 1:
            return self.batched(*numbers)
        # A warm-up is a whole run: long ones do without.
        runs = ["-r", RUNS, *(["--no-warmup"] if numbers[0] >= 1024 else [])]
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
                     ",".join([str(streams)] * RUNS), "--output-format", "jsonl"], "llama-batched-bench", timeout=300)
        rows = [r for r in json_lines(text) if r.get("pl") == streams]
        self.ctx.details += [{"peer": self.name, "load": f"decode:{context}:{streams}", **row} for row in rows]
        if not rows:
            raise Skip("llama-batched-bench printed no figure")
        return median([row["speed_tg"] for row in rows])

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
        try:
            return json.loads(line)
        except ValueError as error:
            raise Skip(f"OpenVINO GenAI answered {line[:80]!r}") from error

    def measure(self, load):
        kind, numbers = words_of(load)
        if kind == "prefill":
            question = f"prefill {numbers[0]}"
        else:
            steps = LONG_STEPS if numbers[0] >= 1024 else STEPS
            question = f"decode {numbers[0]} {numbers[1]} {steps}"
        if load not in self.warm:
            # The first of a shape compiles it, which is no part of the figure.
            self.ask(question if kind == "prefill" else f"decode {numbers[0]} {numbers[1]} {WARM_STEPS}")
            self.warm.add(load)
        runs = [self.ask(question)["tok_s"] for _ in range(RUNS)]
        self.ctx.details.append({"peer": self.name, "load": load, "samples_ts": runs})
        return median(runs)

    def close(self):
        try:
            self.process.stdin.close()
            self.process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            pass
        end_group(self.process)


@dataclasses.dataclass
class Contestant:
    """Ours with one kind of weights, and what is wanted of it."""
    prefix: str     # of its rows' names
    ours: Ours
    wants: dict     # by load: share of the limit, ratio

    def name(self, load):
        return f"{self.prefix} {title(load)}"


@dataclasses.dataclass
class Peers:
    """Those that can be had, and why each of the others cannot; all of them are named in a row."""
    here: list
    missing: dict

    @staticmethod
    def make(makers):
        peers = Peers([], {})
        for name, maker in makers.items():
            try:
                peers.here.append(maker())
            except NotHere:
                continue
            except Skip as why:
                peers.missing[name] = str(why)
                setup.say(f"skipped a peer: {name}: {why}")
        return peers


class Round:
    """What everybody did in one row's turns."""

    def __init__(self, contestants, peers):
        self.mine = [[] for _ in contestants]
        self.errors = [None for _ in contestants]
        self.theirs = {peer.name: [] for peer in peers.here}
        self.reasons = {}       # why a peer has no figure
        self.not_here = set()   # those that have no part in the row

    def run(self, load, contestants, peers, count):
        for contestant in contestants:
            contestant.ours.begin_row()
        for turn in range(count):
            order = [*enumerate(contestants), *((None, peer) for peer in peers.here)]
            for i, each in order if turn % 2 == 0 else reversed(order):
                if i is None:
                    self.of_peer(each, load)
                elif self.errors[i] is None:
                    time.sleep(REST_S)
                    try:
                        self.mine[i].append(each.ours.measure(load))
                    except Skip as why:
                        self.errors[i] = why
            if all(self.errors):
                return

    def of_peer(self, peer, load):
        if peer.name in self.not_here:
            return
        time.sleep(REST_S)
        try:
            self.theirs[peer.name].append(peer.measure(load))
        except NotHere as why:
            self.not_here.add(peer.name)
            self.reasons[peer.name] = str(why)
        except Skip as why:
            self.theirs[peer.name].append(None)
            self.reasons[peer.name] = str(why)


def compare(ctx, load, contestants, peers, remark=None):
    """A row for each contestant: all in turn, `rounds` times. `remark` goes into the note."""
    found = Round(contestants, peers)
    found.run(load, contestants, peers, ctx.rounds)
    whole = {peer: values for peer, values in found.theirs.items() if values and None not in values}
    missing = [*peers.missing, *(peer for peer in found.theirs if peer not in whole and peer not in found.not_here)]
    best = max(whole, key=lambda peer: median(whole[peer]), default=None)
    others = [f"{peer} {median(values):,.1f}" for peer, values in whole.items() if peer != best]
    reasons = [f"{peer}: {why}" for peer, why in (peers.missing | found.reasons).items()]
    for contestant, mine, error in zip(contestants, found.mine, found.errors):
        name, (share, want) = contestant.name(load), contestant.wants[load]
        if isinstance(error, NotHere):
            ctx.skip(name, str(error))
            continue
        note = "; ".join(filter(None, [*others, *reasons, contestant.ours.note, contestant.ours.weights.note, remark])) or None
        figures = {"error": str(error)} if error else contestant.ours.of_the_row()
        ctx.turns(name, mine, whole.get(best, []), "tokens/s", peer=best, limit_want=share, want=want, note=note,
                  missing=missing, **figures)


def compare_rows(ctx, contestants, makers, remark=None):
    """Rows of some kinds of weights of ours; the peers' models are loaded once for all of them."""
    wanted = {load: [c for c in contestants if load in c.wants and ctx.wants(c.name(load))]
              for load in dict.fromkeys(load for c in contestants for load in c.wants)}
    wanted = {load: those for load, those in wanted.items() if those}
    if not wanted:
        return
    peers = Peers.make(makers)
    try:
        for load, those in wanted.items():
            compare(ctx, load, those, peers, remark)
    finally:
        for peer in peers.here:
            peer.close()


def measure(ctx):
    """Every engine row of the table."""
    weights = setup.weights(ctx, DENSE)
    for kinds in ((BF16, BF16_KV8), (BIT8, BIT8_WEIGHTS, BIT8_KV8), (BIT4,)):
        contestants = [Contestant(f"engine {kind.name}", Ours(ctx, weights, kind.ours, kv_dtype=kind.kv_dtype),
                                  {load: (share, want) for k, load, share, want in ROWS if k is kind}) for kind in kinds]
        compare_rows(ctx, contestants, {Llama.name: lambda kind=kinds[0]: Llama(ctx, DENSE, kind.llama),
                                        OpenVino.name: lambda kind=kinds[0]: OpenVino(ctx, DENSE, kind.openvino)})
    # No goal is set for these: the peer's usual format has more bits where it is slow with them.
    compare_rows(ctx, [Contestant(f"engine {BIT4.name} beside a head of 4 bit, too:", Ours(ctx, weights, BIT4.ours),
                                  {"decode:128:1": (None, None)})],
                 {f"{Llama.name} (Q4_0 --pure)": lambda: Llama(ctx, DENSE, "q4_0-pure", name="Q4_0 --pure")})
    for family, variant in FAMILIES:
        compare_rows(ctx, [Contestant(f"engine bf16 {family} forced", Ours(ctx, weights, "none", family),
                                      {"prefill:512": (0.60, 1.3), "decode:128:1": (0.85, 1.3)})],
                     {Llama.name: lambda variant=variant: Llama(ctx, DENSE, "bf16", variant)})
    experts = Contestant(f"engine MoE {BIT8.name}", None, {"decode:128:1": (None, 1.8)})
    if ctx.wants(experts.name("decode:128:1")):
        experts.ours = Ours(ctx, setup.weights(ctx, EXPERTS), BIT8.ours)
        compare_rows(ctx, [experts], {Llama.name: lambda: Llama(ctx, EXPERTS, "q8_0")})
    # What the promise of the same tokens costs: one family for every load, against the one that is fastest for it.
    ours = Ours(ctx, weights, "none")
    compare_rows(ctx, [Contestant("engine cost of the same tokens everywhere:", ours,
                                  {load: (None, 0.95) for load in COST_LOADS})],
                 {f"ours, {family}": lambda family=family: OtherFamily(ours, family) for family in COST_FAMILIES}, COST_NOTE)
