"""KV of a whole prompt, and pages of 32 to 64 KiB, from process to process; ours with CRC32C on, beside ucx_perftest."""
import contextlib
import dataclasses
import os
import subprocess
import time

from peers import setup
from peers.common import Skip, end_group, end_with_parent, free_port, median, nice, run_lines, spoiled, take_turns

PROMPT_MIB = 224  # 235 MB: 2,048 tokens of the dense model
LONG, SHORT = 64 << 20, (32 << 10, 64 << 10)
TESTS = ("tag_bw", "ucp_am_bw")
MIB = 1048576
SENDER, RECEIVER = "tandem-bench-a", "tandem-bench-b"
ADDRESS = "10.97.5.1"


@contextlib.contextmanager
def namespaces():
    """Two network namespaces joined by a veth pair; needs root."""
    if os.geteuid() != 0:
        raise Skip("network namespaces need root")

    def ip(words, check=True):
        done = subprocess.run(["ip", *words.split()], capture_output=True, text=True)
        if check and done.returncode != 0:
            raise Skip(f"ip {words}: {done.stderr.strip()}")

    def remove():
        for name in (SENDER, RECEIVER):
            ip(f"netns del {name}", check=False)
        # Left here when a run ended before they were moved; deleting one end deletes both.
        for link in ("tbv0", "tbv1"):
            ip(f"link del {link}", check=False)

    remove()
    try:
        for name in (SENDER, RECEIVER):
            ip(f"netns add {name}")
        ip("link add tbv0 type veth peer name tbv1")
        for number, (name, link) in enumerate(((SENDER, "tbv0"), (RECEIVER, "tbv1")), 1):
            ip(f"link set {link} netns {name}")
            ip(f"-n {name} addr add 10.97.5.{number}/24 dev {link}")
            ip(f"-n {name} link set {link} up")
            ip(f"-n {name} link set lo up")
        yield
    finally:
        remove()


class Net:
    """Where both sides run, and over what."""

    def __init__(self, name, tls, veth=False, host="127.0.0.1"):
        self.name, self.tls, self.veth, self.host = name, tls, veth, host

    def inside(self, namespace):
        return ["ip", "netns", "exec", namespace] if self.veth else []


def ours(ctx, net, page_kib, scattered):
    """Median GB/s of moving a prompt's KV, CRC included."""
    words = [*nice(), *net.inside(SENDER), ctx.build / "transfer_bench", "--mib", PROMPT_MIB, "--page-kib", page_kib,
             "--rounds", 9, "--pin", f"{ctx.cpus[0]},{ctx.cpus[-1]}", "--no-perftest"]
    if net.veth:
        words += ["--receiver-netns", RECEIVER]
    if scattered:
        words.append("--scattered")
    rows, why = run_lines(words, {"UCX_TLS": net.tls[0]} if net.tls[0] else {}, timeout=120)
    if rows and not why:
        why = spoiled(rows[-1])
    if why or not rows:
        raise Skip(why or "transfer_bench printed nothing")
    ctx.details.append({"net": net.name, **rows[-1]})
    return rows[-1]


def perftest(ctx, net, tls, test, size, program, env):
    """GB/s of one run of ucx_perftest; None when it gives none."""
    count = max(4, int(1e9 / size))
    port = free_port()
    variables = {**os.environ, **env, "UCX_TLS": tls, "UCX_LOG_LEVEL": "error",
                 "UCX_WARN_UNUSED_ENV_VARS": "n"}
    words = [*map(str, program), "-p", str(port), "-f", "-v"]
    server = subprocess.Popen([*nice(), *net.inside(SENDER), "taskset", "-c", str(ctx.cpus[0]), *words], env=variables,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                              preexec_fn=end_with_parent)
    try:
        time.sleep(0.3)
        done = subprocess.run([*nice(), *net.inside(RECEIVER), "taskset", "-c", str(ctx.cpus[-1]), *words, net.host, "-t",
                               test, "-s", str(size), "-n", str(count), "-w", str(max(1, count // 10))], env=variables,
                              capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_group(server)
    for line in reversed(done.stdout.strip().splitlines()):
        try:
            numbers = [float(field) for field in line.split(",")]
        except ValueError:
            continue
        if len(numbers) >= 8:
            # Overall average bandwidth, in MiB/s.
            return numbers[5] * MIB * 1e-9
    return None


def peers_once(ctx, net, size):
    """One turn of the peers, {version and kind of message: GB/s}, each over the best of the transports."""
    found = {}
    for version, (program, env) in setup.ucx_perftest(ctx)[0].items():
        for tls in net.tls[1]:
            for test in TESTS:
                rate = perftest(ctx, net, tls, test, size, program, env)
                ctx.details.append({"net": net.name, "peer": version, "tls": tls, "test": test, "size": size,
                                    "gb_per_s": rate})
                if rate:
                    found[f"{version} {test}"] = max(rate, found.get(f"{version} {test}", 0))
    if not found:
        raise Skip("ucx_perftest gave no figure")
    return found


@dataclasses.dataclass
class Best:
    """The kind of ucx_perftest that has the best median of those that gave a figure in every turn."""
    name: str | None = None
    rates: list = dataclasses.field(default_factory=list)
    missing: list = dataclasses.field(default_factory=list)     # those that did not give one
    remark: str | None = None


def best_peer(peers, kinds):
    whole = {kind: [turn[kind] for turn in peers] for kind in kinds if peers and all(kind in turn for turn in peers)}
    best = Best(missing=[kind for kind in kinds if kind not in whole])
    if whole:
        best.name = max(whole, key=lambda kind: median(whole[kind]))
        best.rates = whole[best.name]
        # In ucp_am_bw the receiver does not copy the bytes anywhere; in tag_bw they land in a buffer, as ours do.
        landing = max((median(rates) for kind, rates in whole.items() if kind.endswith("tag_bw")), default=0)
        best.remark = f"tag_bw, which copies: {landing:.2f}"
    return best


def compare(ctx, name, net, size, page_kib, scattered, want):
    if not ctx.wants(name):
        return
    here, missing = setup.ucx_perftest(ctx)
    found = take_turns(ctx.rounds, lambda: ours(ctx, net, page_kib, scattered), lambda: peers_once(ctx, net, size))
    best = best_peer(found.theirs, [f"{version} {test}" for version in here for test in TESTS])
    over = f"over {found.mine[0]['transports']}" if found.mine else None
    reasons = [f"{version}: {why}" for version, why in missing.items()]
    ctx.turns(name, [m["gb_per_s_median"] for m in found.mine], best.rates, "GB/s", peer=best.name, want=want,
              limit=median([m["memcpy_gb_per_s"] for m in found.mine]), missing=[*missing, *best.missing],
              unfair=ctx.places.shared, error=found.error,
              note="; ".join(filter(None, [over, best.remark, *reasons, found.reason])) or None)


def measure(ctx):
    shared = Net("shared memory", ("", ("posix,self", "posix,cma,self")))
    loopback = Net("TCP loopback", ("tcp,self", ("tcp,self",)))
    veth = Net("TCP over veth", ("tcp,self", ("tcp,self",)), veth=True, host=ADDRESS)
    compare(ctx, "transfer 235 MB of KV, shared memory", shared, LONG, 64, False, 1.15)
    compare(ctx, "transfer 235 MB of KV, TCP loopback", loopback, LONG, 64, False, 1.1)
    for size in SHORT:
        compare(ctx, f"transfer pages of {size >> 10} KiB coalesced, TCP loopback", loopback, size, size >> 10, True, 1.6)
    if ctx.wants("transfer 235 MB of KV, TCP over veth"):
        try:
            with namespaces():
                compare(ctx, "transfer 235 MB of KV, TCP over veth", veth, LONG, 64, False, 1.3)
        except Skip as why:
            ctx.skip("transfer 235 MB of KV, TCP over veth", str(why))
