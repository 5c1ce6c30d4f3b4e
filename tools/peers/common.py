"""What every part of the comparison needs: commands on pinned cores, children that end with it, rows of the table."""
import ctypes
import dataclasses
import fcntl
import http.client
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from peers.machine import Places, places

# Units of which less is better.
LESS = {"us", "ms", "s", "MiB", "us/token"}


class Skip(Exception):
    """Why a peer, or a row, is not measured."""


class NotHere(Skip):
    """Why a peer has no part in a row on this machine: nobody misses it there."""


@dataclasses.dataclass
class Context:
    """Where things are, and how long to measure."""
    build: pathlib.Path     # our benchmark programs
    work: pathlib.Path      # peers and models; made when missing, several GB
    shared: pathlib.Path    # ../shared/bench
    rounds: int = 2         # alternations of ours and the peers
    rows: list = dataclasses.field(default_factory=list)      # of the table, see row()
    details: list = dataclasses.field(default_factory=list)   # whatever programs printed
    only: str = ""          # rows whose name does not contain it are left out
    places: Places = dataclasses.field(default_factory=places)

    @property
    def bin(self):
        return self.build.parent / "bin"

    @property
    def cpus(self):
        """What ours and the peers run on."""
        return self.places.cpus

    def wants(self, name):
        return self.only in name

    def row(self, name, value, unit, *, limit=None, limit_want=None, peer=None, peer_value=None, want=None, ratio=None,
            share=None, target=None, note=None, ops=(), missing=(), unfair=None, error=None):
        """One row: our figure; the limit and the share of it that is wanted; the peer and the ratio that is wanted, or
        a target of its own; what our fastest step went to. A ratio above 1 says that ours is better, whatever the unit.
        `missing` names peers that the row is beside and that gave no figure: then its ratio is shown, not judged.
        `unfair` says why nothing of the row can be judged on this machine, `error` why ours has no figure.
        `missed` names what is below what is wanted, `unjudged` what could not be compared; `met` needs both empty.
        `ratio_at_limit` is the ratio that a figure at the limit would have."""
        less = unit in LESS
        if error:
            value = limit = ratio = share = None
        if share is None and limit and value:
            share = limit / value if less else value / limit
        if ratio is None and peer_value and value:
            ratio = peer_value / value if less else value / peer_value
        judged = {}
        if limit_want is not None:
            judged["share"] = None if share is None else share >= limit_want
        if want is not None:
            judged["ratio"] = None if ratio is None or missing else ratio >= want
        if target is not None:
            judged["target"] = None if value is None else value <= target if less else value >= target
        if unfair:
            judged = dict.fromkeys(judged)
        missed = [what for what, good in judged.items() if good is False]
        unjudged = [what for what, good in judged.items() if good is None]
        reasons = [error, unfair]
        if missing and want is not None:
            reasons.append(" and ".join(missing) + (" is" if len(missing) == 1 else " are") + " missing")
        made = {"row": name, "value": value, "unit": unit, "limit": limit, "share_of_limit": share,
                "share_wanted": limit_want, "peer": peer, "peer_value": peer_value, "ratio": ratio, "ratio_wanted": want,
                "ratio_at_limit": ratio / share if ratio and share else None,
                "target": target, "met": False if missed else True if judged and not unjudged else None,
                "missed": missed, "unjudged": unjudged, "why_unjudged": "; ".join(filter(None, reasons)) or None,
                "error": error, "note": note, "ops": list(ops)}
        self.rows.append(made)
        print(f"  {name}: " + (f"no figure: {error}" if error else f"{number(value)} {unit}")
              + (f", {peer} {number(peer_value)}: {ratio:.2f}x" if ratio else ""), file=sys.stderr, flush=True)
        return made

    def turns(self, name, mine, theirs, unit, *, peer=None, missing=(), **more):
        """A row of what ours and a peer did in each turn: the medians, and the median of the turns' own ratios. A turn
        in which the peer gave nothing is None, or not there at the end of the list; that peer is `missing`, then."""
        less = unit in LESS
        ratios = [b / a if less else a / b for a, b in zip(mine, theirs) if a and b]
        whole = len(theirs) == len(mine) and None not in theirs
        theirs = [b for b in theirs if b is not None]
        if peer and not (whole and theirs):
            missing = [*missing, peer]
        return self.row(name, median(mine), unit, peer=peer if theirs else None, peer_value=median(theirs),
                        ratio=median(ratios), missing=missing, **more)

    def skip(self, name, why):
        self.rows.append({"row": name, "skipped": why})
        print(f"  {name}: skipped: {why}", file=sys.stderr, flush=True)


def number(value):
    if value is None:
        return ""
    return f"{value:,.3f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def in_turn(turn, ours, theirs):
    """Ours and then the peers, the other way round the next time; what the machine does meanwhile meets both."""
    return (ours, theirs) if turn % 2 == 0 else (theirs, ours)


@dataclasses.dataclass
class Turns:
    """What ours and a peer gave, turn by turn."""
    mine: list
    theirs: list
    error: str | None = None    # why ours ended before its time
    reason: str | None = None   # why the peer did; it is not tried again


def take_turns(count, ours, theirs):
    found = Turns([], [])
    for turn in range(count):
        for who in in_turn(turn, ours, theirs):
            try:
                if who is ours:
                    found.mine.append(ours())
                elif found.reason is None:
                    found.theirs.append(theirs())
            except Skip as why:
                if who is ours:
                    found.error = str(why)
                    return found
                found.reason = str(why)
    return found


def failed_requests(count):
    return f"{count} request{'' if count == 1 else 's'} failed"


def spoiled(line):
    """Why a line of one of our programs holds no figure although it has one, or None."""
    if line.get("error"):
        return str(line["error"])
    return failed_requests(line["errors"]) if line.get("errors") else None


def verdict(row):
    """The mark of a row: met, which of the two that are wanted is missed, what is not judged and why."""
    why = f" ({row['why_unjudged']})" if row["why_unjudged"] else ""
    if row["error"]:
        return "no figure, not judged" + why
    words = []
    if row["missed"]:
        words.append("MISSED " + ("both" if len(row["missed"]) > 1 else row["missed"][0]))
        # A target is in the units of the machine that it was set on; the ratio says what became of it on this one.
        if row["missed"] == ["target"] and row["ratio_wanted"] is not None and "ratio" not in row["unjudged"]:
            words.append("ratio met")
        # A ratio is one of the machine that it was set on, too: another one's limit may lie below it.
        if "ratio" in row["missed"] and row["ratio_at_limit"] and row["ratio_at_limit"] < row["ratio_wanted"]:
            words.append(f"the limit is {row['ratio_at_limit']:.2f}x")
    elif row["unjudged"] and row["share_wanted"] is not None and "share" not in row["unjudged"]:
        # The share of the limit may be all that can be judged where the peers cannot be had.
        words.append("share met")
    if row["unjudged"] or why:
        words.append(" and ".join(row["unjudged"]) + " not judged" + why)
    return ", ".join(words).strip() or ("met" if row["met"] else "")


def profile(ops, most=5):
    """The longest ops of our fastest step in one line."""
    told = []
    for op in sorted(ops, key=lambda op: -op["ms"])[:most]:
        words = ("{name} {ms} ms, {step:.0f} % of the step at {bound:.0f} % of its bound" if not told
                 else "{name} {ms} ms, {step:.0f} % at {bound:.0f} %")
        told.append(words.format(name=op["op"], ms=number(op["ms"]), step=100 * op["share_of_step"],
                                 bound=100 * op["share_of_bound"]))
    return "; ".join(told)


def table(rows):
    """Prints the rows side by side; what is missed is marked. Below a row, what our fastest step went to."""
    width = max([len(r["row"]) for r in rows] + [3])
    print(f"{'row':<{width}} {'ours':>10} {'unit':<9} {'limit':>9} {'share':>6} {'want':>5}  {'peer':<26} {'its':>10} "
          f"{'ratio':>7} {'want':>11}")
    share = lambda v: "" if v is None else f"{100 * v:.0f} %"
    ratio = lambda v: "" if v is None else f"{v:.2f}"
    for r in rows:
        if "skipped" in r:
            print(f"{r['row']:<{width}} skipped: {r['skipped']}")
            continue
        want = ratio(r["ratio_wanted"])
        if r["target"] is not None:
            target = ("<=" if r["unit"] in LESS else ">=") + number(r["target"])
            want = " ".join(filter(None, [want, target]))
        print(f"{r['row']:<{width}} {number(r['value']):>10} {r['unit']:<9} {number(r['limit']):>9} "
              f"{share(r['share_of_limit']):>6} {share(r['share_wanted']):>5}  {r['peer'] or '':<26} "
              f"{number(r['peer_value']):>10} {ratio(r['ratio']):>7} {want:>11} {verdict(r)}"
              + (f"  ({r['note']})" if r["note"] else ""))
        if r["ops"]:
            print(f"    {profile(r['ops'])}")


def json_lines(text):
    rows = []
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            rows.append(value)
    return rows


def run_lines(command, env=None, timeout=1800):
    """(JSON objects that a command printed, one a line; why it failed or None). What it started ends with it."""
    words = [str(word) for word in command]
    try:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **(env or {})}, start_new_session=True, preexec_fn=end_with_parent)
    except OSError as error:
        return [], str(error)
    try:
        out, problems = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        return [], f"{pathlib.Path(words[0]).name} took longer than {timeout} s"
    finally:
        end_group(process)
    rows = json_lines(out)
    if process.returncode != 0:
        return rows, (problems.strip().splitlines() or [f"ended with {process.returncode}"])[-1]
    return rows, None


def must(command, what, env=None, timeout=1800, cwd=None):
    """The output of a command that has to succeed; Skip with its last words otherwise."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, cwd=cwd,
                              env={**os.environ, **(env or {})}, preexec_fn=end_with_parent)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Skip(f"{what}: {error}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or [f"ended with {done.returncode}"]
        raise Skip(f"{what}: {words[-1]}")
    return done.stdout


def end_with_parent():
    """In a child before exec: SIGKILL when the runner ends, however it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def end_group(process):
    """SIGTERM, then SIGKILL, to a child and all that it has started."""
    for number_, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, number_)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
        # The leader is gone; a group that still exists has others in it.
        try:
            os.killpg(process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return


def nice():
    """Words before a command that keep other work from disturbing it, where that is allowed."""
    return ["nice", "-n", "-10"] if os.geteuid() == 0 else []


def pinned(cpus):
    return [*nice(), "taskset", "-c", ",".join(map(str, cpus))]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def exclusive(work):
    """One comparison at a time uses the work folder; the lock lives as long as what is returned."""
    work.mkdir(parents=True, exist_ok=True)
    lock = open(work / "lock", "w", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise Skip(f"{work} is in use by another comparison") from error
    return lock


def get(port, path="/health", body=None, timeout=120):
    """(status, bytes) of a request to a local server; status 0 when it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


class Servers:
    """Servers in the background; leaving the `with` block ends them all."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-bench-")
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.running:
            end_group(process)
        self.folder.cleanup()

    def start(self, command, cpus, env=None):
        log = pathlib.Path(self.folder.name) / f"{len(self.running)}.log"
        with open(log, "wb") as out:
            process = subprocess.Popen([*pinned(cpus), *map(str, command)], stdout=out, stderr=subprocess.STDOUT,
                                       env={**os.environ, **(env or {})}, start_new_session=True,
                                       preexec_fn=end_with_parent)
        process.log = log
        self.running.append(process)
        return process

    def ours(self, ctx, program, *arguments, cpus=None, env=None):
        """One of our programs on a port of the system's choice; a started one has .ports once it is ready."""
        port_file = pathlib.Path(self.folder.name) / f"{len(self.running)}.ports"
        process = self.start([ctx.bin / program, *arguments, "--port", "0", "--port-file", port_file],
                             cpus or ctx.cpus, env)
        process.port_file = port_file
        return process

    @staticmethod
    def last_words(process):
        lines = process.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no output"

    def ready(self, process, seconds=180, port=None, path="/health"):
        """Waits until it answers 200; returns its port."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise Skip(f"a server ended with {process.returncode}: {self.last_words(process)}")
            if port is None and process.port_file.exists():
                process.ports = json.loads(process.port_file.read_text())
                port = process.ports["port"]
            if port is not None and get(port, path, timeout=2)[0] == 200:
                return port
            time.sleep(0.01)
        raise Skip(f"a server did not become ready: {self.last_words(process)}")


def stop(process):
    """Ends one server before the others."""
    process.send_signal(signal.SIGTERM)
    end_group(process)


def memory_mib(pid, field="VmRSS"):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0.0


def median(values):
    return statistics.median(values) if values else None
