"""A mixture of experts, served: the recorded tokens of Qwen3-MoE, the same bits in one process and in two."""
import json
import subprocess

import pytest

from conftest import BIN, generate, golden, greedy

FLAGS = {"float": (), "int8wo": ("--torchao-config", "int8wo"), "int4wo-128": ("--torchao-config", "int4wo-128"),
         "w8a8_int8": ("--quantization", "w8a8_int8")}


@pytest.fixture
def moe():
    return golden("models/qwen3_moe")


def sure_steps(case, margin_min):
    """Greedy steps before the first whose choice is as narrow as the tolerance."""
    return next((i for i, margin in enumerate(case["greedy_margin"]) if margin < margin_min), len(case["greedy_ids"]))


def test_greedy_tokens_are_the_recorded_ones(cluster, moe):
    recorded = json.loads((moe / "cases.json").read_text())
    server = cluster.unified("--dtype", "float32", "--page-size", 4, "--chunked-prefill-size", 48, model=moe)
    compared = 0
    for case in recorded["cases"]:
        sure = sure_steps(case, recorded["tolerance"]["float32_atol"])
        if sure == 0:
            continue
        answer = generate(server.url, input_ids=case["prompt_ids"],
                          sampling_params={**greedy(sure), "ignore_eos": True})
        assert answer["output_ids"] == case["greedy_ids"][:sure], case["label"]
        compared += sure
    assert compared > 100


@pytest.mark.parametrize("name", FLAGS)
def test_two_processes_give_the_bits_of_one(cluster, moe, name):
    unified = cluster.unified("--page-size", 4, "--compute-threads", 1, *FLAGS[name], model=moe)
    router, _, decode = cluster.pd("--page-size", 4, "--chunked-prefill-size", 32, "--compute-threads", 2, *FLAGS[name],
                                   model=moe)
    for case in json.loads((moe / "cases.json").read_text())["cases"]:
        request = {"input_ids": case["prompt_ids"], "return_logprob": True, "logprob_start_len": 0,
                   "sampling_params": {"max_new_tokens": 12, "ignore_eos": True, "temperature": 0.8, "sampling_seed": 5}}
        one, two = generate(unified.url, **request), generate(router.url, **request)
        assert one["output_ids"] == two["output_ids"], case["label"]
        for key in ("output_token_logprobs", "input_token_logprobs"):
            assert one["meta_info"][key] == two["meta_info"][key], case["label"]
    assert decode[0].info()["disaggregation"]["landed_bytes"] > 0


def test_dry_run_counts_the_experts(moe):
    done = subprocess.run([BIN / "prefill-server", "--model-path", moe, "--dry-run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3 routers 8 x 64 (f32) + 8 experts x 3 x (gate, up 96 x 64 + down 64 x 48)" in done.stdout, done.stdout


def test_a_number_of_experts_that_cannot_be_is_refused_by_name(moe):
    done = subprocess.run([BIN / "prefill-server", "--model-path", moe, "--json-model-override-args",
                           '{"num_experts_per_tok": 9}'], capture_output=True, text=True)
    assert done.returncode == 2
    assert "num_experts_per_tok: is 9, more than num_experts = 8" in done.stderr
