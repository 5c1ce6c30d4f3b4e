"""The native API of a stand-alone server: exact against the golden models, with every way of asking."""
import json
import os
import random

import pytest

from conftest import DEMO_MODEL, events, generate, golden, greedy, http, wait_for

GOLDEN_MODELS = ["llama", "qwen2", "qwen3"]


def agree(case, ids):
    """Greedy ids equal up to the first step whose margin is within rounding."""
    for step, (want, got, margin) in enumerate(zip(case["output_ids"], ids, case["margin"])):
        if want != got:
            assert margin < 0.001, f"step {step}: {got} instead of {want}, margin {margin}"
            return
    assert len(ids) == len(case["output_ids"])


@pytest.mark.parametrize("model", GOLDEN_MODELS)
@pytest.mark.parametrize("family", ["reference", "auto"])
def test_golden_text_requests(cluster, model, family):
    folder = golden(f"models/{model}")
    cases = json.loads((folder / "e2e.json").read_text())
    server = cluster.unified("--dtype", "float32", "--kernel-family", family, model=folder)
    for case in cases["cases"]:
        if case["kind"] == "completion":
            answer = generate(server.url, text=case["prompt"], return_logprob=True, sampling_params={
                "temperature": 0, "max_new_tokens": case["max_tokens"], "stop_token_ids": cases["stop_token_ids"]})
            meta = answer["meta_info"]
            agree(case, answer["output_ids"])
            assert meta["prompt_tokens"] == case["prompt_tokens"]
            if answer["output_ids"] == case["output_ids"]:
                assert answer["text"] == case["text"]
                assert meta["finish_reason"]["type"] == case["finish_reason"]
                assert meta["completion_tokens"] == case["completion_tokens"]
            for want, (got, _, _) in zip(case["logprobs"], meta["output_token_logprobs"]):
                assert abs(want - got) < 0.002
        else:
            status, answer, _ = http("POST", server.url + "/v1/chat/completions", {
                "model": str(folder), "messages": case["messages"], "temperature": 0,
                "max_tokens": case["max_tokens"], "stop_token_ids": cases["stop_token_ids"]})
            assert status == 200, answer
            assert answer["usage"]["prompt_tokens"] == case["prompt_tokens"]
            if min(case["margin"]) > 0.001:
                assert answer["choices"][0]["message"]["content"] == case["text"]
                assert answer["choices"][0]["finish_reason"] == case["finish_reason"]


def test_demo_model_answers_as_its_reference(cluster):
    server = cluster.unified("--dtype", "float32")
    questions = [json.loads(line) for line in (DEMO_MODEL / "eval.jsonl").read_text().splitlines()]
    answers = [json.loads(line) for line in (DEMO_MODEL / "eval_reference.jsonl").read_text().splitlines()]
    pick = random.Random(5).sample(range(len(questions)), 40)
    for i in pick:
        status, got, _ = http("POST", server.url + "/v1/chat/completions", {
            "model": "default", "messages": questions[i]["messages"], "temperature": 0, "max_tokens": 128})
        assert status == 200, got
        assert got["choices"][0]["message"]["content"] == answers[i]["text"], questions[i]
        assert got["usage"]["prompt_tokens"] == answers[i]["prompt_tokens"]


def test_streaming_gives_the_same_text(cluster):
    server = cluster.unified()
    body = {"text": "What does --dp-size do?", "sampling_params": greedy(40)}
    whole = generate(server.url, **body)
    chunks = list(events(server.url + "/generate", {**body, "stream": True}))
    assert chunks[-1] == "[DONE]"
    texts = [c["text"] for c in chunks[:-1]]
    assert texts[-1] == whole["text"]
    assert all(b.startswith(a) for a, b in zip(texts, texts[1:])), "cumulative text"
    assert chunks[-2]["output_ids"] == whole["output_ids"]
    assert [c["meta_info"]["finish_reason"] for c in chunks[:-2]] == [None] * (len(chunks) - 2)


def test_batches_and_ids_and_logprobs(cluster):
    server = cluster.unified()
    ids = http("POST", server.url + "/tokenize", {"prompt": "Reverse: a b c"})[1]["tokens"]
    one = generate(server.url, input_ids=ids, sampling_params=greedy(8), return_logprob=True, logprob_start_len=0,
                   top_logprobs_num=3)
    meta = one["meta_info"]
    assert len(meta["input_token_logprobs"]) == len(ids)
    assert meta["input_token_logprobs"][0][0] is None
    assert [t for _, t, _ in meta["input_token_logprobs"]] == ids
    assert [t for _, t, _ in meta["output_token_logprobs"]] == one["output_ids"]
    for chosen, top in zip(meta["output_token_logprobs"], meta["output_top_logprobs"]):
        assert len(top) == 3 and top[0][1] == chosen[1] and top[0][0] == chosen[0]
        assert top[0][0] >= top[1][0] >= top[2][0]
    many = generate(server.url, input_ids=[ids, ids[:3]], sampling_params=[greedy(8), greedy(2)])
    assert many[0]["output_ids"] == one["output_ids"]
    assert len(many[1]["output_ids"]) == 2
    several = generate(server.url, input_ids=ids, sampling_params={**greedy(4), "n": 3})
    assert [s["output_ids"] for s in several] == [one["output_ids"][:4]] * 3


def test_seeds_decide_alone(cluster):
    server = cluster.unified("--random-seed", "7")
    ask = {"text": "Once", "sampling_params": {"temperature": 1.5, "max_new_tokens": 24, "ignore_eos": True}}
    first = generate(server.url, **{**ask, "sampling_params": {**ask["sampling_params"], "sampling_seed": 11}})
    again = generate(server.url, **{**ask, "sampling_params": {**ask["sampling_params"], "sampling_seed": 11}})
    other = generate(server.url, **{**ask, "sampling_params": {**ask["sampling_params"], "sampling_seed": 12}})
    assert first["output_ids"] == again["output_ids"] != other["output_ids"]


def test_prefix_cache_is_used_and_can_be_flushed(cluster):
    server = cluster.unified("--page-size", "4", "--enable-cache-report")
    prompt = list(range(100, 164))
    cold = generate(server.url, input_ids=prompt, sampling_params=greedy(8), return_logprob=True)
    warm = generate(server.url, input_ids=prompt, sampling_params=greedy(8), return_logprob=True)
    assert cold["meta_info"]["cached_tokens"] == 0
    assert warm["meta_info"]["cached_tokens"] >= 60
    assert cold["output_ids"] == warm["output_ids"]
    assert cold["meta_info"]["output_token_logprobs"] == warm["meta_info"]["output_token_logprobs"]
    assert http("POST", server.url + "/flush_cache")[0] == 200
    assert generate(server.url, input_ids=prompt, sampling_params=greedy(8))["meta_info"]["cached_tokens"] == 0
    assert server.info()["internal_states"][0]["used_pages"] == 0


def test_no_prefix_cache_when_told_so(cluster):
    server = cluster.unified("--disable-radix-cache")
    prompt = list(range(100, 164))
    for _ in range(2):
        answer = generate(server.url, input_ids=prompt, sampling_params=greedy(4))
        assert answer["meta_info"]["cached_tokens"] == 0


def test_abort_by_rid(cluster):
    server = cluster.unified()
    stream = events(server.url + "/generate", {"text": "Once", "rid": "abc", "stream": True,
                                               "sampling_params": greedy(4000)})
    next(stream)
    assert http("POST", server.url + "/abort_request", {"rid": "abc"})[0] == 200
    last = list(stream)
    assert len(last) < 3900
    assert server.alive()


def test_metrics_and_info(cluster):
    server = cluster.unified("--enable-metrics", "--served-model-name", "demo", "--max-total-tokens", "4096")
    generate(server.url, text="hello", sampling_params=greedy(4))
    text = http("GET", server.url + "/metrics")[1]
    for name in ("sglang:num_running_reqs", "sglang:prompt_tokens_total", "sglang:generation_tokens_total",
                 "sglang:time_to_first_token_seconds", "sglang:e2e_request_latency_seconds", "sglang:token_usage"):
        assert name in text, name
    info = server.info()
    assert info["max_total_num_tokens"] == 4096 == info["max_total_tokens"]
    assert info["served_model_name"] == "demo"
    models = http("GET", server.url + "/v1/models")[1]
    assert models["data"][0]["id"] == "demo"
    assert http("GET", server.url + "/get_model_info")[1]["model_path"] == str(DEMO_MODEL)
    assert http("GET", server.url + "/health_generate")[0] == 200


def can_ask_the_page_cache(path):
    """Reads the file, so that it lies there; some file systems and systems cannot tell that it does."""
    with open(path, "rb") as file:
        file.read()
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1
        except OSError:
            return False


SLOW_MEMORY = ["--failure-points", "model.fill=sleep(200)"]


def test_weights_are_packed_while_nobody_asks(cluster):
    """A worker is ready before its weights are packed; they are, soon, and no answer depends on when."""
    def ask(server):
        return generate(server.url, text="Once upon a time", return_logprob=True,
                        sampling_params={"temperature": 0, "max_new_tokens": 8, "ignore_eos": True})

    def unpacked(server):
        return server.info()["unpacked_weight_bytes"]

    if not can_ask_the_page_cache(DEMO_MODEL / "model.safetensors"):
        pytest.skip("no page cache here that can be asked")
    server = cluster.unified(*SLOW_MEMORY)
    assert unpacked(server) > 0
    first = ask(server)
    wait_for(lambda: unpacked(server) == 0, 60, "the weights are packed")
    packed = ask(server)
    assert first["output_ids"] == packed["output_ids"]
    assert first["meta_info"]["output_token_logprobs"] == packed["meta_info"]["output_token_logprobs"]
    quantized = cluster.unified("--quantization", "w8a8_int8", *SLOW_MEMORY)
    assert unpacked(quantized) == 0, "what is converted is packed before"


def test_packing_goes_on_after_a_file_could_not_be_read(cluster):
    if not can_ask_the_page_cache(DEMO_MODEL / "model.safetensors"):
        pytest.skip("no page cache here that can be asked")
    server = cluster.unified(*SLOW_MEMORY[:-1], SLOW_MEMORY[-1] + ";model.pack_some=1*error")
    wait_for(lambda: "event=weights_not_packed" in server.text(), 30, "packing fails")
    generate(server.url, text="Once upon a time", sampling_params={"max_new_tokens": 1})
    wait_for(lambda: server.info()["unpacked_weight_bytes"] == 0, 30, "the weights are packed")
