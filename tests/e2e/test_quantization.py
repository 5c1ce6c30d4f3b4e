"""Online quantisation: smaller weights, a plausible answer, and the same bits in one process and in two."""
import json
import random

import pytest

from conftest import DEMO_MODEL, generate, greedy, http

FLAGS = {"int8wo": ("--torchao-config", "int8wo"), "int4wo-128": ("--torchao-config", "int4wo-128"),
         "w8a8_int8": ("--quantization", "w8a8_int8")}
# Packed bytes against those of the bf16 model, head and all: a half or a quarter, and scales.
SHARE = {"int8wo": (0.50, 0.53), "int4wo-128": (0.25, 0.28), "w8a8_int8": (0.50, 0.53)}
VERSION = {"int8wo": "", "int4wo-128": "-v3", "w8a8_int8": "-v2"}


def plan(server):
    return server.info()["memory_plan"]


def asked(count, seed):
    pick = random.Random(seed)
    return [{"input_ids": [pick.randrange(3, 2000) for _ in range(pick.randint(1, 200))],
             "sampling_params": {"max_new_tokens": 12, "ignore_eos": True, "sampling_seed": i,
                                 "temperature": pick.choice([0, 0.8])},
             "return_logprob": True, "logprob_start_len": 0} for i in range(count)]


def result(answer):
    meta = answer["meta_info"]
    return answer["output_ids"], meta["output_token_logprobs"], meta["input_token_logprobs"]


def right_of_20(server):
    """The demo model answers questions by heart: most answers survive rounding."""
    questions = [json.loads(line) for line in (DEMO_MODEL / "eval.jsonl").read_text().splitlines()]
    wanted = [json.loads(line) for line in (DEMO_MODEL / "eval_reference.jsonl").read_text().splitlines()]
    right = 0
    for i in random.Random(3).sample(range(len(questions)), 20):
        status, got, _ = http("POST", server.url + "/v1/chat/completions", {
            "model": "default", "messages": questions[i]["messages"], "temperature": 0, "max_tokens": 128})
        assert status == 200, got
        right += got["choices"][0]["message"]["content"] == wanted[i]["text"]
    return right


@pytest.mark.parametrize("name", FLAGS)
def test_weights_shrink_and_answers_stay(cluster, name):
    whole = cluster.unified("--dtype", "bfloat16")
    small = cluster.unified("--dtype", "bfloat16", *FLAGS[name])
    low, high = SHARE[name]
    share = plan(small)["weight_bytes"] / plan(whole)["weight_bytes"]
    assert low < share < high, share
    for same in ("embedding_bytes", "activation_bytes"):
        assert plan(small)[same] == plan(whole)[same], same
    assert small.info()["page_bytes"] == whole.info()["page_bytes"], "the KV layout is that of the float model"
    assert f"+{name}{VERSION[name]}/" in small.info()["numerics_family"]
    assert right_of_20(small) >= 16


@pytest.mark.parametrize("name", FLAGS)
def test_two_processes_give_the_bits_of_one(cluster, name):
    unified = cluster.unified("--page-size", "4", "--compute-threads", "1", *FLAGS[name])
    router, _, decode = cluster.pd("--page-size", "4", "--chunked-prefill-size", "32", "--compute-threads", "2",
                                   *FLAGS[name])
    for request in asked(10, seed=4):
        assert result(generate(unified.url, **request)) == result(generate(router.url, **request))
    assert decode[0].info()["disaggregation"]["landed_bytes"] > 0


def test_a_pair_that_is_quantised_differently_is_refused_by_name(cluster):
    prefill = cluster.prefill("--torchao-config", "int8wo")
    decode = cluster.decode()
    router = cluster.router(prefill=[prefill], decode=[decode])
    status, answer, _ = http("POST", router.url + "/generate",
                             {"text": "Hello", "sampling_params": greedy(4)})
    assert status >= 500, answer
    refusal = 'quantization: prefill has "int8wo", decode has "none"'
    # Log lines are JSON: quotes are escaped there.
    logs = decode.text() + prefill.text()
    assert refusal in logs or refusal.replace('"', '\\"') in logs


def test_both_flags_at_once_are_refused(cluster):
    server = cluster.start("prefill-server", "--model-path", str(DEMO_MODEL), "--torchao-config", "int8wo",
                           "--quantization", "w8a8_int8", wait=False)
    assert server.process.wait(60) == 2
    assert "--torchao-config: excludes --quantization" in server.text()


@pytest.mark.parametrize("kv", ["fp8_e5m2", "fp8_e4m3"])
def test_keys_and_values_of_8_bit_are_half_and_the_same_in_two_processes(cluster, kv):
    words = ("--dtype", "bfloat16", "--page-size", "4")
    whole = cluster.unified(*words)
    unified = cluster.unified(*words, "--kv-cache-dtype", kv, "--compute-threads", "1")
    router, _, decode = cluster.pd(*words, "--kv-cache-dtype", kv, "--chunked-prefill-size", "32",
                                   "--compute-threads", "2")
    assert 2 * unified.info()["page_bytes"] == whole.info()["page_bytes"]
    assert unified.info()["numerics_family"] == whole.info()["numerics_family"].removesuffix("bf16") + kv
    assert right_of_20(unified) >= 16
    for request in asked(10, seed=5):
        assert result(generate(unified.url, **request)) == result(generate(router.url, **request))
    assert decode[0].info()["disaggregation"]["landed_bytes"] > 0
