"""What a client sees when a process dies, hangs or the client itself leaves."""
import http.client
import json
import os
import pathlib
import signal
import threading
import time
import urllib.error

import pytest

from conftest import (DEMO_MODEL, SLOW, by_url, events, generate, greedy, our_processes, pages_in_use, serving,
                      wait_for)

TOKENS = 1500
BODY = {"input_ids": [5, 6, 7, 8], "stream": True,
        "sampling_params": {"temperature": 1.0, "sampling_seed": 99, "max_new_tokens": TOKENS, "ignore_eos": True}}


class Stream:
    """Reads a streamed /generate on a thread and notes when what came."""

    def __init__(self, url, body=None):
        self.ids, self.error, self.finish, self.done = [], None, None, False
        self.longest_gap = 0.0
        self.changed = threading.Event()
        self.thread = threading.Thread(target=self.read, args=(url, body or BODY), daemon=True)
        self.thread.start()

    def read(self, url, body):
        last = time.monotonic()
        try:
            for event in events(url + "/generate", body):
                now = time.monotonic()
                self.longest_gap = max(self.longest_gap, now - last)
                last = now
                if event == "[DONE]":
                    self.done = True
                elif "error" in event:
                    self.error = event["error"]
                else:
                    self.ids = event["output_ids"]
                    self.finish = event["meta_info"]["finish_reason"]
                self.changed.set()
        except urllib.error.HTTPError as problem:
            self.error = f"{problem.code}: {problem.read().decode()}"
        except (OSError, http.client.HTTPException) as problem:
            self.error = self.error or problem

    def wait_tokens(self, count):
        wait_for(lambda: len(self.ids) >= count or not self.thread.is_alive(), 30, f"{count} tokens")
        assert len(self.ids) < TOKENS, "the stream ended before the fault"

    def join(self):
        self.thread.join(90 * SLOW)
        assert not self.thread.is_alive(), "the stream hangs"


def undisturbed(cluster):
    server = cluster.unified()
    ids = generate(server.url, **{**BODY, "stream": False})["output_ids"]
    assert len(ids) == TOKENS
    return ids


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_unified_worker_lost_in_mid_stream(cluster, how):
    want = undisturbed(cluster)
    workers = [cluster.unified(), cluster.unified()]
    router = cluster.router(workers=workers)
    stream = Stream(router.url)
    victim = by_url(workers, wait_for(lambda: serving(router, "null"), 10, "it runs")[0])
    stream.wait_tokens(50)
    victim.kill(getattr(signal, how))
    stream.join()
    assert stream.error is None, stream.error
    assert stream.done
    assert stream.ids == want
    assert stream.longest_gap < 5 * SLOW
    assert router.info()["router"]["differing_tokens"] == 0


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_decode_lost_in_mid_stream(cluster, how):
    want = undisturbed(cluster)
    router, prefill, decode = cluster.pd(decodes=2)
    stream = Stream(router.url)
    victim = by_url(decode, wait_for(lambda: serving(router, "decode"), 10, "it runs")[0])
    stream.wait_tokens(50)
    victim.kill(getattr(signal, how))
    stream.join()
    assert stream.error is None, stream.error
    assert stream.done
    assert stream.ids == want
    assert stream.longest_gap < 5 * SLOW


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_prefill_lost_in_mid_stream(cluster, how):
    want = undisturbed(cluster)
    router, prefill, decode = cluster.pd(prefills=2)
    stream = Stream(router.url)
    victim = by_url(prefill, wait_for(lambda: serving(router, "prefill"), 10, "it runs")[0])
    stream.wait_tokens(50)
    victim.kill(getattr(signal, how))
    # The next requests need the other prefill worker.
    later = Stream(router.url)
    for one in (stream, later):
        one.join()
        assert one.error is None, one.error
        assert one.done
        assert one.ids == want
        assert one.longest_gap < 5 * SLOW


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_prefill_lost_while_it_computes(cluster, how):
    prompt = {"input_ids": [7 + i % 900 for i in range(700)], "stream": True, "sampling_params": greedy(200)}
    want = generate(cluster.unified("--kernel-family", "reference").url, timeout=120,
                    **{**prompt, "stream": False})["output_ids"]
    # The reference kernels are slow enough to be caught in the middle of a prompt.
    router, prefill, decode = cluster.pd("--kernel-family", "reference", "--chunked-prefill-size", "64", prefills=2)
    stream = Stream(router.url, prompt)
    busy = wait_for(lambda: serving(router, "prefill"), 10, "prefill runs")
    time.sleep(0.05)
    by_url(prefill, busy[0]).kill(getattr(signal, how))
    stream.join()
    assert stream.error is None, stream.error
    assert stream.done
    assert stream.ids == want


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("role", ["unified", "prefill", "decode"])
def test_without_a_second_one_there_is_a_clean_error(cluster, role, how):
    if role == "unified":
        workers = [cluster.unified()]
        router = cluster.router(workers=workers)
        victim = workers[0]
    else:
        router, prefill, decode = cluster.pd()
        victim = decode[0] if role == "decode" else prefill[0]
    stream = Stream(router.url)
    stream.wait_tokens(20)
    began = time.monotonic()
    victim.kill(getattr(signal, how))
    if role == "prefill":
        # The running stream needs prefill no more; a new one does.
        fresh = Stream(router.url)
        fresh.join()
        assert fresh.error is not None and not fresh.done
        assert time.monotonic() - began < 5 * SLOW
        stream.join()
        assert stream.error is None and len(stream.ids) == TOKENS
        return
    stream.join()
    assert time.monotonic() - began < 5 * SLOW
    assert isinstance(stream.error, dict), stream.error
    assert stream.error["message"]
    assert not stream.done, "an error is no normal end"
    status_error = Stream(router.url)
    status_error.join()
    assert status_error.error is not None and not status_error.ids


def test_a_stopped_worker_that_wakes_up_serves_again(cluster):
    want = undisturbed(cluster)
    workers = [cluster.unified(), cluster.unified()]
    router = cluster.router(workers=workers)
    stream = Stream(router.url)
    victim = by_url(workers, wait_for(lambda: serving(router, "null"), 10, "it runs")[0])
    stream.wait_tokens(30)
    victim.kill(signal.SIGSTOP)
    stream.join()
    assert stream.ids == want
    victim.kill(signal.SIGCONT)
    wait_for(lambda: all(w["state"] == "up" for w in router.info()["workers"]), 10, "it is taken back")
    wait_for(lambda: pages_in_use(victim) == 0, 2, "it gave up what it held")
    again = Stream(router.url)
    again.join()
    assert again.ids == want


def abandon(url, body, after_events):
    """Opens a stream, reads some of it and leaves without a word."""
    host = url.split("//")[1]
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    seen = 0
    while seen < after_events:
        if response.readline().startswith(b"data: "):
            seen += 1
    response.close()
    connection.close()


@pytest.mark.parametrize("shape", ["unified", "routed", "pd"])
def test_client_that_leaves_costs_no_page(cluster, shape):
    body = {**BODY, "sampling_params": {**BODY["sampling_params"], "max_new_tokens": 3900}}
    if shape == "unified":
        workers = [cluster.unified()]
        front = workers[0]
    elif shape == "routed":
        workers = [cluster.unified()]
        front = cluster.router(workers=workers)
    else:
        front, prefill, decode = cluster.pd()
        workers = prefill + decode
    for _ in range(5):
        abandon(front.url, body, 10)
    began = time.monotonic()
    for worker in workers:
        wait_for(lambda: pages_in_use(worker) == 0, 1, f"pages of {worker.name} come back")
    assert time.monotonic() - began < 1.5 * SLOW
    # And it serves on.
    assert len(generate(front.url, text="hi", sampling_params=greedy(4))["output_ids"]) == 4


def test_router_killed_takes_its_own_workers_down(cluster):
    router = cluster.start("router", "--model-path", DEMO_MODEL, "--dp", "2")
    mine = our_processes()
    assert len(mine) >= 3
    router.kill(signal.SIGKILL)
    router.process.wait()
    wait_for(lambda: len(our_processes()) <= len(mine) - 3, 5, "the workers go with it")


def test_router_killed_frees_foreign_workers(cluster):
    worker = cluster.unified()
    router = cluster.router(workers=[worker])
    stream = Stream(router.url)
    stream.wait_tokens(10)
    router.kill(signal.SIGKILL)
    stream.join()
    wait_for(lambda: pages_in_use(worker) == 0, 5, "the worker gives up what the dead router had asked for")


def test_supervised_worker_is_started_again(cluster):
    router = cluster.start("router", "--model-path", DEMO_MODEL, "--dp", "1")
    first = generate(router.url, text="hello", sampling_params=greedy(8))["output_ids"]
    old = router.info()["workers"][0]["incarnation"]
    os.kill(next(iter(children(router.pid))), signal.SIGKILL)

    def lives_again():
        workers = router.info()["workers"]
        return workers and workers[0]["state"] == "up" and workers[0]["incarnation"] != old

    wait_for(lives_again, 10, "a new life")
    assert generate(router.url, text="hello", sampling_params=greedy(8))["output_ids"] == first


def children(pid):
    return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()]


def test_drain_on_sigterm_loses_nothing(cluster):
    workers = [cluster.unified(), cluster.unified()]
    router = cluster.router(workers=workers)
    streams = [Stream(router.url) for _ in range(4)]
    for stream in streams:
        stream.wait_tokens(5)
    workers[0].kill(signal.SIGTERM)
    for stream in streams:
        stream.join()
        assert stream.error is None and stream.done and len(stream.ids) == TOKENS


def test_a_signal_ends_a_start_while_weights_are_read(cluster):
    # Every piece of 16 rows takes a second: the whole would take minutes.
    server = cluster.start("prefill-server", "--model-path", DEMO_MODEL, "--quantization", "w8a8_int8",
                           "--failure-points", "model.read=sleep(1000)", wait=False)
    wait_for(lambda: "event=plan" in server.text(), 30, "the weights are being read")
    assert server.alive()
    server.kill(signal.SIGTERM)
    assert server.process.wait(timeout=20) == 0
    assert "event=stop_requested" in server.text()
    assert "event=ready" not in server.text()
