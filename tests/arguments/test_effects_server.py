"""Ports, keys, limits, and the arguments that steer the program itself."""
import json
import pathlib
import re
import socket
from http.client import HTTPException

from effects import MODEL, PROGRAMS, SLOWLY, Held, Taken, dumped, ended_or_listens, greedy, http, threads_named, wait_for


def connects(host, port):
    try:
        socket.create_connection((host, port), timeout=5).close()
        return True
    except OSError:
        return False


def test_host(cluster):
    server = cluster.start("bootstrap-server", "--host", "127.0.0.2", wait=False)
    assert ended_or_listens(server) is None, server.text()
    port = json.loads(server.port_file.read_text())["port"]
    assert connects("127.0.0.2", port) and not connects("127.0.0.1", port)


def test_port(cluster):
    with Taken() as port:
        refused = cluster.start("bootstrap-server", "--port", port, wait=False)
        assert ended_or_listens(refused) == 1, refused.text()
        assert f"127.0.0.1:{port}" in refused.text() and "--port" in refused.text()
    free = cluster.start("bootstrap-server", "--port", 0)
    assert free.port not in (0, 8998, 30000) and http("GET", free.url + "/health")[0] == 200


def test_port_file(cluster):
    path = pathlib.Path(cluster.folder) / "ports.json"
    server = cluster.start("bootstrap-server", "--port", 0, "--port-file", path, port_file=False, wait=False)
    wait_for(lambda: "event=ready" in server.text() or not server.alive(), 60, "ready")
    assert path.exists(), server.text()
    assert connects("127.0.0.1", json.loads(path.read_text())["port"])


def test_grpc_port(cluster):
    server = cluster.unified("--grpc-port", 0)
    assert server.ports["grpc_port"] != server.ports["port"]
    assert connects("127.0.0.1", server.ports["grpc_port"]) and connects("127.0.0.1", server.ports["port"])


def test_api_key(cluster):
    server = cluster.unified("--api-key", "hush-hush")
    key = {"Authorization": "Bearer hush-hush"}
    assert http("GET", server.url + "/v1/models")[0] == 401
    assert http("GET", server.url + "/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401
    assert http("GET", server.url + "/v1/models", headers=key)[0] == 200
    assert http("GET", server.url + "/health")[0] == 200, "health checks stay open"
    assert "hush" not in server.text() + json.dumps(http("GET", server.url + "/get_server_info", headers=key)[1])


def test_served_model_name(cluster):
    server = cluster.unified("--served-model-name", "mine")
    assert http("GET", server.url + "/v1/models")[1]["data"][0]["id"] == "mine"
    answer = http("POST", server.url + "/v1/completions", {"model": "mine", "prompt": "Hello", "max_tokens": 1})[1]
    assert answer["model"] == "mine"


def test_max_body_bytes(cluster):
    server = cluster.unified("--max-body-bytes", 2000)
    assert http("POST", server.url + "/generate", {"text": "a" * 1000, "sampling_params": greedy(1)})[0] == 200
    assert http("POST", server.url + "/generate", {"text": "a" * 3000, "sampling_params": greedy(1)})[0] == 413
    bootstrap = cluster.start("bootstrap-server", "--max-body-bytes", 2000)
    assert http("PUT", bootstrap.url + "/route", b" " * 3000)[0] == 413


def test_http_threads(cluster):
    assert threads_named(cluster.unified("--http-threads", 5), "http") == 5
    assert threads_named(cluster.start("bootstrap-server", "--http-threads", 3), "bootstrap") == 3


def test_shutdown_grace_period_secs(cluster):
    """No grace: what runs is cut on SIGTERM. With the default it would end by its length."""
    server = cluster.unified("--shutdown-grace-period-secs", 0, *SLOWLY)
    stream = Held(server.url, 500).stream
    server.kill(15)
    ended_well = False
    try:
        for event in stream:
            if event != "[DONE]" and "error" not in event:
                finish = event["meta_info"].get("finish_reason")
                ended_well = ended_well or bool(finish and finish["type"] == "length")
    except (OSError, ValueError, HTTPException):
        pass
    assert not ended_well
    assert server.process.wait(timeout=60) == 0


def test_config(cluster, run, tmp_path):
    config = tmp_path / "all.yaml"
    config.write_text("page_size: 32\nserved-model-name: from-file\nworker-urls: [http://a:1]\n")
    server = cluster.unified("--config", config)
    info = server.info()
    assert (info["page_size"], info["argument_sources"]["page_size"]) == (32, "file")
    assert http("GET", server.url + "/v1/models")[1]["data"][0]["id"] == "from-file"
    assert dumped(run, "prefill-server", *MODEL, "--config", config, "--page-size", 8)["page_size"] == 8
    config.write_text("page-sise: 32\n")
    code, _, err = run("prefill-server", *MODEL, "--config", config, "--dry-run")
    assert code == 2 and f"{config}:1" in err and "page-sise" in err, err


def test_help(run):
    for program in PROGRAMS:
        for word in ("--help", "-h"):
            code, out, err = run(program, word)
            assert (code, err) == (0, "") and out.startswith(f"usage: {program} ") and "--log-level" in out


def test_help_all(run):
    for program in PROGRAMS:
        code, out, err = run(program, "--help-all")
        assert (code, err) == (0, "") and out.startswith(f"usage: {program} ") and "--log-level" in out


def test_version(run):
    for program in PROGRAMS:
        code, out, _ = run(program, "--version")
        assert code == 0 and re.fullmatch(rf"{program} \d+\.\d+\.\d+\n", out), out


def ends_by_itself(cluster, *words):
    """Output of a program that must end without listening (it is stopped in the end when it does not)."""
    program = cluster.start(*words, "--port", 0, wait=False)
    assert ended_or_listens(program) == 0, program.text()[-1000:]
    return program.text()


def test_dump_config(cluster):
    shown = json.loads(ends_by_itself(cluster, "bootstrap-server", "--dump-config"))
    assert shown["port"] == 0 and shown["argument_sources"]["port"] == "cli"


def test_dry_run(cluster):
    assert "KV pool" in ends_by_itself(cluster, "prefill-server", *MODEL, "--dry-run")
    assert ends_by_itself(cluster, "bootstrap-server", "--dry-run") == ""


def test_explain(cluster):
    text = ends_by_itself(cluster, "prefill-server", *MODEL, "--page-size", 32, "--explain", "page-size")
    assert "--page-size = 32 (cli: --page-size" in text, text
