"""What the figures are taken on: which CPUs, and what a reader must know of the machine to compare two reports."""
import dataclasses
import datetime
import hashlib
import os
import pathlib
import platform
import re
import subprocess

SYSTEM = pathlib.Path("/sys/devices/system")
HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8")


@dataclasses.dataclass
class Places:
    """Which CPUs what is measured runs on."""
    cpus: list      # ours and the peers: two where there are as many
    clients: list   # the load client: other cores where there are some
    how: str        # what the first two are to each other

    @property
    def shared(self):
        """Why two sides that want a core each cannot be judged, or None."""
        return None if len(self.cpus) > 1 else "one processor for both sides"


def cpu_list(text):
    """{0, 1, 2, 8} of "0-2,8"."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return frozenset(cpu for each in ranges for cpu in range(int(each[0]), int(each[-1]) + 1))


def places(allowed=None, system=SYSTEM):
    """Two cores of one NUMA node among the allowed CPUs; where there are none, the next best: cores of two nodes,
    hardware threads of one core, one CPU."""
    allowed = sorted(allowed or os.sched_getaffinity(0))
    threads, node_of = {}, {}
    for cpu in allowed:
        try:
            threads[cpu] = cpu_list((system / f"cpu/cpu{cpu}/topology/thread_siblings_list").read_text())
        except OSError:
            threads[cpu] = frozenset([cpu])
    for folder in system.glob("node/node[0-9]*"):
        node_of |= dict.fromkeys(cpu_list((folder / "cpulist").read_text()), int(folder.name.removeprefix("node")))
    # Of each core its first thread, by node.
    cores = {}
    for cpu in allowed:
        cores.setdefault(node_of.get(cpu, 0), {}).setdefault(threads[cpu], cpu)
    every = sorted(cpu for node in cores.values() for cpu in node.values())
    pair = next(((node, list(found.values())[:2]) for node, found in cores.items() if len(found) > 1), None)
    if pair:
        how, cpus = f"two cores of node {pair[0]}", pair[1]
    elif len(every) > 1:
        how, cpus = "cores of two nodes", every[:2]
    elif len(allowed) > 1:
        how, cpus = "two hardware threads of one core", allowed[:2]
    else:
        how, cpus = "one processor", allowed
    used = frozenset().union(*(threads[cpu] for cpu in cpus))
    return Places(cpus, [cpu for cpu in allowed if cpu not in used] or cpus, how)


def caches(cpu, system=SYSTEM):
    """["L1 Data 48K", ...] as one CPU sees them."""
    found = []
    for folder in sorted((system / f"cpu/cpu{cpu}/cache").glob("index[0-9]*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        found.append(f"L{level} {kind} {size}")
    return found


def huge_pages(folder=HUGE_PAGES):
    """What the system does, of anonymous and of shared memory: the word in brackets of each file."""
    found = {}
    for name in ("enabled", "shmem_enabled"):
        try:
            chosen = re.search(r"\[(\w+)\]", (folder / name).read_text())
        except OSError:
            continue
        found[name] = chosen[1] if chosen else None
    return found


def differences(root, git):
    """A digest of what is not committed, new files too."""
    digest = hashlib.sha256(git("status", "--porcelain") + git("diff", "--binary", "HEAD"))
    for name in filter(None, git("ls-files", "-z", "--others", "--exclude-standard").split(b"\0")):
        path = pathlib.Path(root, name.decode(errors="surrogateescape"))
        digest.update(name + b"\0" + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()[:12]


def code(root):
    """The commit, marked where files differ from it, and then a digest of how."""
    def git(*words):
        done = subprocess.run(["git", *words], cwd=root, capture_output=True)
        return done.stdout if done.returncode == 0 else b""

    commit = git("rev-parse", "--short", "HEAD").decode().strip()
    if not commit:
        return {"commit": "unknown"}
    status = git("status", "--porcelain")
    if not status:
        return {"commit": commit}
    return {"commit": commit + "-dirty", "changes": differences(root, git)}


def facts(root):
    """Of the report: the machine, the code and when."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text()
    field = lambda name: (re.search(rf"^{name}\s*:\s*(.*)$", cpu, re.M) or [None, "unknown"])[1]
    memory = re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    flags, where = set(field("flags").split()), places()
    return {"cpu": field("model name"), "threads": os.cpu_count(), "flags": [f for f in FLAGS if f in flags],
            "hypervisor": "hypervisor" in flags, "cpus": where.cpus, "cpus_are": where.how, "client_cpus": where.clients,
            "caches": caches(where.cpus[0]), "transparent_hugepage": huge_pages(),
            "memory_gib": round(int(memory[1]) / 2**20, 1), "kernel": platform.release(),
            "load_average": round(os.getloadavg()[0], 2), **code(root),
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}
