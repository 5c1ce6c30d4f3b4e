"""Model, numbers, kernels, threads: what a worker loads and computes with."""
import json
import re
import struct

from effects import (DEMO_MODEL, LONG, MODEL, chat_tokens, generate, greedy, http, model_folder, notes, plan_line,
                     refused, threads_named)


def add_tensor(file, name, data, shape):
    """One more f32 tensor in a safetensors file."""
    raw = file.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    header, body = json.loads(raw[8:8 + size]), raw[8 + size:]
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + body + data)


def test_model_path(cluster, run):
    code, _, err = run("prefill-server", "--model-path", "/no/such/model", "--dry-run")
    assert code == 2 and "argument --model-path: /no/such/model: no such folder" in err, err
    server = cluster.unified()
    assert http("GET", server.url + "/get_model_info")[1]["model_path"] == str(DEMO_MODEL)


def test_tokenizer_path(cluster, tmp_path):
    """A tokenizer that never merges: every byte is a token."""
    words = model_folder(tmp_path / "words", leave_out=("config.json", "model.safetensors"))
    tokenizer = json.loads((words / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (words / "tokenizer.json").write_text(json.dumps(tokenizer))
    server = cluster.unified("--tokenizer-path", words)
    assert http("POST", server.url + "/tokenize", {"prompt": "hello"})[1]["count"] == 5
    assert server.info()["tokenizer_path"] == str(words)


def test_load_format(cluster, run, tmp_path):
    """dummy starts without weights and is the same for the same seed; safetensors insists on its files."""
    bare = model_folder(tmp_path / "bare", leave_out=("model.safetensors",))
    (bare / "pytorch_model.bin").write_bytes(b"x")
    dummy = [cluster.unified("--load-format", "dummy", "--random-seed", 3, model=bare) for _ in range(2)]
    answers = [generate(server.url, text="Hello", sampling_params=greedy(8))["output_ids"] for server in dummy]
    assert answers[0] == answers[1] and plan_line(dummy[0])["load_format"] == "dummy"
    code, _, err = run("prefill-server", "--model-path", bare, "--load-format", "safetensors", "--port", 0)
    assert code == 1 and f"--load-format: safetensors: no matching weight files in {bare}; found: " in err, err
    assert "pytorch_model.bin" in err


def test_dtype(cluster):
    weights = {}
    for dtype in ("float32", "bfloat16"):
        server = cluster.unified("--dtype", dtype)
        weights[dtype] = int(plan_line(server)["weights_bytes"])
        assert server.info()["dtype"] == dtype
    assert 1.9 < weights["float32"] / weights["bfloat16"] < 2.1, weights


def test_context_length(cluster):
    server = cluster.unified("--context-length", 64)
    assert http("GET", server.url + "/v1/models")[1]["data"][0]["max_model_len"] == 64
    status, answer, _ = http("POST", server.url + "/generate", {"input_ids": [5] * 70, "sampling_params": greedy(1)})
    assert status == 400 and "70" in answer["error"]["message"] and "64" in answer["error"]["message"], answer
    status, answer, _ = http("POST", server.url + "/v1/chat/completions", {
        "model": "default", "messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True, "temperature": 0})
    assert status == 200 and answer["usage"]["total_tokens"] == 64, "the answer fills what is left"


def test_json_model_override_args(cluster):
    server = cluster.unified("--json-model-override-args", '{"num_hidden_layers": 1, "max_position_embeddings": 1024}')
    assert server.info()["context_length"] == 1024
    whole = cluster.unified()
    assert int(plan_line(server)["weights_bytes"]) < int(plan_line(whole)["weights_bytes"])


def test_chat_template(cluster, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    server = cluster.unified("--chat-template", template)
    assert chat_tokens(server) == http("POST", server.url + "/tokenize", {"prompt": "Hello"})[1]["count"]


def test_device(cluster, run):
    assert "argument --device: cuda needs a CUDA device" in refused(run, "prefill-server", *MODEL, "--device", "cuda")
    for name in ("npu", "xpu", "hpu"):
        assert f"--device: {name} needs another vendor's hardware" in refused(
            run, "prefill-server", *MODEL, "--device", name)
    server = cluster.unified("--device", "cpu")
    assert (server.info()["device"], server.info()["argument_sources"]["device"]) == ("cpu", "cli")


def test_attention_backend(cluster, run):
    assert "--attention-backend: fa3 needs a CUDA device" in refused(
        run, "prefill-server", *MODEL, "--attention-backend", "fa3")
    assert "--attention-backend: ascend needs another vendor's hardware" in refused(
        run, "prefill-server", *MODEL, "--attention-backend", "ascend")
    native = cluster.unified("--attention-backend", "torch_native")
    assert native.info()["attention_backend"] == "torch_native" and plan_line(native)["kernels"] != "amx"
    amx = cluster.unified("--attention-backend", "intel_amx")
    if plan_line(amx)["kernels"] != "amx":
        # The documented fallback of a CPU without AMX.
        assert amx.info()["attention_backend"] == "torch_native"
        assert len(notes(amx, "--attention-backend intel_amx")) == 1 and "level=warn" in notes(amx, "intel_amx")[0]


def test_sampling_backend(cluster):
    """flashinfer needs a GPU: the exact sampler takes over, and says so."""
    server = cluster.unified("--sampling-backend", "flashinfer")
    assert server.info()["sampling_backend"] == "pytorch"
    assert len(notes(server, "--sampling-backend flashinfer")) == 1, server.text()


def test_grammar_backend(cluster, run):
    for name in ("xgrammar", "outlines", "llguidance"):
        assert f"argument --grammar-backend: {name} is known, but not built yet" in refused(
            run, "prefill-server", *MODEL, "--grammar-backend", name)
    server = cluster.unified("--grammar-backend", "none")
    for field, value in (("regex", "a+"), ("json_schema", "{}"), ("ebnf", "root ::= 'a'")):
        status, answer, _ = http("POST", server.url + "/generate", {
            "text": "a", "sampling_params": {"max_new_tokens": 1, field: value}})
        assert status == 400 and "--grammar-backend is none" in answer["error"]["message"], answer


def test_kv_cache_dtype(cluster, run, tmp_path):
    """Twice the tokens in the same memory, nearly the same answers, and no scale that is passed over."""
    def pages(*words):
        # More tokens than memory holds, so that memory is what limits the pool.
        code, out, err = run("prefill-server", *MODEL, "--dtype", "bfloat16", "--max-total-tokens", 2_000_000_000,
                             "--mem-fraction-static", "0.02", *words, "--dry-run")
        assert code == 0, err
        return int(re.search(r"  KV pool +\d+ bytes  (\d+) pages", out)[1])
    whole = cluster.unified("--dtype", "bfloat16")
    for name in ("fp8_e5m2", "fp8_e4m3"):
        assert 1.98 < pages("--kv-cache-dtype", name) / pages() < 2.02, name
        server = cluster.unified("--dtype", "bfloat16", "--kv-cache-dtype", name)
        assert len(notes(server, f"--kv-cache-dtype {name}: every scale is 1.0")) == 1, server.text()
        assert plan_line(server)["kv_cache_dtype"] == name and plan_line(whole)["kv_cache_dtype"] == "bf16"
        prompt = {"text": LONG * 4, "sampling_params": greedy(1), "return_logprob": True, "logprob_start_len": 0}
        ours, exact = ([logprob for logprob, *_ in generate(each.url, **prompt)["meta_info"]["input_token_logprobs"]
                        if logprob is not None] for each in (server, whole))
        errors = [abs(a - b) for a, b in zip(ours, exact)]
        # A model that knows its answers by heart is less sure of other texts; test_quantization.py asks it what it knows.
        assert 0 < sum(errors) / len(errors) < 2, (name, errors)
    scaled = model_folder(tmp_path / "scaled")
    add_tensor(scaled / "model.safetensors", "model.layers.0.self_attn.k_proj.k_scale", b"\0\0\x80?", [1])
    for words in (("--dry-run",), ("--port", 0)):
        code, _, err = run("prefill-server", "--model-path", scaled, "--kv-cache-dtype", "fp8_e4m3", *words)
        assert code == 2 and "argument --kv-cache-dtype: fp8_e4m3: the checkpoint scales keys and values" in err, err
        assert "k_proj.k_scale" in err and "use --kv-cache-dtype auto" in err, err
    assert generate(cluster.unified(model=scaled).url, text="Hello", sampling_params=greedy(1))["output_ids"]


def test_random_seed(cluster):
    def answers(seed):
        server = cluster.unified("--random-seed", seed)
        assert plan_line(server)["random_seed"] == str(seed), "logged, so that a run can be repeated"
        return [generate(server.url, text=LONG, sampling_params={
            "temperature": 1, "max_new_tokens": 12, "ignore_eos": True})["output_ids"] for _ in range(2)]
    first = answers(7)
    assert first == answers(7) != answers(8)
    assert first[0] != first[1], "requests of one run differ from each other"


def test_disable_overlap_schedule(cluster):
    """This engine never overlaps its steps, so the flag changes nothing and says so by name."""
    server = cluster.unified("--disable-overlap-schedule")
    assert server.info()["disable_overlap_schedule"] is True
    assert len(notes(server, "--disable-overlap-schedule has no effect")) == 1, server.text()


def test_compute_threads(cluster):
    """The engine's own thread takes part, so one less is beside it."""
    for count in (1, 5):
        server = cluster.unified("--compute-threads", count)
        generate(server.url, text="Hello", sampling_params=greedy(2))
        assert threads_named(server, "compute") == count - 1
        assert plan_line(server)["threads"] == str(count)


def test_kernel_family(cluster):
    server = cluster.unified("--kernel-family", "reference")
    assert plan_line(server)["kernels"] == "reference" and server.info()["kernel_family"] == "reference"
    generate(server.url, text="Hello", sampling_params=greedy(2))


def test_tensor_parallel_size(run):
    """This build runs one rank: more are refused, in all spellings."""
    for word in ("--tensor-parallel-size", "--tp-size", "--tp"):
        assert "argument --tensor-parallel-size: 2 is not built yet" in refused(
            run, "prefill-server", *MODEL, word, 2)
