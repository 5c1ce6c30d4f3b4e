"""Broken model folders and hostile requests: one sentence and a way out, never a crash."""
import json
import random
import shutil
import socket
import struct
import subprocess
import time

import pytest

from conftest import BIN, DEMO_MODEL, SLOW, generate, greedy, http

FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


# -- model folders -----------------------------------------------------------------------------------------------------

@pytest.fixture
def model(tmp_path):
    """A copy that a test may spoil."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in FILES:
        shutil.copy(DEMO_MODEL / name, folder / name)
    return folder


def refused(folder, *words, wanted=(), program="prefill-server"):
    """Starts, expects an end within 5 s with one sentence that holds all of `wanted`."""
    began = time.monotonic()
    done = subprocess.run([str(BIN / program), "--model-path", str(folder), "--port", "0", *words], capture_output=True,
                          text=True, timeout=30 * SLOW, stdin=subprocess.DEVNULL)
    assert time.monotonic() - began < 5 * SLOW
    assert done.returncode > 0, f"ended with {done.returncode}:\n{done.stderr[-3000:]}"
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("time=")]
    assert len(lines) == 1 and lines[0].startswith(f"{program}: error: "), done.stderr[-3000:]
    assert len(lines[0]) < 1000
    for part in wanted:
        assert part in lines[0], lines[0]
    return lines[0]


def edit_json(path, **changes):
    value = json.loads(path.read_text())
    for key, new in changes.items():
        if new is ...:
            del value[key]
        else:
            value[key] = new
    path.write_text(json.dumps(value))


def read_tensors(folder):
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def write_tensors(folder, header, data, size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw = struct.pack("<Q", len(text) if size is None else size) + text + data
    (folder / "model.safetensors").write_bytes(raw)


def test_the_copy_itself_is_fine(cluster, model):
    server = cluster.unified(model=model)
    assert generate(server.url, text="Hello", sampling_params=greedy(2))["output_ids"]


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 10_000, -1])
def test_truncated_weights(model, keep):
    file = model / "model.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[:keep])
    refused(model, wanted=["model.safetensors"])


@pytest.mark.parametrize("size", [0, 1, 2**63, 2**64 - 1, 2**32, 5_000_000])
def test_header_length_lies(model, size):
    header, data = read_tensors(model)
    write_tensors(model, header, data, size=size)
    refused(model, wanted=["model.safetensors"])


@pytest.mark.parametrize("text", [b"{", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"a": 1}', b"null", b'{"":{}}'])
def test_header_is_nonsense(model, text):
    _, data = read_tensors(model)
    write_tensors(model, text, data)
    refused(model, wanted=["model"])


def some_tensor(header):
    return next(name for name in header if name.endswith("layers.1.self_attn.q_proj.weight"))


@pytest.mark.parametrize("words", [(), ("--dry-run",)], ids=["run", "dry_run"])
def test_missing_shard(model, words):
    (model / "model.safetensors").unlink()
    shard = "model-00001-of-00002.safetensors"
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
    refused(model, *words, wanted=[shard])


def test_missing_tensor(model):
    header, data = read_tensors(model)
    name = some_tensor(header)
    start, end = header.pop(name)["data_offsets"]
    write_tensors(model, header, data)
    refused(model, wanted=["gap"])
    for tensor in header.values():
        if "data_offsets" in tensor and tensor["data_offsets"][0] >= end:
            tensor["data_offsets"] = [offset - (end - start) for offset in tensor["data_offsets"]]
    write_tensors(model, header, data[:start] + data[end:])
    refused(model, wanted=[name])


@pytest.mark.parametrize("change", [
    {"shape": [192, 191]}, {"shape": [191, 192]}, {"shape": [192 * 192]}, {"shape": []}, {"shape": [2**62, 2**62]},
    {"shape": [-1, 192]}, {"shape": "x"}, {"shape": [0, 192]}, {"dtype": "I64"}, {"dtype": "Q9"}, {"dtype": 5},
    {"data_offsets": [0, 2**63]}, {"data_offsets": [100, 50]}, {"data_offsets": [0]}, {"data_offsets": [-8, 8]},
    {"data_offsets": None},
], ids=str)
def test_wrong_tensor(model, change):
    header, data = read_tensors(model)
    name = some_tensor(header)
    header[name].update(change)
    write_tensors(model, header, data)
    refused(model, wanted=[name])


@pytest.mark.parametrize("changes,names", [
    ({"architectures": ["NoSuchForCausalLM"]}, "NoSuchForCausalLM"), ({"architectures": "x"}, "architectures"),
    ({"architectures": ...}, "architectures"), ({"architectures": []}, "architectures"),
    ({"hidden_size": "192"}, "hidden_size"), ({"hidden_size": ...}, "hidden_size"), ({"hidden_size": 0}, "hidden_size"),
    ({"hidden_size": -192}, "hidden_size"), ({"hidden_size": 2**40}, "hidden_size"), ({"hidden_size": 1.5}, "hidden_size"),
    ({"vocab_size": 2**31}, "vocab_size"), ({"vocab_size": 2049}, ""), ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ({"num_hidden_layers": 6}, "layers.5"), ({"num_hidden_layers": None}, "num_hidden_layers"),
    ({"num_attention_heads": 7}, ""), ({"num_attention_heads": 0}, "num_attention_heads"),
    ({"num_key_value_heads": 4}, "num_key_value_heads"), ({"head_dim": 0}, "head_dim"), ({"head_dim": 2**33}, "head_dim"),
    ({"intermediate_size": []}, "intermediate_size"), ({"rms_norm_eps": "x"}, "rms_norm_eps"),
    ({"rms_norm_eps": -1}, "rms_norm_eps"), ({"rope_theta": {}}, "rope_theta"), ({"rope_theta": 0}, "rope_theta"),
    ({"rope_scaling": {"rope_type": "nonsense"}}, "rope_scaling"), ({"hidden_act": "nonsense"}, "hidden_act"),
    ({"max_position_embeddings": 0}, "max_position_embeddings"), ({"max_position_embeddings": 10**15}, ""),
    ({"torch_dtype": "int4"}, "dtype"), ({"eos_token_id": "x"}, "eos_token_id"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
], ids=lambda v: str(v)[:40])
def test_wrong_config(model, changes, names):
    edit_json(model / "config.json", **changes)
    refused(model, wanted=[names])


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xff", b"[" * 200_000, b'{"a":' * 200_000, b"null"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_that_are_no_json_object(model, name, text):
    (model / name).write_bytes(text)
    refused(model, wanted=[name])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_missing_file(model, name):
    (model / name).unlink()
    refused(model, wanted=["safetensors" if name.startswith("model") else name])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_or_a_device_in_a_files_place(model, name):
    (model / name).unlink()
    (model / name).mkdir()
    refused(model, wanted=[str(model)])


@pytest.mark.parametrize("changes", [
    {"model": {"type": "NoSuch"}}, {"model": {"type": "BPE"}}, {"model": ...}, {"model": []},
    {"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, {"model": {"type": "BPE", "vocab": {"a": 2**40}, "merges": []}},
    {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]}}, {"model": {"type": "BPE", "vocab": [], "merges": {}}},
    {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
    {"pre_tokenizer": {"type": "NoSuch"}}, {"normalizer": {"type": "NoSuch"}}, {"decoder": {"type": "NoSuch"}},
    {"added_tokens": [{"id": "x", "content": "y"}]}, {"added_tokens": 5},
], ids=lambda v: str(v)[:40])
def test_wrong_tokenizer(model, changes):
    edit_json(model / "tokenizer.json", **changes)
    refused(model, wanted=["tokenizer.json"])


@pytest.mark.parametrize("template", ["{% for", "{{ x | nosuch }}", "{% endfor %}", "{{ 'unclosed }}", "{% nosuch %}", 5,
                                      "{{ " + "(" * 100_000])
def test_wrong_chat_template(model, template):
    edit_json(model / "tokenizer_config.json", chat_template=template)
    refused(model, wanted=["chat_template"])


@pytest.mark.parametrize("seed", range(24))
def test_random_damage_is_noticed_or_harmless(model, seed):
    """Some bytes of one file change: the program serves or says why not; it never crashes."""
    rng = random.Random(seed)
    file = model / rng.choice(["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
    raw = bytearray(file.read_bytes())
    reach = 8 + struct.unpack("<Q", raw[:8])[0] if file.suffix == ".safetensors" else len(raw)
    for _ in range(rng.choice([1, 3, 30])):
        raw[rng.randrange(reach)] = rng.choice(b'0123456789{}[]",:-x\xff\x00')
    file.write_bytes(raw)
    ports = model.parent / "ports"
    with open(model.parent / "log", "w+") as log:
        process = subprocess.Popen([str(BIN / "prefill-server"), "--model-path", str(model), "--port", "0", "--port-file",
                                    str(ports)], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + 10 * SLOW
        while process.poll() is None and not ports.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        ended = process.poll()
        process.terminate()
        process.wait(timeout=20 * SLOW)
        log.seek(0)
        text = log.read()
    assert process.returncode >= 0, f"{file.name}: signal {-process.returncode}\n{text}"
    assert ended is not None or ports.exists(), f"{file.name}: neither serves nor ends\n{text}"
    if ended is not None:
        assert ended in (1, 2, 3) and "prefill-server: error: " in text and str(model) in text, text


# -- requests ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all requests of this file: each must leave it as it was."""
    from conftest import Cluster
    group = Cluster(tmp_path_factory.mktemp("bad"))
    program = group.unified("--context-length", 256, "--enable-metrics")
    yield program
    assert program.alive(), program.text()[-3000:]
    assert group.stop() == []


def still_well(program):
    assert program.alive(), program.text()[-3000:]
    assert http("GET", program.url + "/health")[0] == 200
    assert generate(program.url, text="Hello", sampling_params=greedy(3))["meta_info"]["completion_tokens"] == 3


def refused_request(program, path, body, status=400, param=None, says=""):
    code, answer, _ = http("POST", program.url + path, body)
    assert code == status, (code, answer)
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["type"], answer
    if param is not None:
        assert (error["param"] or "").startswith(param), error
    assert says in error["message"], error
    still_well(program)
    return error


CHAT = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
TEXT = {"model": "default", "prompt": "Hello", "max_tokens": 2}
NATIVE = {"text": "Hello", "sampling_params": {"max_new_tokens": 2}}


def test_too_long(server):
    error = refused_request(server, "/generate", {"input_ids": [5] * 300, "sampling_params": greedy(1)})
    assert "300" in error["message"] and "256" in error["message"]
    error = refused_request(server, "/v1/completions", {**TEXT, "prompt": "word " * 500})
    assert error["code"] == "context_length_exceeded"
    error = refused_request(server, "/v1/chat/completions", {**CHAT, "max_tokens": 256})
    assert error["code"] == "context_length_exceeded"
    refused_request(server, "/generate", {"input_ids": [5] * 10, "sampling_params": greedy(2**31 - 1)})
    refused_request(server, "/generate", {"input_ids": [], "sampling_params": greedy(1)})
    refused_request(server, "/generate", {"text": "", "sampling_params": greedy(1)})


@pytest.mark.parametrize("ids", [[2048], [-1], [2**31], [2**63], [1.5], ["a"], [None], [[5, 99999]], [True], {}],
                         ids=str)
def test_token_ids_outside_the_vocabulary(server, ids):
    refused_request(server, "/generate", {"input_ids": ids, "sampling_params": greedy(1)}, param="input_ids")
    if ids and isinstance(ids, list) and not isinstance(ids[0], (list, str)):
        refused_request(server, "/v1/completions", {**TEXT, "prompt": ids}, param="prompt")


@pytest.mark.parametrize("path,base,change,param", [
    ("/generate", NATIVE, {"text": 5}, "text"), ("/generate", NATIVE, {"text": {}}, "text"),
    ("/generate", NATIVE, {"text": ["a", 5]}, "text[1]"), ("/generate", NATIVE, {"sampling_params": 5}, "sampling_params"),
    ("/generate", NATIVE, {"stream": "yes"}, "stream"), ("/generate", NATIVE, {"rid": "with space"}, "rid"),
    ("/generate", NATIVE, {"return_logprob": "x"}, "return_logprob"),
    ("/generate", NATIVE, {"top_logprobs_num": 10**6, "return_logprob": True}, "top_logprobs_num"),
    ("/generate", NATIVE, {"logprob_start_len": 99, "return_logprob": True}, ""),
    ("/v1/completions", TEXT, {"prompt": {}}, "prompt"), ("/v1/completions", TEXT, {"n": 0}, "n"),
    ("/v1/completions", TEXT, {"n": 10**6}, "n"), ("/v1/completions", TEXT, {"logprobs": -1}, "logprobs"),
    ("/v1/completions", TEXT, {"best_of": 3}, "best_of"), ("/v1/completions", TEXT, {"suffix": "x"}, "suffix"),
    ("/v1/chat/completions", CHAT, {"messages": []}, "messages"), ("/v1/chat/completions", CHAT, {"messages": 5}, "messages"),
    ("/v1/chat/completions", CHAT, {"messages": [5]}, "messages[0]"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("/v1/chat/completions", CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
    ("/v1/chat/completions", CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
    ("/v1/chat/completions", CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
    ("/v1/chat/completions", CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ("/v1/chat/completions", CHAT, {"stop": [5]}, "stop"), ("/v1/chat/completions", CHAT, {"stop": ["x"] * 1000}, "stop"),
    ("/v1/chat/completions", CHAT, {"logit_bias": {"99999": 1}}, "logit_bias"),
    ("/v1/chat/completions", CHAT, {"logit_bias": {"a": 1}}, "logit_bias"),
    ("/v1/chat/completions", CHAT, {"seed": "x"}, "seed"), ("/v1/chat/completions", CHAT, {"max_tokens": "2"}, "max_tokens"),
    ("/v1/chat/completions", CHAT, {"max_tokens": 1.5}, "max_tokens"), ("/v1/chat/completions", CHAT, {"model": 5}, "model"),
], ids=lambda v: str(v)[:40] if not isinstance(v, dict) or len(v) == 1 else "")
def test_wrong_members(server, path, base, change, param):
    refused_request(server, path, {**base, **change}, param=param)


@pytest.mark.parametrize("name,value", [
    ("temperature", -1), ("temperature", "hot"), ("temperature", 1e308 * 10), ("top_p", 0), ("top_p", 1.5), ("top_p", -0.1),
    ("top_k", 0), ("top_k", -5), ("top_k", 1.5), ("min_p", -0.1), ("min_p", 2), ("frequency_penalty", 5),
    ("presence_penalty", -5), ("repetition_penalty", -1), ("repetition_penalty", 10**9), ("max_new_tokens", -1),
    ("min_new_tokens", -1), ("min_new_tokens", 100), ("stop_token_ids", ["x"]), ("stop", 5), ("n", 0), ("ignore_eos", 1),
    ("json_schema", "{}"), ("regex", "a+"), ("ebnf", "x"),
])
def test_wrong_sampling_values(server, name, value):
    body = json.dumps({**NATIVE, "sampling_params": {"max_new_tokens": 2, name: value}}).encode()
    refused_request(server, "/generate", body, param="sampling_params" if value != value else None)
    if name in ("temperature", "top_p", "frequency_penalty", "presence_penalty"):
        refused_request(server, "/v1/completions", json.dumps({**TEXT, name: value}).encode())


def test_unknown_names(server):
    for path, base in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        error = refused_request(server, path, {**base, "model": "no-such-model"}, status=404, param="model")
        assert error["code"] == "model_not_found"
    assert http("GET", server.url + "/v1/models/no-such-model")[0] == 404
    for method, path, wanted in (("POST", "/v1/nothing", 404), ("DELETE", "/generate", 405), ("GET", "/generate", 405)):
        status, answer, _ = http(method, server.url + path)
        assert status == wanted and answer["error"]["message"]


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize",
                                  "/abort_request"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe\x00", b'{"text": "\xc3\x28"}',
                                  b'{"text": "\\ud800"}', b"[" * 100_000, b'{"a":' * 100_000, b'{"text": "a", }',
                                  b'{"text": 1e999}', b"{" + b'"a":1,' * 10 + b'"text"}', b"\x00" * 1000],
                         ids=lambda b: repr(b[:14]))
def test_bodies_that_are_no_requests(server, path, body):
    refused_request(server, path, body)


def test_huge_body_is_refused_before_it_is_read(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=20 * SLOW) as link:
        link.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Content-Length: 68000000\r\n\r\n" + b'{"text": "' + b"a" * 1000)
        head = link.recv(65536)
    assert b" 413 " in head.split(b"\r\n")[0] and b'"error"' in head
    still_well(server)


def test_huge_body_within_the_limit(server):
    # As large as may be: parsed, found too long for the context, forgotten.
    body = b'{"sampling_params": {"max_new_tokens": 1}, "text": "' + b"a " * (30 << 20) + b'"}'
    refused_request(server, "/generate", body)
    body = b'{"x": [' + b"[]," * (10 << 20) + b'[]], "text": "Hello"}'
    status, answer, _ = http("POST", server.url + "/generate", body, timeout=60)
    assert 400 <= status < 500, answer
    still_well(server)


def test_the_process_has_not_grown_or_logged_the_bodies(server):
    """Runs last: what the requests above sent is nowhere in the log."""
    text = server.text()
    assert "aaaa" not in text and len(text) < 100_000
    still_well(server)
