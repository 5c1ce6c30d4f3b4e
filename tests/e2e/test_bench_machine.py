"""./dev bench: which CPUs it takes, what a report says of the machine, and from which report one may go on."""
import importlib
import json
import subprocess

import pytest

# Node, then the threads of its cores: what /sys says of a machine.
ONE_CPU = {0: ["0"]}
TWO_CORES = {0: ["0", "1"]}
TWO_THREADS = {0: ["0-1"]}
FOUR_CORES = {0: ["0", "1", "2", "3"]}
EIGHT_THREADS = {0: ["0,4", "1,5", "2,6", "3,7"]}
NEIGHBOURS = {0: ["0-1", "2-3"]}
TWO_NODES = {0: ["0"], 1: ["1", "2", "3"]}
A_CORE_EACH = {0: ["0-1"], 1: ["2-3"]}


@pytest.mark.parametrize("machine, allowed, cpus, clients, how", [
    (ONE_CPU, None, [0], [0], "one processor"),
    (TWO_CORES, None, [0, 1], [0, 1], "two cores of node 0"),
    (TWO_THREADS, None, [0, 1], [0, 1], "two hardware threads of one core"),
    (FOUR_CORES, None, [0, 1], [2, 3], "two cores of node 0"),
    (FOUR_CORES, [1, 3], [1, 3], [1, 3], "two cores of node 0"),
    (EIGHT_THREADS, None, [0, 1], [2, 3, 6, 7], "two cores of node 0"),
    (EIGHT_THREADS, [0, 4], [0, 4], [0, 4], "two hardware threads of one core"),
    (NEIGHBOURS, None, [0, 2], [0, 2], "two cores of node 0"),
    (NEIGHBOURS, [1, 2, 3], [1, 2], [1, 2], "two cores of node 0"),
    (TWO_NODES, None, [1, 2], [0, 3], "two cores of node 1"),
    (A_CORE_EACH, None, [0, 2], [0, 2], "cores of two nodes"),
])
def test_two_cores_of_one_node(peers, tmp_path, machine, allowed, cpus, clients, how):
    every = []
    for node, cores in machine.items():
        (tmp_path / "node" / f"node{node}").mkdir(parents=True)
        (tmp_path / "node" / f"node{node}" / "cpulist").write_text(",".join(cores) + "\n")
        for threads in cores:
            for cpu in peers.machine.cpu_list(threads):
                folder = tmp_path / "cpu" / f"cpu{cpu}" / "topology"
                folder.mkdir(parents=True)
                (folder / "thread_siblings_list").write_text(threads + "\n")
                every.append(cpu)
    found = peers.machine.places(allowed or every, tmp_path)
    assert (found.cpus, found.clients, found.how) == (cpus, clients, how)
    assert (found.shared is None) == (len(cpus) == 2)


def test_huge_pages_and_caches_are_in_the_report(peers, tmp_path):
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    (tmp_path / "shmem_enabled").write_text("always within_size advise [never] deny force\n")
    assert peers.machine.huge_pages(tmp_path) == {"enabled": "madvise", "shmem_enabled": "never"}
    for i, words in enumerate((("1", "Data", "48K"), ("2", "Unified", "2048K"))):
        folder = tmp_path / "cpu" / "cpu3" / "cache" / f"index{i}"
        folder.mkdir(parents=True)
        for name, word in zip(("level", "type", "size"), words):
            (folder / name).write_text(word + "\n")
    assert peers.machine.caches(3, tmp_path) == ["L1 Data 48K", "L2 Unified 2048K"]


def test_versions_of_peers_are_in_the_report(peers, tmp_path):
    ctx = peers.context(1)
    ctx.work = tmp_path
    site = peers.setup.packages(tmp_path / "venv" / "bin" / "python")
    for name in ("sglang_router-0.3.2", "tokenizers-0.23.3", "not_a_peer-1.0"):
        (site / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "venv" / "tandem-has").write_text("sglang-router\ntokenizers\n")
    (tmp_path / "sdist" / "llama_cpp_python-0.3.36" / "vendor" / "llama.cpp").mkdir(parents=True)
    found = peers.setup.versions(ctx)
    assert (found["sglang-router"], found["tokenizers"]) == ("0.3.2", "0.23.3")
    assert found["llama.cpp"] == "of llama_cpp_python-0.3.36"
    assert "not-a-peer" not in found


def test_resume_takes_parts_of_the_same_code_cpus_and_rounds_alone(peers, monkeypatch, tmp_path):
    # The temporary folder may lie in a repository.
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent.parent))
    git = lambda *words: subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True,
                                        capture_output=True)
    git("init")
    (tmp_path / "code").write_text("one")
    git("add", "code")
    git("commit", "-m", "one")
    clean = peers.machine.code(tmp_path)
    (tmp_path / "code").write_text("two")
    dirty = peers.machine.code(tmp_path)
    (tmp_path / "code").write_text("three")
    other = peers.machine.code(tmp_path)
    assert "changes" not in clean and dirty["commit"] == other["commit"] == clean["commit"] + "-dirty"
    (tmp_path / "new").write_text("four")
    new = peers.machine.code(tmp_path)
    (tmp_path / "new").write_text("five")
    digests = {code["changes"] for code in (dirty, other, new, peers.machine.code(tmp_path))}
    assert len(digests) == 4
    assert peers.machine.code(tmp_path / "..") == {"commit": "unknown"}

    whole, failed = {"rows": [{"row": "a", "error": None}, {"row": "b", "skipped": "why"}]}, {"rows": [{"row": "c", "error": "why"}]}
    made = lambda code, rounds=2, cpus=(0, 1): {"machine": {"cpu": "x", "threads": 4, "cpus": list(cpus), **code},
                                               "rounds": rounds, "parts": {"engine": whole, "pd": failed}}
    bench = importlib.import_module("bench")
    for before, now, taken in ((made(clean), made(clean), True), (made(dirty), made(dirty), True),
                               (made(clean), made(dirty), False), (made(dirty), made(other), False),
                               (made(clean), made(clean, rounds=3), False), (made(clean), made(clean, cpus=(0, 2)), False),
                               (made({"commit": "unknown"}), made({"commit": "unknown"}), False)):
        (tmp_path / "bench.json").write_text(json.dumps(before))
        assert bench.resumed(tmp_path / "bench.json", now) == ({"engine": whole} if taken else {})
