"""The router's own arguments, and those of workers that it starts."""
import re
import socket
import time

from effects import LONG, MODEL, SLOWLY, Held, generate, greedy, http, wait_for


def all_up(router, count):
    """A router is ready with the first workers that can serve; a choice needs all of them."""
    wait_for(lambda: [w["state"] for w in router.info()["workers"]] == ["up"] * count, 60, "all workers are up")


def settled(router, count):
    """Requests at each worker, once the router's reports agree with what it has given out: `count` in all."""
    def at_workers():
        workers = [w for w in router.info()["workers"] if count == 0 or w["role"] != "prefill"]
        active = [w["active_requests"] for w in workers]
        reported = [w["running_requests"] + w["waiting_requests"] for w in workers]
        return sorted(active) if active == reported and sum(active) == count else None
    return wait_for(at_workers, 60, f"the router knows of {count} requests")


def rises(counts):
    """Whose number rose from one snapshot to the next."""
    return [[b - a for a, b in zip(*pair)].index(1) for pair in zip(counts, counts[1:])]


def test_worker_urls(cluster):
    """With a model too: without the addresses, the router would start a worker of its own."""
    worker = cluster.unified()
    router = cluster.router(*MODEL, workers=[worker])
    assert len(generate(router.url, text="Hello", sampling_params=greedy(4))["output_ids"]) == 4
    assert router.info()["workers"][0]["http_address"] == worker.url.removeprefix("http://")


def test_pd_disaggregation(cluster):
    """A router that starts its workers starts one of each role."""
    router = cluster.start("router", *MODEL, "--pd-disaggregation", "--max-total-tokens", 4096)
    assert len(generate(router.url, text=LONG, sampling_params=greedy(4))["output_ids"]) == 4
    assert sorted(worker["role"] for worker in router.info()["workers"]) == ["decode", "prefill"]


def test_prefill(cluster):
    router, prefill, _ = cluster.pd()
    generate(router.url, text=LONG, sampling_params=greedy(4))
    assert prefill[0].info()["disaggregation"]["started"] == 1


def test_decode(cluster):
    router, _, decode = cluster.pd()
    generate(router.url, text=LONG, sampling_params=greedy(4))
    assert decode[0].info()["disaggregation"]["succeeded"] == 1


def test_prefill_workers(cluster):
    router = cluster.start("router", *MODEL, "--pd-disaggregation", "--prefill-workers", 2, "--max-total-tokens", 4096)
    wait_for(lambda: len(router.info()["internal_states"]) >= 2, 30, "workers")
    assert router.text().count("event=worker_started") == 3, router.text()


def test_data_parallel_size(cluster):
    router = cluster.start("router", *MODEL, "--dp", 2, "--max-total-tokens", 4096)
    assert router.text().count("event=worker_started") == 2 and router.info()["dp_size"] == 2
    for _ in range(4):
        generate(router.url, text="Hello", sampling_params=greedy(4))
    wait_for(lambda: len(router.info()["internal_states"]) == 2, 30, "both are known")


def test_policy(cluster):
    """One worker is held. In turn, every second request goes beside what holds it; by load, none would."""
    workers = [cluster.unified(*SLOWLY, wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    router = cluster.router("--policy", "round_robin", workers=workers)
    all_up(router, 2)
    with Held(router.url):
        generate(router.url, text="Hello", sampling_params=greedy(1))
        settled(router, 1)
        with Held(router.url):
            assert settled(router, 2) == [0, 2]


def test_load_balance_method(cluster):
    """As --policy, of the workers that the router starts."""
    router = cluster.start("router", *MODEL, "--dp", 2, "--load-balance-method", "round_robin",
                           "--max-total-tokens", 16384, *SLOWLY)
    all_up(router, 2)
    with Held(router.url):
        generate(router.url, text="Hello", sampling_params=greedy(1))
        settled(router, 1)
        with Held(router.url):
            assert settled(router, 2) == [0, 2]


def test_prefill_policy(cluster):
    """By load, two idle workers take turns; drawn at random they do not, but for one chance in 500000."""
    router, prefill, _ = cluster.pd(prefills=2, router_args=("--prefill-policy", "random"))
    all_up(router, 3)
    counts = [[worker.info()["disaggregation"]["started"] for worker in prefill]]
    for i in range(20):
        settled(router, 0)
        generate(router.url, input_ids=[10 + i] * 8, sampling_params=greedy(2))
        counts.append([worker.info()["disaggregation"]["started"] for worker in prefill])
    chosen = rises(counts)
    assert any(a == b for a, b in zip(chosen, chosen[1:])), chosen


def test_decode_policy(cluster):
    router, _, _ = cluster.pd(*SLOWLY, decodes=2, router_args=("--decode-policy", "round_robin"))
    all_up(router, 3)
    with Held(router.url):
        generate(router.url, text="Hello", sampling_params=greedy(2))
        settled(router, 1)
        with Held(router.url):
            assert settled(router, 2) == [0, 2]


def ids(kind, count=64):
    """A prompt with nothing in common with those of other kinds."""
    return [300 + kind] + [100 + i for i in range(count - 1)]


def idle_pair(cluster, *words):
    """Two workers behind a router."""
    workers = [cluster.unified(*SLOWLY, wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    router = cluster.router(*words, workers=workers)
    all_up(router, 2)
    return router


def test_cache_threshold(cluster):
    """Half of the prompt is known to one of two idle workers; the other one has its turn."""
    router = idle_pair(cluster, "--cache-threshold", 0.9)
    generate(router.url, input_ids=ids(1, 64), sampling_params=greedy(1))
    settled(router, 0)
    answer = generate(router.url, input_ids=ids(1, 64) + ids(2, 64), sampling_params=greedy(1))
    assert answer["meta_info"]["cached_tokens"] == 0


def test_balance_abs_threshold(cluster):
    """The worker that knows the prompt has one request more than the other: too many."""
    router = idle_pair(cluster, "--balance-abs-threshold", 0)
    with Held(router.url, input_ids=ids(1)):
        settled(router, 1)
        with Held(router.url, input_ids=ids(1)):
            assert settled(router, 2) == [1, 1]


def test_balance_rel_threshold(cluster):
    """Two requests at one worker and one at the other: not three times as many."""
    router = idle_pair(cluster, "--balance-abs-threshold", 0, "--balance-rel-threshold", 3)
    with Held(router.url, input_ids=ids(1)):
        settled(router, 1)
        with Held(router.url, input_ids=ids(2)):
            settled(router, 2)
            with Held(router.url, input_ids=ids(1)):
                assert settled(router, 3) == [1, 2]
                with Held(router.url, input_ids=ids(1)):
                    assert settled(router, 4) == [1, 3]


def test_max_tree_size(cluster):
    """What is remembered of ten prompts is no more than twice the size, whenever the next cut is."""
    router = cluster.router("--max-tree-size", 64, workers=[cluster.unified(), cluster.unified()])
    all_up(router, 2)
    for i in range(10):
        generate(router.url, input_ids=ids(i), sampling_params=greedy(1))
    wait_for(lambda: router.info()["router"]["started"] == 10, 20, "all are counted")
    # Each of the two workers has a tree of its own.
    assert 0 < router.info()["router"]["prefix_tokens"] <= 256


def test_eviction_interval_secs(cluster):
    """Cut once a second, and so much more often than once in twenty; by default it is once in sixty."""
    begin = time.monotonic()
    router = cluster.router("--max-tree-size", 64, "--eviction-interval-secs", 1,
                            workers=[cluster.unified(), cluster.unified()])
    all_up(router, 2)
    for i in range(20):
        generate(router.url, input_ids=ids(i), sampling_params=greedy(1))

    def cut():
        info = router.info()["router"]
        often = info["prefix_trims"] >= 2 and info["prefix_trims"] * 20 > time.monotonic() - begin
        return often and 0 < info["prefix_tokens"] <= 128
    wait_for(cut, 15, "the trees are cut to their size")


def test_request_timeout_secs(cluster):
    """The slow kernels need several seconds for this answer."""
    worker = cluster.unified(*SLOWLY)
    router = cluster.router("--request-timeout-secs", 1, workers=[worker])
    status, answer, _ = http("POST", router.url + "/generate", {"text": "a", "sampling_params": greedy(800)},
                             timeout=300)
    assert status == 504, answer


def test_max_concurrent_requests(cluster):
    worker = cluster.unified(*SLOWLY)
    router = cluster.router("--max-concurrent-requests", 1, "--queue-size", 0, workers=[worker])
    with Held(router.url, 500):
        status, answer, headers = http("POST", router.url + "/generate", {"text": "a", "sampling_params": greedy(1)})
    assert (status, headers["Retry-After"]) == (429, "1"), answer


def test_queue_size(cluster):
    worker = cluster.unified(*SLOWLY)
    router = cluster.router("--max-concurrent-requests", 1, "--queue-size", 0, workers=[worker])
    with Held(router.url, 500):
        status, answer, _ = http("POST", router.url + "/generate", {"text": "a", "sampling_params": greedy(1)})
    assert status == 429, answer


def test_worker_stall_timeout_ms(cluster):
    """A worker that is held says nothing: the router notes after how long it gave up on it."""
    worker = cluster.unified()
    router = cluster.router("--worker-stall-timeout-ms", 6000, workers=[worker])
    worker.suspend()
    try:
        wait_for(lambda: "event=worker_lost" in router.text(), 60, "given up")
    finally:
        worker.kill(18)
    said = re.search(r"event=worker_lost .*has been silent for (\d+) ms", router.text())
    assert said and int(said[1]) >= 6000, router.text()


def test_worker_startup_timeout_secs(cluster):
    """Nobody is there: the router waits a second, then says so. By default it would go on for half an hour."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        router = cluster.start("router", "--worker-urls", f"http://127.0.0.1:{nobody.getsockname()[1]}",
                               "--worker-startup-timeout-secs", 1, wait=False)
        wait_for(lambda: not router.alive(), 12, "the router has given up")
    assert router.process.returncode == 1, router.text()
