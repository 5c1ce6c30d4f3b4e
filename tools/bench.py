#!/usr/bin/env python3
"""Runs the benchmark programs, prints a table of figures and ratios, and writes everything as JSON.

  tools/bench.py [NAME] [--peers] [--build DIR] [--output FILE]

NAME runs only the programs whose name contains it. A figure stands beside its limit or target, from the same run.
--peers also measures the best known programs of each kind, through the scripts of ../shared/bench (or TANDEM_SHARED_DIR),
set up under TANDEM_BENCH_DIR (.cache/bench), and gives ratios to them; what cannot be set up is told as skipped.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = pathlib.Path(os.environ.get("TANDEM_SHARED_DIR", ROOT.parent / "shared")) / "bench"
WORK = pathlib.Path(os.environ.get("TANDEM_BENCH_DIR", ROOT / ".cache" / "bench"))
# Programs that are not measured by just starting them.
NOT_RUN = {"serve"}
# What else a program is started with, after the run without arguments.
MORE_RUNS = {"engine_bench": [["--model", ROOT / "bench" / "models" / "moe-0.7b", "--dummy", "--quantization", "int8wo",
                               "--quantization", "w8a8_int8", "--context", "128", "--streams", "1"]]}
# Units of which less is better.
LESS = {"us", "ms", "s", "MiB", "us/token"}
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8")


def machine():
    """What the figures were taken on."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    field = lambda name: (re.search(rf"^{name}\s*:\s*(.*)$", cpu, re.M) or [None, "unknown"])[1]
    memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    flags = set(field("flags").split())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {"cpu": field("model name"), "threads": os.cpu_count(), "flags": [f for f in FLAGS if f in flags],
            "memory_gib": round(int(memory[1]) / 2**20, 1), "kernel": platform.release(),
            "load_average": round(os.getloadavg()[0], 2), "commit": commit.stdout.strip() or "unknown",
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


def run_lines(command, env=None, timeout=1800):
    """(JSON objects that a command printed, one a line; why it failed or None)."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, **(env or {})})
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    rows = []
    for line in done.stdout.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            rows.append(value)
    if done.returncode != 0:
        return rows, (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
    return rows, None


def normalized(row):
    """The figures of one line as [name, value, unit, limit or target, share of it]; share > 1 is better than asked."""
    if "row" in row and "value" in row:
        keys = [str(row[k]) for k in ("policy", "connections") if row.get(k) not in (None, "", 0)]
        name = " ".join([row["bench"], row["row"], *keys])
        unit, value, target = row.get("unit", ""), row["value"], row.get("target")
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


class Skip(Exception):
    """Why a peer is not measured."""


def venv(packages):
    python = WORK / "venv" / "bin" / "python"
    WORK.mkdir(parents=True, exist_ok=True)
    steps = [[sys.executable, "-m", "venv", WORK / "venv"]] if not python.exists() else []
    steps.append([python, "-m", "pip", "install", "-q", *packages])
    for step in steps:
        done = subprocess.run([str(word) for word in step], capture_output=True, text=True)
        if done.returncode != 0:
            raise Skip("cannot install " + " ".join(packages))
    return python


def tokenizer_peers(build):
    """tiktoken and HF tokenizers on the 131k vocabulary, and ours on the same vocabulary and text."""
    python = venv(["tokenizers", "tiktoken", "mistral-common", "numpy"])
    corpus, folder = WORK / "corpus.txt", WORK / "tekken"
    if not corpus.exists():
        run_lines([python, SHARED / "make_corpus.py", corpus, "5"])
    rows, why = run_lines([python, SHARED / "f_tokenizer.py", corpus, WORK, "2"])
    if why:
        raise Skip(why)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes((WORK / "tekken-hf.json").read_bytes())
    ours, why = run_lines([build / "tokenizer_bench", "--model", folder, "--corpus", corpus, "--mib", "2"])
    if why:
        raise Skip(why)
    mine = {row["row"]: row["value"] for row in ours}
    ratios = []
    for row in rows:
        size = {2000: "2kB", 100000: "100kB"}.get(row.get("chunk"))
        if size and row["op"] in ("encode", "decode"):
            name = f"{row['op']}_{size}"
            ratios.append([f"tokenizer 131k {name} / {row['peer']}", mine[name], "MB/s", row["MB_s"],
                           mine[name] / row["MB_s"]])
        elif "us_per_token" in row:
            ratios.append([f"tokenizer 131k stream_decode / {row['peer']}", mine["stream_decode"], "us/token",
                           row["us_per_token"], row["us_per_token"] / mine["stream_decode"]])
    return rows + ours, ratios


def router_peers(build):
    """sglang-router, nginx and HAProxy in front of HTTP workers; ours in front of session workers."""
    python = venv(["sglang-router"])
    env = {"BENCH_VENV": str(python.parent.parent)}
    rows, why = run_lines([python, SHARED / "e_router.py", "--dur", "2", "--reps", "1", "--conns", "1,8,32"], env)
    if why:
        raise Skip(why)
    ours, why = run_lines([build / "router_bench"])
    if why:
        raise Skip(why)
    mine = {(r["row"], r["policy"], r["connections"]): r["value"] for r in ours}
    policy = {"round_robin": "round_robin", "power_of_two": "least_load"}
    ratios = []
    for row in rows:
        name = row.get("router", "")
        if "cpu_us_per_req" not in row or row["conns"] == 1:
            continue
        for kind in ("cpu_per_request_ids", "cpu_per_request_text"):
            value = mine.get((kind, policy.get(name.split("/")[-1], "round_robin"), row["conns"]))
            if value and row["cpu_us_per_req"]:
                ratios.append([f"router {kind} {row['conns']} / {name}", value, "us", row["cpu_us_per_req"],
                               row["cpu_us_per_req"] / value])
    return rows + ours, ratios


def scripted_peers(part):
    """Peers whose setup builds them and the synthetic models: a quarter of an hour at the first time."""
    def measure(_build):
        if not (WORK / "limits").exists():
            done = subprocess.run(["bash", str(SHARED / "setup.sh"), str(WORK)], capture_output=True, text=True)
            if done.returncode != 0:
                raise Skip("setup.sh: " + (done.stderr.strip().splitlines() or ["failed"])[-1])
        rows, why = run_lines(["bash", SHARED / "run.sh", WORK, part], timeout=7200)
        if why and not rows:
            raise Skip(why)
        return rows, []
    return measure


def engine_peers(build):
    """llama.cpp, OpenVINO and torch; ours on llama.cpp's weights of the mixture of experts, in 8 bit."""
    rows, _ = scripted_peers("c")(build)
    ours, why = run_lines([build / "engine_bench", "--model", WORK / "models" / "moe700", "--threads", "2",
                           "--quantization", "int8wo", "--context", "128", "--streams", "1"])
    if why:
        raise Skip(why)
    mine = [row["value"] for row in ours if row.get("row") == "moe700 int8wo decode context 128 streams 1"]
    peer = [row["tok_s"] for row in rows if (row.get("model"), row.get("type"), row.get("test"), row.get("ctx"))
            == ("moe700", "q8_0", "decode", 128)]
    ratios = [["engine moe700 8-bit decode / llama.cpp", a, "tokens/s", b, a / b] for a, b in zip(mine, peer)]
    return rows + ours, ratios


PEERS = {"tokenizer": tokenizer_peers, "router": router_peers, "transfer": scripted_peers("b"),
         "engine": engine_peers, "server": scripted_peers("d"), "kernels": scripted_peers("g")}


def run_peers(name, build, report):
    ratios = []
    for part, measure in PEERS.items():
        if name not in part and name not in part + "_bench":
            continue
        try:
            if not SHARED.exists():
                raise Skip("../shared/bench is not here")
            rows, more = measure(build)
            report["peers"][part] = rows
            ratios += more
        except Skip as why:
            print(f"peers of {part}: skipped: {why}", file=sys.stderr)
            report["peers"][part] = f"skipped: {why}"
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release" / "bench")
    parser.add_argument("--output", type=pathlib.Path)
    args = parser.parse_args()
    output = args.output or args.build.parent / "bench.json"
    programs = [p for p in sorted(args.build.iterdir()) if p.is_file() and os.access(p, os.X_OK)
                and p.name not in NOT_RUN and args.name in p.name] if args.build.is_dir() else []
    if not programs and not (args.peers and any(args.name in part for part in PEERS)):
        print(f"bench: no benchmark matches '{args.name}'", file=sys.stderr)
        return 2
    report = {"machine": machine(), "rows": [], "peers": {}, "failed": {}}
    figures = []
    for program in programs:
        print(f"bench: {program.name}", file=sys.stderr)
        for more in [[], *MORE_RUNS.get(program.name, [])]:
            rows, why = run_lines([program, *more])
            report["rows"] += rows
            for row in rows:
                figures += normalized(row)
            if why:
                report["failed"][program.name] = why
                print(f"bench: {program.name}: {why}", file=sys.stderr)
    ratios = run_peers(args.name, args.build, report) if args.peers else []
    report["ratios"] = [dict(zip(("figure", "value", "unit", "limit_or_peer", "ratio"), f)) for f in figures + ratios]
    print(json.dumps(report["machine"]))
    table(figures + ratios)
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"bench: everything is in {output}", file=sys.stderr)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
