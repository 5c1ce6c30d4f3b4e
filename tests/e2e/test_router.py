"""The router in front of workers that are not what it expects, and its limits."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import pytest

from conftest import BIN, DEMO_MODEL, SLOW, events, generate, greedy, http, wait_for


def test_the_routers_tokenizer_must_be_that_of_the_model(cluster, tmp_path):
    tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = [word for word in vocabulary if word.isalpha() and len(word) > 3][:2]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((DEMO_MODEL / name).read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    worker = cluster.unified()
    ended = subprocess.run([BIN / "router", "--worker-urls", worker.url, "--model-path", tmp_path, "--port", "0"],
                           capture_output=True, text=True, timeout=60 * SLOW)
    assert ended.returncode == 2, ended.stderr
    assert "argument --model-path" in ended.stderr and "another tokenizer" in ended.stderr
    router = cluster.router("--model-path", DEMO_MODEL, workers=[worker])
    assert generate(router.url, text="hello", sampling_params=greedy(4))["output_ids"]


def test_a_worker_that_does_not_answer_is_named(cluster):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        router = cluster.start("router", "--worker-urls", f"http://{address}", wait=False)
        wait_for(lambda: f"event=worker_unreachable worker={address}" in router.text(), 20, "the address in the log")
    locked = cluster.unified("--api-key", "secret")
    router = cluster.start("router", "--worker-urls", locked.url, wait=False)
    wait_for(lambda: "event=worker_unreachable" in router.text() and "401" in router.text(), 20, "the refusal in the log")


def test_a_hung_local_worker_is_replaced(cluster):
    router = cluster.start("router", "--dp", 1, "--model-path", DEMO_MODEL)
    children = pathlib.Path(f"/proc/{router.pid}/task")

    def pids():
        return {int(p) for each in children.iterdir() for p in (each / "children").read_text().split()}

    (hung,) = pids()
    os.kill(hung, signal.SIGSTOP)
    wait_for(lambda: pids() and hung not in pids(), 60, "another process")
    wait_for(lambda: http("GET", router.url + "/health")[0] == 200, 30, "ready again")
    assert len(generate(router.url, text="hello", sampling_params=greedy(4))["output_ids"]) == 4
    assert "event=worker_hung" in router.text()


def test_the_bootstrap_port_of_a_supervised_prefill_worker(cluster):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    words = ("--dp", 1, "--pd-disaggregation", "--model-path", DEMO_MODEL, "--disaggregation-bootstrap-port", port)
    router = cluster.start("router", *words)
    assert http("GET", f"http://127.0.0.1:{port}/health")[0] == 200
    assert len(generate(router.url, text="hello", sampling_params=greedy(4))["output_ids"]) == 4
    ended = subprocess.run([BIN / "router", *map(str, words), "--prefill-workers", "2", "--port", "0"],
                           capture_output=True, text=True, timeout=60 * SLOW)
    assert ended.returncode == 2 and "--disaggregation-bootstrap-port" in ended.stderr, ended.stderr


def test_a_lost_bootstrap_service_stops_nothing(cluster):
    bootstrap = cluster.start("bootstrap-server")
    prefill = cluster.prefill("--disaggregation-bootstrap-address", f"127.0.0.1:{bootstrap.port}")
    decode = cluster.decode()
    bootstrap.kill(signal.SIGKILL)
    bootstrap.process.wait()
    router = cluster.start("router", "--pd-disaggregation", "--prefill", prefill.url, bootstrap.port,
                           "--decode", decode.url)
    for _ in range(3):
        assert len(generate(router.url, text="hello", sampling_params=greedy(8))["output_ids"]) == 8
    assert "event=bootstrap_unavailable" in decode.text()


@pytest.mark.parametrize("words,whole", [((), 0.0), (("--mem-fraction-static", "0.6"), 0.6)])
def test_local_workers_share_the_memory(words, whole):
    out = subprocess.run([BIN / "router", "--dp", "3", "--model-path", DEMO_MODEL, *words, "--dry-run"],
                         capture_output=True, text=True, timeout=60 * SLOW, check=True).stdout
    shares = [float(x) for x in re.findall(r"--mem-fraction-static=(\S+)", out)]
    assert len(shares) == 3 and sum(shares) <= 1, out
    assert not whole or sum(shares) == pytest.approx(whole)


def test_a_missing_model_folder_is_told_once(tmp_path):
    ended = subprocess.run([BIN / "router", "--dp", "2", "--model-path", tmp_path / "none", "--port", "0"],
                           capture_output=True, text=True, timeout=60 * SLOW)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1 and "--model-path" in ended.stderr, ended.stderr


def test_router_limits(cluster):
    worker = cluster.unified()
    body = {"text": "a", "sampling_params": greedy(3000), "stream": True}
    # One runs, none may wait.
    router = cluster.router("--max-concurrent-requests", 1, "--queue-size", 0, workers=[worker])
    stream = events(router.url + "/generate", body)
    next(stream)
    status, answer, headers = http("POST", router.url + "/generate", {"text": "a", "sampling_params": greedy(1)})
    assert (status, answer["error"]["type"], headers["Retry-After"]) == (429, "rate_limit_error", "1")
    stream.close()
    wait_for(lambda: http("POST", router.url + "/generate", {"text": "a", "sampling_params": greedy(1)})[0] == 200, 10,
             "room again after the client went away")
    # And a request may only take so long.
    hurried = cluster.router("--request-timeout-secs", 1, workers=[worker])
    worker.suspend()
    try:
        status, answer, _ = http("POST", hurried.url + "/generate", {"text": "a", "sampling_params": greedy(4)})
    finally:
        worker.kill(signal.SIGCONT)
    assert status in (503, 504), answer


def talk(router, turns=3, talks=3):
    """cached_tokens of talks that take turns and grow by 64 ids each time: one list per talk."""
    prompts = [[300 + i] + [100 + j for j in range(63)] for i in range(talks)]
    cached = [[] for _ in prompts]
    for turn in range(turns):
        for i, prompt in enumerate(prompts):
            answer = generate(router.url, input_ids=prompt, sampling_params=greedy(2))
            cached[i].append(answer["meta_info"]["cached_tokens"])
            prompts[i] = prompt + [400 + turn] + [200 + j for j in range(63)]
    return cached


def all_up(router, count):
    wait_for(lambda: [w["state"] for w in router.info()["workers"]] == ["up"] * count, 60, "all workers are up")


@pytest.mark.parametrize("words,follows", [((), True), (("--policy", "round_robin"), False)])
def test_a_prompt_goes_where_its_beginning_is_cached(cluster, words, follows):
    workers = [cluster.unified(wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    router = cluster.router(*words, workers=workers)
    all_up(router, 2)
    for cached in talk(router):
        assert cached[0] == 0
        if follows:
            assert cached[1] >= 64 and cached[2] >= 128, cached
        else:
            # Three talks in turn on two workers: each turn of a talk is where the one before was not.
            assert cached[1] == 0 and 64 <= cached[2] < 128, cached


def test_both_halves_of_a_pair_are_chosen_by_what_they_have(cluster):
    router, prefill, decode = cluster.pd(prefills=2, decodes=2)
    all_up(router, 4)
    for cached in talk(router):
        assert cached[0] == 0 and cached[1] >= 64 and cached[2] >= 128, cached
    # Every worker has its share of the talks.
    assert all(p.info()["disaggregation"]["started"] > 0 for p in prefill)
    assert all(d.info()["disaggregation"]["succeeded"] > 0 for d in decode)


def test_what_a_lost_worker_was_sent_is_forgotten(cluster):
    """With one worker there would be nothing to choose, and so nothing to remember."""
    workers = [cluster.unified(), cluster.unified()]
    router = cluster.router(workers=workers)
    all_up(router, 2)
    generate(router.url, input_ids=[100 + i for i in range(64)], sampling_params=greedy(2))
    wait_for(lambda: router.info()["router"]["prefix_tokens"] == 64, 20, "the prompt is remembered")
    for worker in workers:
        worker.kill(signal.SIGKILL)
        worker.process.wait()
    wait_for(lambda: router.info()["router"]["prefix_tokens"] == 0, 20, "nothing is remembered")
