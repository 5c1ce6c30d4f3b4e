"""Disaggregated serving: the same bits as one process, whatever the shapes."""
import platform
import random
import re
import signal

import pytest

from conftest import generate, greedy, http, pages_in_use, wait_for


def requests(count, seed, longest=300):
    pick = random.Random(seed)
    made = []
    for i in range(count):
        sampling = {"max_new_tokens": pick.randint(1, 24), "ignore_eos": True, "sampling_seed": pick.getrandbits(40)}
        sampling["temperature"] = pick.choice([0, 0.7, 1.3])
        if pick.random() < 0.3:
            sampling["top_p"] = 0.9
        if pick.random() < 0.3:
            sampling["top_k"] = 20
        if pick.random() < 0.2:
            sampling["repetition_penalty"] = 1.2
        made.append({"input_ids": [pick.randrange(3, 2000) for _ in range(pick.randint(1, longest))],
                     "sampling_params": sampling, "return_logprob": True, "logprob_start_len": 0,
                     "top_logprobs_num": pick.choice([0, 2])})
    return made


def result(answer):
    meta = answer["meta_info"]
    return (answer["output_ids"], meta["output_token_logprobs"], meta["input_token_logprobs"],
            meta.get("output_top_logprobs"), meta["finish_reason"])


def test_two_hundred_requests_are_bit_for_bit_those_of_one_process(cluster):
    asked = requests(200, seed=20)
    unified = cluster.unified("--page-size", "4", "--chunked-prefill-size", "64", "--compute-threads", "1")
    router, prefill, decode = cluster.pd("--page-size", "4", "--chunked-prefill-size", "32", "--compute-threads", "2")
    want = [result(generate(unified.url, **r)) for r in asked]
    got = []
    for start in range(0, len(asked), 25):
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(8) as pool:
            got += list(pool.map(lambda r: result(generate(router.url, **r)), asked[start:start + 25]))
    for i, (a, b) in enumerate(zip(want, got)):
        assert a == b, f"request {i}: {asked[i]}"
    stats = decode[0].info()["disaggregation"]
    assert stats["succeeded"] >= 150 and stats["landed_bytes"] > 0
    assert stats["failed"] == 0
    # Two processes of one machine: decode copies KV out of prefill's pool.
    assert prefill[0].info()["disaggregation"]["sent_from_pool"] > 0
    for worker in prefill + decode:
        wait_for(lambda: pages_in_use(worker) == 0, 2, f"{worker.name} gives its pages back")


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", [16, 4096])
def test_shapes(cluster, page_size, chunk):
    unified = cluster.unified("--page-size", page_size)
    router, _, decode = cluster.pd("--page-size", page_size, "--chunked-prefill-size", chunk,
                                   decode_args=("--disaggregation-grant-window", 1))
    asked = requests(8, seed=page_size * 100 + chunk, longest=700)
    for r in asked:
        assert result(generate(unified.url, **r)) == result(generate(router.url, **r))
    assert decode[0].info()["disaggregation"]["failed"] == 0


def test_decode_reuses_its_own_prefix_cache(cluster):
    router, _, decode = cluster.pd("--page-size", "4")
    prompt = list(range(100, 356))
    first = generate(router.url, input_ids=prompt, sampling_params=greedy(8))
    moved = decode[0].info()["disaggregation"]["landed_bytes"]
    second = generate(router.url, input_ids=prompt, sampling_params=greedy(8))
    assert first["output_ids"] == second["output_ids"]
    again = decode[0].info()["disaggregation"]["landed_bytes"] - moved
    assert again < moved / 8, "only the tail is sent again"


def test_a_hand_off_does_not_wait_for_the_next_prompt(cluster):
    """Pages move and the commit is made while prefill computes somebody else, however long that takes: here for ever."""
    chunk = 256
    steps = 8
    router, (prefill,), _ = cluster.pd("--page-size", "1", "--chunked-prefill-size", chunk, "--disable-radix-cache",
                                       decode_args=("--disaggregation-grant-window", 1),
                                       prefill_args=("--failure-points", f"model.forward={steps}+hang"))
    pick = random.Random(5)
    body = [{"input_ids": [pick.randrange(3, 2000) for _ in range(count)], "sampling_params": greedy(8)}
            for count in (steps * chunk, chunk)]
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(generate, router.url, **body[0])
        wait_for(lambda: pages_in_use(prefill) > 0, 5, "the first prompt is being computed")
        second = pool.submit(http, "POST", router.url + "/generate", body[1], timeout=60)
        try:
            assert len(first.result(60)["output_ids"]) == 8
        finally:
            prefill.kill(signal.SIGKILL)
        assert second.result(60)[0] == 503


def test_a_request_that_ends_with_its_first_token(cluster):
    """No KV moves: neither where that is known before, nor where the token turns out to be the last."""
    router, (prefill,), (decode,) = cluster.pd()
    # Several pages, and units that would be on their way at once.
    prompt = "hello there " * 100
    answer = generate(router.url, text=prompt, sampling_params=greedy(1))
    assert len(answer["output_ids"]) == 1
    assert answer["meta_info"]["finish_reason"]["type"] == "length"
    assert decode.info()["disaggregation"]["started"] == 0
    stops = greedy(8) | {"stop_token_ids": answer["output_ids"]}
    assert generate(router.url, text=prompt, sampling_params=stops)["meta_info"]["finish_reason"]["type"] == "stop"
    assert prefill.info()["disaggregation"]["sent_units"] == 0
    for worker in (prefill, decode):
        wait_for(lambda w=worker: pages_in_use(w) == 0, 2, f"{worker.name} gives its pages back")
    assert decode.info()["disaggregation"]["landed_units"] == 0


@pytest.mark.parametrize("flag,values,both,reason", [
    ("--page-size", ("16", "32"), (), "page_size: prefill has 16, decode has 32"),
    ("--dtype", ("float32", "bfloat16"), (), ': dtype: prefill has "f32", decode has "bf16"'),
    # Keys and values are alike then, but the weights are not.
    ("--dtype", ("float32", "bfloat16"), ("--kv-cache-dtype", "fp8_e4m3"), ': dtype: prefill has "f32", decode has "bf16"'),
    ("--kv-cache-dtype", ("fp8_e4m3", "fp8_e5m2"), (), 'kv_cache_dtype: prefill has "fp8_e4m3", decode has "fp8_e5m2"'),
])
def test_a_pair_that_does_not_fit_is_told_before_the_first_request(cluster, flag, values, both, reason):
    prefill = cluster.prefill(flag, values[0], *both, wait=False)
    decode = cluster.decode(flag, values[1], *both, wait=False)
    prefill.wait_ready()
    decode.wait_ready()
    router = cluster.router(prefill=[prefill], decode=[decode], wait=False).wait_port()
    assert http("GET", router.url + "/health")[0] == 503
    wait_for(lambda: "event=pair_does_not_fit" in router.text(), 10, "the log says it")
    status, answer, _ = http("POST", router.url + "/generate", {"text": "hello", "sampling_params": greedy(64)})
    assert status == 503 and reason in answer["error"]["message"], (answer, router.text())
    # One that fits joins: the others are passed over.
    other = cluster.decode(flag, values[0], *both)
    joined = cluster.router(prefill=[prefill], decode=[decode, other])
    for _ in range(4):
        assert len(generate(joined.url, text="hello", sampling_params=greedy(8))["output_ids"]) == 8
    assert prefill.alive() and decode.alive()
    for worker in (prefill, decode, other):
        wait_for(lambda w=worker: pages_in_use(w) == 0, 10, "all pages back")


def test_the_shortest_context_of_a_pair_is_the_routers(cluster):
    router, _, _ = cluster.pd(decode_args=("--context-length", 256))
    assert "event=context_lengths_differ" in router.text()
    assert http("GET", router.url + "/v1/models")[1]["data"][0]["max_model_len"] == 256
    assert len(generate(router.url, input_ids=[5] * 100, sampling_params=greedy(156))["output_ids"]) == 156
    status, answer, _ = http("POST", router.url + "/generate",
                             {"input_ids": [5] * 100, "sampling_params": greedy(157)})
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer


def shorter_in_its_place(router, worker, start):
    """A worker with a context of 256 where the router knows `worker`, which has ended."""
    worker.kill(signal.SIGTERM)
    worker.process.wait(30)
    shorter = start("--context-length", 256, "--port", worker.ports["port"])
    wait_for(lambda: http("GET", router.url + "/health")[0] == 200, 20, "the router uses it")
    return shorter


def test_an_answer_is_not_cut_by_a_worker_that_came_later(cluster):
    router, prefill, decode = cluster.pd()
    decode.append(shorter_in_its_place(router, decode[0], cluster.decode))
    asked = {"input_ids": [5] * 100, "sampling_params": greedy(157)}
    status, answer, _ = http("POST", router.url + "/generate", asked)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
    assert "= 257 tokens, its --context-length is 256" in answer["error"]["message"], answer
    # A worker with more room serves it.
    longer = cluster.decode()
    both = cluster.router(prefill=prefill, decode=[longer])
    assert len(generate(both.url, **asked)["output_ids"]) == 157
    assert len(generate(router.url, input_ids=[5] * 100, sampling_params=greedy(156))["output_ids"]) == 156
    for worker in (prefill[0], decode[1], longer):
        wait_for(lambda w=worker: pages_in_use(w) == 0, 10, "all pages back")


def test_an_answer_is_not_cut_by_a_prefill_worker_that_came_later(cluster):
    router, prefill, decode = cluster.pd()
    prefill.append(shorter_in_its_place(router, prefill[0], cluster.prefill))
    asked = {"input_ids": [5] * 255, "sampling_params": greedy(20)}
    status, answer, _ = http("POST", router.url + "/generate", asked)
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
    both = cluster.router(prefill=[prefill[1], cluster.prefill()], decode=decode)
    assert http("GET", both.url + "/v1/models")[1]["data"][0]["max_model_len"] == 256
    assert len(generate(both.url, input_ids=[5] * 236, sampling_params=greedy(20))["output_ids"]) == 20


def test_an_answer_ends_where_the_decode_pool_does(cluster):
    """Prefill has more room, and cannot know."""
    router, prefill, decode = cluster.pd(decode_args=("--max-total-tokens", 128))
    got = generate(router.url, input_ids=[5] * 128, sampling_params=greedy(20))
    assert len(got["output_ids"]) == 1 and got["meta_info"]["finish_reason"]["type"] == "length", got
    got = generate(router.url, input_ids=[5] * 120, sampling_params=greedy(20))
    assert len(got["output_ids"]) == 9 and got["meta_info"]["finish_reason"]["type"] == "length", got
    for worker in (prefill[0], decode[0]):
        wait_for(lambda w=worker: pages_in_use(w) == 0, 10, "all pages back")


def test_no_token_asked_for(cluster):
    """Decode may look at the request before or after prefill has ended it: nothing depends on that."""
    router, prefill, decode = cluster.pd()
    unified = cluster.unified()
    body = {"text": "hello there", "sampling_params": greedy(0), "return_logprob": True, "logprob_start_len": 0}
    want = result(generate(unified.url, **body))
    assert want[0] == [] and len(want[2]) > 1 and want[4] == {"type": "length", "length": 0}
    for _ in range(50):
        assert result(generate(router.url, **body)) == want
    for worker in prefill + decode:
        wait_for(lambda w=worker: pages_in_use(w) == 0, 2, "all pages back")


def test_bootstrap_server_apart(cluster):
    bootstrap = cluster.start("bootstrap-server")
    address = f"127.0.0.1:{bootstrap.port}"
    prefill = cluster.prefill("--disaggregation-bootstrap-address", address)
    decode = cluster.decode()
    router = cluster.start("router", "--pd-disaggregation", "--prefill", prefill.url, bootstrap.port,
                           "--decode", decode.url)
    assert len(generate(router.url, text="hello", sampling_params=greedy(6))["output_ids"]) == 6


def test_small_decode_pool_retracts_and_stays_exact(cluster):
    unified = cluster.unified()
    router, _, decode = cluster.pd("--disable-radix-cache", decode_args=(
        "--max-total-tokens", "700", "--num-reserved-decode-tokens", "8"))
    from concurrent.futures import ThreadPoolExecutor
    asked = [{"input_ids": [100 + i] * 40, "return_logprob": True,
              "sampling_params": {**greedy(100), "sampling_seed": i}} for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda r: generate(router.url, timeout=120, **r), asked))
    for r, answer in zip(asked, got):
        want = generate(unified.url, **r)
        assert want["output_ids"] == answer["output_ids"]
        assert want["meta_info"]["output_token_logprobs"] == answer["meta_info"]["output_token_logprobs"]
    wait_for(lambda: pages_in_use(decode[0]) == 0, 2, "decode gives its pages back")


@pytest.mark.parametrize("tls", [None, "tcp,self"])
def test_pages_that_are_too_long_for_one_unit_go_in_parts(cluster, tls):
    """512 tokens of the demo model are 640 KiB: over TCP they are two units of half a page each."""
    unified = cluster.unified("--page-size", "512", "--chunked-prefill-size", "512")
    router, prefill, _ = cluster.pd("--page-size", "512", "--chunked-prefill-size", "512",
                                    env={"UCX_TLS": tls} if tls else {})
    pick = random.Random(24)
    for length in (1500, 700, 1500):
        request = {"input_ids": [pick.randrange(3, 2000) for _ in range(length)], "sampling_params": greedy(9)}
        assert generate(router.url, **request)["output_ids"] == generate(unified.url, **request)["output_ids"]
    sent = prefill[0].info()["disaggregation"]
    pages = 3 + 2 + 3
    assert sent["units_bad_crc"] == 0
    if tls is None:
        # The first prompt may be there before decode has mapped the pages.
        assert pages <= sent["sent_units"] <= 2 * pages
        return
    assert sent["sent_units"] == 2 * pages
    release = [int(part) for part in re.findall(r"[0-9]+", platform.release())[:2]]
    if release >= [6, 5]:
        assert sent["spliced_bytes"] > sent["sent_bytes"] / 2, sent


def test_kv_over_the_network_when_the_user_says_so(cluster):
    unified = cluster.unified()
    router, prefill, _ = cluster.pd(env={"UCX_TLS": "tcp,self"})
    for request in requests(8, seed=21):
        assert result(generate(router.url, **request)) == result(generate(unified.url, **request))
    sent = prefill[0].info()["disaggregation"]
    assert sent["sent_units"] > 0 and sent["sent_in_slots"] == 0 and sent["sent_from_pool"] == 0
