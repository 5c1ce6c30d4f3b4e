"""The manifests: rendered, valid, and with command lines that our programs take."""
import json
import pathlib
import shutil
import subprocess
import sys

import pytest
import yaml

from conftest import BIN, DEMO_MODEL, ROOT, generate, greedy

K8S = ROOT / "deploy" / "k8s"
SETS = {"base": K8S / "base", **{p.name: p for p in sorted((K8S / "overlays").iterdir())}}
# Renders of one run; a render is a pure function of the folder.
RENDERED = {}


def rendered(name):
    if shutil.which("kubectl") is None:
        pytest.skip("skipped: kubectl is not installed")
    if name not in RENDERED:
        done = subprocess.run(["kubectl", "kustomize", str(SETS[name])], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        RENDERED[name] = done.stdout
    return [each for each in yaml.safe_load_all(RENDERED[name]) if each]


def workloads(name):
    return [each for each in rendered(name) if each["kind"] in ("Deployment", "StatefulSet")]


def containers(name):
    return [(w["metadata"]["name"], w["spec"]["template"]["spec"], c)
            for w in workloads(name) for c in w["spec"]["template"]["spec"]["containers"]]


@pytest.mark.parametrize("name", SETS)
def test_manifests_pass_the_schema(name, tmp_path):
    rendered(name)
    tool = pathlib.Path(sys.executable).parent / "kubernetes-validate"
    if not tool.exists():
        pytest.skip("skipped: kubernetes-validate is not installed")
    file = tmp_path / "all.yaml"
    file.write_text(RENDERED[name])
    done = subprocess.run([str(tool), "--strict", str(file)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SETS)
def test_our_programs_take_the_command_lines(name, tmp_path):
    """Also with the shared configuration file: a key that a program does not know would be an error."""
    maps = {each["metadata"]["name"]: each["data"] for each in rendered(name) if each["kind"] == "ConfigMap"}
    seen = set()
    for owner, pod, container in containers(name):
        folders = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        words = [*container["command"], *container.get("args", [])]
        for volume in pod["volumes"]:
            if "configMap" not in volume or volume["name"] not in folders:
                continue
            for key, text in maps[volume["configMap"]["name"]].items():
                file = tmp_path / key
                file.write_text(text)
                words = [w.replace(f"{folders[volume['name']]}/{key}", str(file)) for w in words]
        words = [w.replace("$(POD_IP)", "10.0.0.9") for w in words]
        assert "$(" not in " ".join(words), words
        done = subprocess.run([str(BIN / words[0]), *words[1:], "--dump-config"], capture_output=True, text=True,
                              timeout=30)
        assert done.returncode == 0, f"{owner}: {done.stderr}"
        resolved = json.loads(done.stdout)
        assert resolved["host"] == "0.0.0.0", f"{owner} would listen for itself only"
        # The port that probes and services name is the one that the program opens.
        ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        wanted = resolved["disaggregation_bootstrap_port"] if words[0] == "bootstrap-server" else resolved["port"]
        assert wanted in ports.values(), (owner, ports)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert ports[container[probe]["httpGet"]["port"]] == wanted, (owner, probe)
            alive = words[0] == "router" and probe != "readinessProbe"
            assert container[probe]["httpGet"]["path"] == ("/liveness" if alive else "/health"), (owner, probe)
        if words[0] == "bootstrap-server":
            seen.add(words[0])
            continue  # has no requests that would have to end
        grace = pod["terminationGracePeriodSeconds"]
        assert grace > resolved["shutdown_grace_period_secs"], f"{owner} is killed before it has drained"
        seen.add(words[0])
    assert "router" in seen
    if name in ("base", "pd"):
        assert seen == {"router", "prefill-server", "decode-server", "bootstrap-server"}


@pytest.mark.parametrize("name", [name for name in SETS if name != "dp4"])
def test_the_pods_find_each_other(cluster, name):
    """The same command lines on this machine: what the manifests' names stand for becomes addresses of the loopback."""
    addresses, router = {}, None
    order = {"bootstrap-server": 0, "prefill-server": 1, "decode-server": 1, "router": 2}
    for workload in sorted(workloads(name), key=lambda w: order[w["spec"]["template"]["spec"]["containers"][0]["command"][0]]):
        container = workload["spec"]["template"]["spec"]["containers"][0]
        program, own = container["command"][0], workload["metadata"]["name"]
        words = [w for w in container["args"] if not w.startswith(("--config", "--host", "--port=", "--disaggregation-bootstrap-port"))]
        for known, address in addresses.items():
            words = [w.replace(known, address) for w in words]
        words = [w.replace("$(POD_IP)", "127.0.0.1") for w in words]
        assert not any("tandem-" in w for w in words), f"{own} names what is not there: {words}"
        if program.endswith(("prefill-server", "decode-server")):
            words += ["--page-size=16", f"--model-path={DEMO_MODEL}"]
        for pod in range(workload["spec"]["replicas"]):
            started = cluster.start(program, *words)
            if program == "bootstrap-server":
                addresses[f"{own}:8998"] = f"127.0.0.1:{started.port}"
            elif program == "router":
                router = started
            else:
                addresses[f"{own}-{pod}.{own}:30000"] = f"127.0.0.1:{started.port}"
    for _ in range(4):
        assert len(generate(router.url, text="hello", sampling_params=greedy(8))["output_ids"]) == 8


@pytest.mark.parametrize("name", SETS)
def test_pods_are_confined(name):
    for owner, pod, container in containers(name):
        assert pod["securityContext"]["runAsNonRoot"] is True, owner
        assert pod["securityContext"]["runAsUser"] != 0, owner
        assert pod["automountServiceAccountToken"] is False, owner
        inner = container["securityContext"]
        assert inner["allowPrivilegeEscalation"] is False, owner
        assert inner["readOnlyRootFilesystem"] is True, owner
        assert inner["capabilities"]["drop"] == ["ALL"], owner
        assert container["resources"]["limits"]["memory"], owner
        for mount in container["volumeMounts"]:
            if mount["name"] in ("models", "config"):
                assert mount["readOnly"] is True, (owner, mount)


@pytest.mark.parametrize("name", SETS)
def test_services_and_policies_select_pods(name):
    labels = [w["spec"]["template"]["metadata"]["labels"] for w in workloads(name)]

    def hits(selector):
        return [l for l in labels if all(l.get(k) == v for k, v in selector.items())]

    services = [each for each in rendered(name) if each["kind"] == "Service"]
    assert services
    for service in services:
        assert len(hits(service["spec"]["selector"])) == 1, service["metadata"]["name"]
    policies = [each for each in rendered(name) if each["kind"] == "NetworkPolicy"]
    guarded = [p for p in policies if set(p["spec"]["policyTypes"]) == {"Ingress", "Egress"}]
    assert guarded, "nothing limits what goes in and out"
    for each in labels:
        assert any(each in hits(p["spec"]["podSelector"]["matchLabels"]) for p in guarded), each
    # Peers by name: a URL of the router leads to a service of the same set.
    names = {service["metadata"]["name"] for service in services}
    for owner, _, container in containers(name):
        for word in container.get("args", []):
            if "http://" in word:
                host = word.split("http://")[1].split(":")[0]
                assert host.split(".")[-1] in names, (owner, word)
