"""Process-level tests: real programs, real sockets, the shipped demo model.

Every test gets its own programs on ports that the system chooses, and leaves nothing: after it no process, port, file
in the temporary folder or shared-memory segment may be left, and no server may hold a page for a request.
"""
import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY_DIR = pathlib.Path(os.environ.get("TANDEM_BINARY_DIR", ROOT / "build" / "release"))
BIN = BINARY_DIR / "bin"
DEMO_MODEL = ROOT / "assets" / "demo-model"
SHARED = pathlib.Path(os.environ.get("TANDEM_SHARED_DIR", ROOT.parent / "shared"))
# Sanitizers slow everything down; bounds that a person would notice stretch with them.
SLOW = float(os.environ.get("TANDEM_TEST_SLOWDOWN", "1"))


def pytest_configure(config):
    config.addinivalue_line("markers", "golden: needs ../shared")


def golden(path):
    """A file or folder of the golden data; skips the test where it is not there."""
    full = SHARED / "golden" / path
    if not full.exists():
        pytest.skip("skipped: ../shared is not here")
    return full


def http(method, url, body=None, headers=None, timeout=60):
    """(status, parsed JSON or text, headers); never raises for an HTTP error."""
    data = None
    headers = dict(headers or {})
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=timeout * SLOW) as response:
            raw, status, got = response.read(), response.status, response.headers
    except urllib.error.HTTPError as error:
        raw, status, got = error.read(), error.code, error.headers
    text = raw.decode("utf-8", "replace")
    try:
        return status, json.loads(text), got
    except ValueError:
        return status, text, got


def events(url, body, timeout=60, headers=None):
    """Yields the parsed `data:` events of a streamed response; the string "[DONE]" for the end mark."""
    request = urllib.request.Request(url, data=json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=timeout * SLOW) as response:
        for line in response:
            line = line.decode("utf-8").rstrip("\n")
            if line.startswith("data: "):
                yield "[DONE]" if line[6:] == "[DONE]" else json.loads(line[6:])


class Program:
    """One running program of ours."""

    def __init__(self, name, process, port_file, log):
        self.name, self.process, self.port_file, self.log = name, process, port_file, log
        self.ports = {}

    @property
    def port(self):
        return self.ports["port"]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def text(self):
        return self.log.read_text(errors="replace")

    def alive(self):
        return self.process.poll() is None

    def wait_ready(self, seconds=60):
        deadline = time.monotonic() + seconds * SLOW
        while time.monotonic() < deadline:
            if not self.alive():
                raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self.text()[-4000:]}")
            if not self.ports and self.port_file.exists():
                self.ports = json.loads(self.port_file.read_text())
            if self.ports:
                try:
                    if http("GET", self.url + "/health", timeout=5)[0] == 200:
                        return self
                except OSError:
                    pass
            time.sleep(0.01)
        raise AssertionError(f"{self.name} did not become ready:\n{self.text()[-4000:]}")

    def wait_port(self, seconds=60):
        """Until it has opened its port, be it ready or not."""
        wait_for(lambda: self.port_file.exists() or not self.alive(), seconds, f"{self.name} opens its port")
        assert self.alive(), self.text()[-4000:]
        self.ports = json.loads(self.port_file.read_text())
        return self

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)

    def suspend(self):
        """SIGSTOP, until every thread stands still."""
        def standing():
            states = [(t / "stat").read_text().rsplit(")", 1)[1].split()[0]
                      for t in pathlib.Path(f"/proc/{self.pid}/task").iterdir()]
            return all(s == "T" for s in states)

        self.kill(signal.SIGSTOP)
        wait_for(standing, 20, f"{self.name} stands still")

    def info(self):
        return http("GET", self.url + "/get_server_info")[1]


class Cluster:
    """Starts programs in one temporary folder and takes them down in the end."""

    def __init__(self, folder, programs=BIN, env=None):
        self.folder, self.bin, self.env = pathlib.Path(folder), programs, env or {}
        self.temporary = self.folder / "test-tmp"
        self.temporary.mkdir()
        self.programs = []

    def start(self, program, *args, name=None, env=None, wait=True, port_file=True):
        name = name or f"{program}-{len(self.programs)}"
        log = self.folder / f"{name}.log"
        ports = self.folder / f"{name}.ports"
        command = [str(self.bin / program), *map(str, args)]
        if port_file:
            if not any(str(a).startswith("--port") for a in args):
                command += ["--port", "0"]
            command += ["--port-file", str(ports)]
        with open(log, "wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=self.folder,
                                       env={**os.environ, "TMPDIR": str(self.temporary), **self.env, **(env or {})},
                                       start_new_session=True)
        started = Program(name, process, ports, log)
        self.programs.append(started)
        return started.wait_ready() if wait else started

    def unified(self, *args, model=DEMO_MODEL, **kwargs):
        return self.start("prefill-server", "--model-path", model, *args, **kwargs)

    def prefill(self, *args, model=DEMO_MODEL, **kwargs):
        # --port 0 makes the bootstrap port the system's choice too.
        return self.start("prefill-server", "--model-path", model, "--disaggregation-mode", "prefill", *args, **kwargs)

    def decode(self, *args, model=DEMO_MODEL, **kwargs):
        return self.start("decode-server", "--model-path", model, "--disaggregation-mode", "decode", *args, **kwargs)

    def router(self, *args, prefill=(), decode=(), workers=(), **kwargs):
        words = []
        if prefill or decode:
            words.append("--pd-disaggregation")
            for p in prefill:
                words += ["--prefill", p.url, p.ports["bootstrap_port"]]
            for d in decode:
                words += ["--decode", d.url]
        elif workers:
            words += ["--worker-urls", *[w.url for w in workers]]
        return self.start("router", *words, *args, **kwargs)

    def pd(self, *args, prefills=1, decodes=1, router_args=(), prefill_args=(), decode_args=(), **kwargs):
        prefill = [self.prefill(*args, *prefill_args, wait=False, **kwargs) for _ in range(prefills)]
        decode = [self.decode(*args, *decode_args, wait=False, **kwargs) for _ in range(decodes)]
        for program in prefill + decode:
            program.wait_ready()
        return self.router(*router_args, prefill=prefill, decode=decode), prefill, decode

    def stop(self):
        """SIGTERM to all; returns what went wrong with any of them."""
        problems = []
        for program in self.programs:
            if program.alive():
                program.kill(signal.SIGCONT)
                program.kill(signal.SIGTERM)
        for program in self.programs:
            was_asked = program.process.returncode is None
            try:
                program.process.wait(timeout=30 * SLOW)
            except subprocess.TimeoutExpired:
                problems.append(f"{program.name} did not stop on SIGTERM:\n{program.text()[-3000:]}")
                program.process.kill()
                program.process.wait()
            if was_asked and program.process.returncode not in (0, -signal.SIGTERM):
                problems.append(f"{program.name} ended with {program.process.returncode} on SIGTERM:\n"
                                f"{program.text()[-3000:]}")
        return problems


def our_processes():
    """Pids of our programs, children of a router included."""
    names = {"router", "prefill-server", "decode-server", "bootstrap-server"}
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            exe = os.readlink(entry / "exe")
            if exe.startswith(str(BIN)) and pathlib.Path(exe).name in names:
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
                if state != "Z":
                    found.add(int(entry.name))
    return found


def mapped_files():
    """Every file that a living process maps or holds open."""
    found = set()
    for process in pathlib.Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            found |= {line.split(maxsplit=5)[5] for line in (process / "maps").read_text().splitlines()
                      if "/dev/shm/" in line}
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(os.readlink(descriptor))
    return found


def shared_memory():
    """Segments in /dev/shm and System V ones that no living process uses: what a dead one has left behind."""
    folder = pathlib.Path("/dev/shm")
    names = {p.name for p in folder.iterdir()} if folder.exists() else set()
    if names:
        used = mapped_files()
        names = {n for n in names if f"/dev/shm/{n}" not in used}
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
            fields = line.split()
            if not pathlib.Path(f"/proc/{fields[4]}").exists():
                names.add("sysv:" + fields[1])
    return names


@pytest.fixture
def cluster():
    before = our_processes(), shared_memory()
    with tempfile.TemporaryDirectory(prefix="e2e-") as folder:
        group = Cluster(folder)
        try:
            yield group
        finally:
            problems = group.stop()
        left = set(pathlib.Path(folder).iterdir()) - {f for p in group.programs for f in (p.log, p.port_file)}
        left = {f.name for f in left if not f.name.startswith("test-")}
        left |= {f.name for f in group.temporary.iterdir()}
    # A child of a killed router dies by the kernel's hand a moment later, and its segments with it.
    deadline = time.monotonic() + 5 * SLOW
    while (our_processes() - before[0] or shared_memory() - before[1]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not problems, "\n".join(problems)
    assert not left, f"files left: {left}"
    assert our_processes() - before[0] == set(), "processes left"
    assert shared_memory() - before[1] == set(), "shared memory left"


@pytest.fixture(scope="session")
def stubs(tmp_path_factory):
    """Imports what a user would generate from proto/: stubs("session_pb2", ...) gives these modules of tandem.v1."""
    protoc = pytest.importorskip("grpc_tools.protoc")
    out = tmp_path_factory.mktemp("stubs")
    files = sorted((ROOT / "proto" / "tandem" / "v1").glob("*.proto"))
    code = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}", f"--grpc_python_out={out}",
                        *map(str, files)])
    assert code == 0
    sys.path.insert(0, str(out))
    try:
        yield lambda *names: tuple(importlib.import_module("tandem.v1." + name) for name in names)
    finally:
        sys.path.remove(str(out))


def pages_in_use(program):
    """Pages that requests or transfers of a worker hold (prefix cache not counted)."""
    load = program.info()["internal_states"][0]
    return load["used_pages"] + load["transferring_pages"]


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.01)


def serving(router, role, field="active_requests"):
    """What the router tells of its workers of that role that have requests; it may be 100 ms old."""
    return [w for w in router.info()["workers"] if w["role"] == role and w[field] > 0]


def by_url(programs, worker):
    return next(p for p in programs if worker["url"].endswith(f":{p.port}"))


def generate(url, timeout=60, **body):
    status, answer, _ = http("POST", url + "/generate", body, timeout=timeout)
    assert status == 200, answer
    return answer


def greedy(max_new_tokens, **more):
    return {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True, **more}


@pytest.fixture(name="peers")
def peers_(monkeypatch):
    """The modules of the comparison with the best known programs, and a context of so many rounds on two CPUs, with
    one more for clients, in which nothing is installed."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("common", "engine", "machine", "pd", "router", "server", "setup", "tokenizer", "transfer")
    made = types.SimpleNamespace(**{name: importlib.import_module(f"peers.{name}") for name in names})
    monkeypatch.setattr(made.engine, "REST_S", 0)
    monkeypatch.setattr(made.setup, "venv", lambda *_: pathlib.Path("/venv/bin/python"))
    monkeypatch.setattr(made.setup, "debian", lambda program, _: program)
    monkeypatch.setattr(made.setup, "script", lambda ctx, name: ctx.shared / name)
    here, places = pathlib.Path("/nowhere"), made.machine.Places([0, 2], [4], "two cores of node 0")
    made.context = lambda rounds, only="": made.common.Context(here, here, here, rounds=rounds, only=only, places=places)
    return made
