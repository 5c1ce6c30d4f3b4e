#!/usr/bin/env python3
"""Runs the benchmark programs, prints a table of figures and ratios, and writes everything as JSON.

  tools/bench.py [NAME] [--peers] [--rounds N] [--resume] [--build DIR] [--output FILE]

NAME runs only the programs whose name contains it. A figure stands beside its limit or target, from the same run.
--peers compares ours with the best known programs of each kind (tools/peers), which it installs and builds under
TANDEM_BENCH_DIR (.cache/bench) with the scripts of ../shared/bench (or TANDEM_SHARED_DIR); where a peer cannot be had ours
is measured all the same. NAME is then a part ("engine") or a part and the beginning of a row ("engine bf16 decode"). Ours
and the peers take turns --rounds times on the same two cores. --resume keeps the parts that the output file has already
from the same code, CPUs and rounds.
"""
import argparse
import json
import os
import pathlib
import signal
import sys
import time
import traceback

from peers import engine, machine, pd, router, server, setup, tokenizer, transfer
from peers.common import LESS, Context, Skip, exclusive, run_lines, spoiled
from peers.common import table as comparison

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("TANDEM_SHARED_DIR", ROOT.parent / "shared")) / "bench"
WORK = pathlib.Path(os.environ.get("TANDEM_BENCH_DIR", ROOT / ".cache" / "bench"))
# Programs that are not measured by just starting them.
NOT_RUN = {"serve"}
# What else a program is started with, after the run without arguments.
MORE_RUNS = {"engine_bench": [["--model", ROOT / "bench" / "models" / "moe-0.7b", "--dummy", "--quantization", "int8wo",
                               "--quantization", "w8a8_int8", "--context", "128", "--streams", "1"]]}


def normalized(row):
    """The figures of one line as [name, value, unit, limit or target, share of it]; share > 1 is better than asked."""
    if "row" in row and "value" in row:
        keys = [str(row[k]) for k in ("policy", "connections") if row.get(k) not in (None, "", 0)]
        name = " ".join([row["bench"], row["row"], *keys])
        unit, value, target = row.get("unit", ""), None if spoiled(row) else row["value"], row.get("target")
        share = None
        if target and value:
            share = target / value if unit in LESS else value / target
        return [[name, value, unit, target, share]]
    if "fraction" in row:
        name = " ".join(str(row[k]) for k in ("bench", "family", "dtype", "shape") if k in row)
        return [[name, row["gb_s"] if row.get("limit") == "read_gb_s" else row.get("gflop_s"), row.get("limit", ""),
                 row.get("limit_value"), row["fraction"]]]
    label = " ".join(str(row[k]) for k in ("bench", "family", "threads") if k in row)
    return [[f"{label} {key}", value, "", None, None] for key, value in row.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "threads"]


def table(figures):
    width = max([len(f[0]) for f in figures] + [6])
    number = lambda v: "" if v is None else f"{v:,.3f}" if abs(v) < 100 else f"{v:,.0f}"
    print(f"{'figure':<{width}} {'value':>14} {'unit':<12} {'limit/target':>14} {'ratio':>7}")
    for name, value, unit, limit, share in figures:
        ratio = "" if share is None else f"{share:.2f}"
        print(f"{name:<{width}} {number(value):>14} {unit:<12} {number(limit):>14} {ratio:>7}")


# Parts of the comparison, in order, and the programs of ours that each of them needs.
PARTS = {"engine": engine, "server": server, "pd": pd, "router": router, "tokenizer": tokenizer, "transfer": transfer}
PROGRAMS = {"engine": ["engine_bench"], "server": ["serve", "../bin/prefill-server"],
            "pd": ["serve", "../bin/prefill-server", "../bin/decode-server", "../bin/router"], "router": ["router_bench"],
            "tokenizer": ["tokenizer_bench"], "transfer": ["transfer_bench"]}
# Programs whose own rows a part shows. Not without ../shared, where the parts have fewer rows.
RUN_BY_PART = {"router_bench", "tokenizer_bench", "transfer_bench"} if SHARED.exists() else set()


def wanted_parts(name):
    """{part: what its rows' names must contain}: "router", "router_bench" or the beginning of a row's name."""
    if not name:
        return dict.fromkeys(PARTS, "")
    found = {part: "" for part in PARTS if name in (part, part + "_bench")}
    return found or {part: name for part in PARTS if name.startswith(part + " ")}


def measure_part(part, ctx):
    """What keeps a part from being measured is told in its rows; a fault of its code must not take others' figures."""
    try:
        for program in PROGRAMS[part]:
            if not (ctx.build / program).exists():
                raise Skip(f"{program} is not built")
        PARTS[part].measure(ctx)
        if not ctx.rows:
            ctx.skip(ctx.only or part, "there is no such row")
    except Skip as why:
        ctx.skip(part, str(why))
    except Exception as fault:  # pylint: disable=broad-except
        traceback.print_exc()
        ctx.row(part, None, "", error=f"{type(fault).__name__}: {fault}")


def compare(parts, args, report, output):
    """Runs the parts one after the other; what is done is in the output file, so that --resume goes on from there."""
    lock = None
    for part, only in parts.items():
        ctx = Context(args.build, WORK, SHARED, rounds=args.rounds, only=only)
        done = report["parts"].get(part)
        if args.resume and done is not None and done.get("only") == only:
            print(f"bench: {part}: done before", file=sys.stderr)
        else:
            print(f"bench: {part} beside its peers", file=sys.stderr)
            begin = time.monotonic()
            try:
                lock = lock or exclusive(WORK)
            except Skip as why:
                ctx.skip(part, str(why))
            else:
                measure_part(part, ctx)
            report["parts"][part] = {"only": only, "seconds": round(time.monotonic() - begin, 1), "rows": ctx.rows,
                                     "details": ctx.details}
        report["peers"] = setup.versions(ctx)
        report["failed"] |= {row["row"]: row["error"] for row in report["parts"][part]["rows"] if row.get("error")}
        write(report, output)


def ratios(report):
    """Every ratio of the report in one list: ours to limits and targets, to the peers, and what is wanted of it."""
    made = []

    def add(figure, value, unit, against, its, ratio, wanted=None):
        if ratio is not None:
            made.append({"figure": figure, "value": value, "unit": unit, "against": against, "against_value": its,
                         "ratio": ratio, "wanted": wanted})

    for line in report["rows"]:
        for name, value, unit, limit, share in normalized(line):
            add(name, value, unit, "limit or target", limit, share)
    for row in (row for part in report["parts"].values() for row in part["rows"] if "skipped" not in row):
        figure = (row["row"], row["value"], row["unit"])
        add(*figure, "limit", row["limit"], row["share_of_limit"], row["share_wanted"])
        add(*figure, row["peer"], row["peer_value"], row["ratio"], row["ratio_wanted"])
        if row["target"] and row["value"]:
            less = row["unit"] in LESS
            add(*figure, "target", row["target"], row["target"] / row["value"] if less else row["value"] / row["target"], 1.0)
    return made


def write(report, output):
    report["ratios"] = ratios(report)
    part = output.with_suffix(".part")
    part.write_text(json.dumps(report, indent=1) + "\n")
    part.rename(output)


def resumed(output, report):
    """The parts of an earlier report of the same machine, CPUs, code and rounds."""
    same = lambda of: [of["rounds"]] + [of["machine"].get(key) for key in ("cpu", "threads", "cpus", "commit", "changes")]
    try:
        before = json.loads(output.read_text())
        if same(before) != same(report) or report["machine"]["commit"] == "unknown":
            return {}
        # What failed is measured again.
        return {name: part for name, part in before["parts"].items() if not any(row.get("error") for row in part["rows"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def run_own(programs, report):
    """Runs our programs by themselves; the figures for the table."""
    figures = []
    for program in programs:
        print(f"bench: {program.name}", file=sys.stderr)
        for more in [[], *MORE_RUNS.get(program.name, [])]:
            rows, why = run_lines([program, *more])
            report["rows"] += rows
            for row in rows:
                figures += normalized(row)
                why = why or spoiled(row)
            if why:
                report["failed"][program.name] = why
                print(f"bench: {program.name}: {why}", file=sys.stderr)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="*", default=[])
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release" / "bench")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    name = " ".join(args.name)
    output = args.output or args.build.parent / "bench.json"
    parts = wanted_parts(name) if args.peers else {}
    programs = [p for p in sorted(args.build.iterdir()) if p.is_file() and os.access(p, os.X_OK) and p.name not in NOT_RUN
                and name in p.name and not (parts and p.name in RUN_BY_PART)] if args.build.is_dir() else []
    if parts and name and SHARED.exists():
        # Rows that were asked for by name: the program's own rows would only take time.
        programs = []
    if not programs and not parts:
        print(f"bench: no benchmark matches '{name}'", file=sys.stderr)
        return 2
    report = {"machine": machine.facts(ROOT), "rounds": args.rounds, "peers": {}, "rows": [], "parts": {}, "failed": {}}
    if args.resume:
        report["parts"] = resumed(output, report)
    compare(parts, args, report, output)
    figures = run_own(programs, report)
    print(json.dumps(report["machine"]))
    if figures:
        table(figures)
    rows = [row for part in parts for row in report["parts"][part]["rows"]]
    if rows:
        print()
        comparison(rows)
    write(report, output)
    print(f"bench: everything is in {output}", file=sys.stderr)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    # As at Ctrl-C: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
