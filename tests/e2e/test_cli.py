"""What the programs do with their arguments: before they serve, and while they do."""
import json
import pathlib
import re
import socket
import subprocess
import threading
import time

import pytest

from conftest import BIN, DEMO_MODEL, SLOW, events, generate, greedy, http, wait_for

PROGRAMS = ["router", "prefill-server", "decode-server", "bootstrap-server"]
LONG = "The quick brown fox jumps over the lazy dog. "
# Each start of a server costs; so these are asked of one.
MODEL = ["--model-path", str(DEMO_MODEL)]


def run(program, *words, env=None, timeout=20):
    """(exit code, stdout, stderr) of a program that should end by itself."""
    done = subprocess.run([str(BIN / program), *map(str, words)], capture_output=True, text=True, env=env,
                          timeout=timeout * SLOW, stdin=subprocess.DEVNULL)
    assert done.returncode >= 0, f"ended by signal {-done.returncode}"
    return done.returncode, done.stdout, done.stderr


def dumped(program, *words, env=None):
    code, out, err = run(program, *words, "--dump-config", env=env)
    assert code == 0 and all(": warning: " in line for line in err.splitlines()), err
    return json.loads(out)


def strict_json(text):
    """Refuses a key that stands twice in one object."""
    def pairs(items):
        keys = [key for key, _ in items]
        assert len(keys) == len(set(keys)), {key for key in keys if keys.count(key) > 1}
        return dict(items)
    return json.loads(text, object_pairs_hook=pairs)


def listening_ports(pid):
    """Ports on which a process listens."""
    inodes = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = link.readlink().name
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [row.split() for name in ("tcp", "tcp6") for row in
            pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


# -- before serving ----------------------------------------------------------------------------------------------------

def test_help_lists_what_a_program_takes():
    for program in PROGRAMS:
        code, out, err = run(program, "--help")
        assert (code, err) == (0, "") and out.startswith(f"usage: {program} ")
        assert "--log-level" in out and ("--page-size" in out) == (program in ("prefill-server", "decode-server"))
        code, everything, _ = run(program, "--help-all")
        assert code == 0 and len(everything) > len(out)
        assert run(program, "-h")[1] == out
        assert re.fullmatch(rf"{program} \d+\.\d+\.\d+\n", run(program, "--version")[1])


def test_dump_config_is_one_json_object_with_the_keys_of_server_info(cluster):
    out = run("prefill-server", *MODEL, "--dump-config")[1]
    wanted = strict_json(out)
    server = cluster.unified()
    info = strict_json(json.dumps(server.info()))
    assert set(wanted) <= set(info)
    assert wanted["model_path"] == str(DEMO_MODEL) and wanted["argument_sources"]["model_path"] == "cli"


def test_server_info_says_what_was_given(cluster):
    given = ["--page-size", 16, "--stream-interval", 3, "--context-length", 777, "--served-model-name", "mine",
             "--max-running-requests", 5, "--chunked-prefill-size", 64, "--max-prefill-tokens", 512, "--dtype", "float32",
             "--schedule-policy", "fcfs", "--schedule-conservativeness", 0.7, "--mem-fraction-static", 0.3,
             "--max-total-tokens", 4096, "--random-seed", 11, "--log-level", "warning", "--log-requests",
             "--decode-log-interval", 9, "--enable-metrics", "--enable-cache-report", "--disable-radix-cache",
             "--compute-threads", 1, "--kernel-family", "reference", "--max-body-bytes", 100000, "--http-threads", 3,
             "--shutdown-grace-period-secs", 2, "--json-model-override-args", '{"rope_theta": 50000.0}',
             "--api-key", "hush-hush"]
    plan = dumped("prefill-server", *MODEL, *given)
    server = cluster.unified(*given)
    status, text, _ = http("GET", server.url + "/get_server_info", headers={"Authorization": "Bearer hush-hush"})
    assert status == 200
    explicit = {key for key, source in plan["argument_sources"].items() if source == "cli"}
    assert len(explicit) >= len([word for word in given if str(word).startswith("--")])
    explicit.remove("api_key")  # shown as set in one, as a secret in the other
    assert {key: text[key] for key in explicit} == {key: plan[key] for key in explicit}
    assert text["argument_sources"]["page_size"] == "cli"
    assert "hush" not in json.dumps(text) + json.dumps(plan) + server.text()


def test_server_info_has_no_key_twice(cluster):
    import urllib.request
    server = cluster.unified()
    with urllib.request.urlopen(server.url + "/get_server_info", timeout=20) as response:
        strict_json(response.read().decode())


def test_dry_run_checks_everything_and_opens_nothing(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        # The port is in use: a dry run does not touch it.
        for program, words in (("prefill-server", MODEL), ("decode-server", MODEL), ("router", MODEL),
                               ("router", ["--worker-urls", "http://a:1"]), ("bootstrap-server", [])):
            code, out, err = run(program, *words, "--port", port, "--port-file", tmp_path / "ports", "--dry-run")
            assert code == 0, err
            assert not (tmp_path / "ports").exists()
    code, out, _ = run("prefill-server", *MODEL, "--page-size", 16, "--dtype", "float32", "--dry-run")
    assert "weights" in out and "KV pool" in out and "16 tokens a page" in out and "f32" in out
    code, out, _ = run("router", *MODEL, "--dp", 3, "--dry-run")
    assert out.count("prefill-server --model-path=") == 3
    code, out, _ = run("router", *MODEL, "--pd-disaggregation", "--prefill-workers", 2, "--page-size", 16, "--dry-run")
    assert out.count("--disaggregation-mode=prefill") == 2 and out.count("--disaggregation-mode=decode") == 1
    assert out.count("--page-size=16") == 3
    # And with --dump-config the JSON comes first.
    code, out, _ = run("prefill-server", *MODEL, "--dry-run", "--dump-config")
    assert json.loads(out[:out.index("\n}\n") + 3])["model_path"] == str(DEMO_MODEL) and "KV pool" in out


def test_explain_names_value_and_origin(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text("page-size: 32\n")
    code, out, _ = run("prefill-server", *MODEL, "--config", config, "--explain", "--page-size")
    assert code == 0 and f"--page-size = 32 (file: {config}:1" in out
    assert "(cli: --page_size)" in run("prefill-server", *MODEL, "--page_size=8", "--explain", "page-size")[1]
    assert "hush" not in run("prefill-server", *MODEL, "--api-key", "hush", "--explain", "api-key")[1]


@pytest.mark.parametrize("program,words,wanted", [
    ("prefill-server", [*MODEL, "--pagesize", 16], "unrecognized argument: --pagesize (did you mean --page-size?)"),
    ("router", [*MODEL, "--worker-url", "http://a:1"], "unrecognized argument: --worker-url (did you mean --worker-urls?)"),
    ("prefill-server", [*MODEL, "--worker-urls", "http://a:1"],
     "--worker-urls is an argument of router, not of prefill-server"),
    ("bootstrap-server", ["--model-path", "/m"],
     "--model-path is an argument of router, prefill-server and decode-server, not of bootstrap-server"),
    ("prefill-server", [*MODEL, "--quantization", "fp8"], "--quantization: fp8 is known, but not built yet"),
    ("prefill-server", [*MODEL, "--port", "70000"], "argument --port: 70000 is out of range"),
    ("prefill-server", [*MODEL, "--device", "cuda"], "argument --device: cuda needs a CUDA device"),
    ("prefill-server", [*MODEL, "--device", "npu"], "argument --device: npu needs another vendor's hardware"),
    ("prefill-server", [*MODEL, "--attention-backend", "fa3"], "argument --attention-backend: fa3 needs a CUDA device"),
    ("prefill-server", [*MODEL, "--tp", 2], "argument --tensor-parallel-size: 2 is not built yet"),
    ("prefill-server", [*MODEL, "--chunked-prefill-size", 100, "--page-size", 16], "argument --chunked-prefill-size: "),
    ("prefill-server", ["--model-path", "/no/such/model"], "argument --model-path: /no/such/model: no such folder"),
    ("prefill-server", [*MODEL, "--context-length", 5000], "argument --context-length: 5000 exceeds the model's 4096"),
    ("prefill-server", [*MODEL, "--chat-template", "/no/such.jinja"], "--chat-template"),
    ("prefill-server", [*MODEL, "--tokenizer-path", "/no/such"], "/no/such"),
    ("prefill-server", [*MODEL, "--json-model-override-args", '{"num_hidden_layers": "x"}'], "num_hidden_layers"),
    ("router", [], "--model-path is required"),
    ("router", ["--worker-urls", "nonsense://a"], "argument --worker-urls: "),
    ("prefill-server", [], "--model-path is required"),
    ("prefill-server", [*MODEL, "--config", "/no/such.yaml"], "/no/such.yaml"),
], ids=lambda value: value if isinstance(value, str) and len(value) < 17 else "")
def test_refusals_are_one_sentence(program, words, wanted):
    code, out, err = run(program, *words)
    assert code in (1, 2) and out == ""
    lines = [line for line in err.splitlines() if not line.startswith("time=")]
    assert len(lines) == 1 and lines[0].startswith(f"{program}: error: ") and wanted in lines[0], err


def test_too_little_memory_is_told_before_a_weight_is_read(tmp_path):
    # The weights are not even there: whoever looked for them would say so.
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((DEMO_MODEL / name).read_bytes())
    began = time.monotonic()
    code, _, err = run("prefill-server", "--model-path", folder, "--mem-fraction-static", "0.0001")
    assert code == 2 and time.monotonic() - began < 5 * SLOW
    assert re.search(r"argument --mem-fraction-static: weights and buffers need [\d.]+ GiB of [\d.]+ GiB "
                     r"\(0.0001 of the [\d.]+ GiB", err), err
    assert "raise --mem-fraction-static above" in err


def test_what_a_router_needs_is_what_its_workers_need_together():
    """A worker names a value for itself; the router says by how much to multiply, and that then fits."""
    words = [*MODEL, "--dp", 3, "--dry-run", "--mem-fraction-static"]
    code, out, err = run("router", *words, 0.002)
    assert code == 2 and "3 workers share the memory" in out and "multiply by 3" in out, (out, err)
    named = float(re.search(r"raise --mem-fraction-static above ([\d.]+)", err)[1])
    assert named > 0.002 / 3
    code, out, err = run("router", *words, 3 * named + 1e-9)
    assert code == 0, (out, err)


def test_a_limit_that_another_one_lifts_is_told():
    wanted = "--max-prefill-tokens 100 is below the context length, which is in force: 4096"
    assert wanted in run("prefill-server", *MODEL, "--dry-run", "--max-prefill-tokens", 100)[2]
    for words in (["--max-prefill-tokens", 4096], []):
        assert "--max-prefill-tokens" not in run("prefill-server", *MODEL, "--dry-run", *words)[2]


def test_config_file_and_precedence(tmp_path):
    config = tmp_path / "all.yaml"
    config.write_text("model-path: /from/file\npage_size: 16\nlog-level: warning\nworker-urls: [http://a:1]\n")
    env = {"LOG_LEVEL": "error", "TP_SIZE": "1", "PATH": "/usr/bin"}
    got = dumped("prefill-server", "--config", config, "--page-size", 32, env=env)
    assert (got["model_path"], got["page_size"], got["log_level"]) == ("/from/file", 32, "warning")
    sources = got["argument_sources"]
    assert (sources["model_path"], sources["page_size"], sources["tp_size"]) == ("file", "cli", "env")
    assert dumped("prefill-server", *MODEL, env=env)["log_level"] == "error"
    config.write_text("model-path: /m\npage-sise: 16\n")
    code, _, err = run("prefill-server", "--config", config)
    assert code == 2 and f"{config}:2" in err and "page-sise" in err and "page-size" in err
    config.write_text("model-path: [unclosed\n")
    code, _, err = run("prefill-server", "--config", config)
    assert code == 2 and str(config) in err


@pytest.mark.parametrize("program,words,flag", [
    ("prefill-server", MODEL, "--port"), ("decode-server", MODEL, "--port"), ("router", MODEL, "--port"),
    ("bootstrap-server", [], "--port"), ("prefill-server", [*MODEL, "--port", 0], "--grpc-port"),
    ("prefill-server", [*MODEL, "--port", 0, "--disaggregation-mode", "prefill"], "--disaggregation-bootstrap-port"),
])
def test_a_port_in_use_ends_the_start(program, words, flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        began = time.monotonic()
        code, _, err = run(program, *words, flag, port)
        assert time.monotonic() - began < 5 * SLOW
    lines = [line for line in err.splitlines() if not line.startswith("time=")]
    assert code == 1 and len(lines) == 1, err
    assert f"127.0.0.1:{port}" in lines[0] and flag in lines[0], err


# -- while serving -----------------------------------------------------------------------------------------------------

def test_port_file_host_and_names(cluster):
    server = cluster.unified("--served-model-name", "mine", "--context-length", 100, "--grpc-port", 0)
    assert server.ports["port"] != server.ports["grpc_port"]
    assert listening_ports(server.pid) == {server.ports["port"], server.ports["grpc_port"]}
    card = http("GET", server.url + "/v1/models")[1]["data"][0]
    assert (card["id"], card["max_model_len"]) == ("mine", 100)
    body = {"model": "mine", "prompt": "Hello", "max_tokens": 2}
    assert http("POST", server.url + "/v1/completions", body)[1]["model"] == "mine"
    assert http("POST", server.url + "/v1/completions", {**body, "model": "other"})[0] == 404
    # The context: prompt and answer together.
    prompt = {"input_ids": [5] * 90, "sampling_params": greedy(11)}
    status, answer, _ = http("POST", server.url + "/generate", prompt)
    assert status == 400 and "101" in answer["error"]["message"] and "100" in answer["error"]["message"]
    status, answer, _ = http("POST", server.url + "/v1/chat/completions", {
        "model": "mine", "messages": [{"role": "user", "content": "Hello"}], "ignore_eos": True, "temperature": 0})
    assert status == 200 and answer["usage"]["total_tokens"] == 100, "the answer fills what is left"


def test_ipv6_and_api_key(cluster):
    server = cluster.start("prefill-server", *MODEL, "--host", "::1", "--api-key", "hush-hush", wait=False)
    wait_for(server.port_file.exists, 30, "the port file")
    url = f"http://[::1]:{json.loads(server.port_file.read_text())['port']}"
    wait_for(lambda: http("GET", url + "/health")[0] == 200, 30, "health without a key")
    key = {"Authorization": "Bearer hush-hush"}
    for path in ("/v1/models", "/get_server_info", "/get_model_info", "/tokenizer_files/tokenizer.json", "/get_load"):
        assert http("GET", url + path)[0] == 401, path
        assert http("GET", url + path, headers={"Authorization": "Bearer wrong"})[0] == 401, path
        assert http("GET", url + path, headers=key)[0] == 200, path
    for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/tokenize", "/abort_request"):
        status, answer, headers = http("POST", url + path, b"{}")
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key"), path
        assert headers["WWW-Authenticate"] == "Bearer"
        assert http("POST", url + path, b"{}", headers=key)[0] != 401, path
    assert "hush" not in server.text() and "hush" not in json.dumps(http("GET", url + "/server_info", headers=key)[1])
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=2)


def test_stream_interval_groups_tokens(cluster):
    each, eighth = cluster.unified(), cluster.unified("--stream-interval", 8)
    body = {"text": LONG, "sampling_params": greedy(64), "stream": True}
    counts, texts = [], []
    for server in (each, eighth):
        got = [e for e in events(server.url + "/generate", body) if e != "[DONE]"]
        counts.append(len(got))
        texts.append(got[-1]["text"])
    assert texts[0] == texts[1]
    assert counts[0] >= 60 and 8 <= counts[1] <= 10, counts


def test_requests_and_steps_are_logged_when_asked(cluster):
    quiet = cluster.unified("--decode-log-interval", 20)
    loud = cluster.unified("--log-requests", "--decode-log-interval", 1)
    for server in (quiet, loud):
        generate(server.url, text=LONG, rid="my-name", sampling_params=greedy(40))
    assert "request_received" not in quiet.text() and "my-name" not in quiet.text()
    lines = [line for line in loud.text().splitlines() if "my-name" in line]
    assert ["event=request_received" in lines[0], "event=request_finished" in lines[1]] == [True, True], lines
    assert "completion_tokens=40" in lines[1] and LONG.split()[1] not in loud.text(), "numbers, never the text"
    steps = [server.text().count("event=decode_status") for server in (quiet, loud)]
    assert 1 <= steps[0] <= 4 and steps[1] >= 39, steps


def test_metrics_only_when_asked(cluster):
    without, server = cluster.unified(), cluster.unified("--enable-metrics")
    assert http("GET", without.url + "/metrics")[0] == 404
    generate(server.url, text="Hello", sampling_params=greedy(4))
    text = http("GET", server.url + "/metrics")[1]
    assert re.search(r'^sglang:num_requests_total\{.*is_streaming="false".*\} 1$', text, re.M)
    assert re.search(r'^sglang:generation_tokens_total\{.*is_streaming="false".*\} 4$', text, re.M)


def test_max_running_requests_bounds_what_runs_together(cluster):
    server = cluster.unified("--max-running-requests", 1, "--decode-log-interval", 1)
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(
        generate(server.url, text=LONG, sampling_params=greedy(30)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer["text"] for answer in answers}) == 1 and len(answers) == 4
    running = {int(n) for n in re.findall(r"event=decode_status running=(\d+)", server.text())}
    assert running <= {0, 1} and 1 in running, running


def test_pages_pool_and_prefix_cache(cluster):
    paged = cluster.unified("--page-size", 16, "--max-total-tokens", 1000, "--enable-cache-report")
    info = paged.info()
    assert info["max_total_num_tokens"] == 992 and info["internal_states"][0]["total_pages"] == 62
    first = generate(paged.url, text=LONG * 10, sampling_params=greedy(4))
    again = generate(paged.url, text=LONG * 10, sampling_params=greedy(4))
    cached = again["meta_info"]["cached_tokens"]
    assert first["meta_info"]["cached_tokens"] == 0 and cached > 0 and cached % 16 == 0
    assert first["text"] == again["text"]
    assert http("POST", paged.url + "/generate", {"input_ids": [5] * 993, "sampling_params": greedy(1)})[0] == 400
    chat = {"model": "default", "messages": [{"role": "user", "content": LONG * 5}], "max_tokens": 2, "temperature": 0}
    http("POST", paged.url + "/v1/chat/completions", chat)
    usage = http("POST", paged.url + "/v1/chat/completions", chat)[1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    plain = cluster.unified("--disable-radix-cache")
    for _ in range(2):
        assert generate(plain.url, text=LONG * 10, sampling_params=greedy(4))["meta_info"]["cached_tokens"] == 0
    assert plain.info()["internal_states"][0]["cached_pages"] == 0
    usage = http("POST", plain.url + "/v1/chat/completions", chat)[1]["usage"]
    assert not usage.get("prompt_tokens_details"), "only with --enable-cache-report"


def test_memory_follows_its_fraction(cluster):
    pools = []
    for fraction in ("0.02", "0.04"):
        out = run("prefill-server", *MODEL, "--mem-fraction-static", fraction, "--dry-run")[1]
        pools.append(int(re.search(r"KV pool +(\d+) bytes", out)[1]))
    assert 0 < pools[0] < pools[1]
    bytes_of = {}
    for dtype in ("float32", "bfloat16"):
        out = run("prefill-server", *MODEL, "--dtype", dtype, "--dry-run")[1]
        bytes_of[dtype] = int(re.search(r"weights +(\d+) bytes", out)[1])
    assert 1.9 < bytes_of["float32"] / bytes_of["bfloat16"] < 2.1


def batches(server):
    """(prompts, prompt tokens, decoding sequences) of every step so far; needs --log-level debug."""
    return [tuple(map(int, found)) for found in re.findall(
        r"event=batch prefill_sequences=(\d+) prefill_tokens=(\d+) decode_sequences=(\d+)", server.text())]


def test_chunked_prefill_takes_more_steps_and_gives_the_same(cluster):
    answers = []
    for size in (-1, 32):
        server = cluster.unified("--chunked-prefill-size", size, "--disable-radix-cache", "--dtype", "float32",
                                 "--log-level", "debug")
        answers.append(generate(server.url, text=LONG * 20, sampling_params=greedy(8)))
        prompt = answers[-1]["meta_info"]["prompt_tokens"]
        tokens = [tokens for _, tokens, _ in batches(server) if tokens > 0]
        assert prompt > 200 and sum(tokens) == prompt
        assert tokens[:-1] == ([] if size < 0 else [size] * (len(tokens) - 1)) and tokens[-1] <= abs(size) or size < 0
        assert len([1 for _, _, decoding in batches(server) if decoding]) == 7, "the first token is the prefill's"
    assert answers[0]["output_ids"] == answers[1]["output_ids"]


def test_debug_lines_only_with_log_level_debug(cluster):
    server = cluster.unified()
    generate(server.url, text="Hello", sampling_params=greedy(4))
    assert "event=ready" in server.text() and "level=debug" not in server.text()


def test_max_prefill_tokens_bounds_a_step(cluster):
    server = cluster.unified("--max-prefill-tokens", 64, "--context-length", 64, "--disable-radix-cache",
                             "--log-level", "debug")
    threads = [threading.Thread(target=generate, args=(server.url,), kwargs={
        "input_ids": [10 + i] * 25, "sampling_params": greedy(4)}) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = batches(server)
    assert sum(tokens for _, tokens, _ in steps) == 12 * 25
    assert max(tokens for _, tokens, _ in steps) <= 64, steps


def test_schedule_policy_orders_the_queue(cluster):
    """lpm lets the request with the cached prefix go first; fcfs does not. The first one keeps the only seat."""
    order = {}
    for policy in ("fcfs", "lpm"):
        server = cluster.unified("--schedule-policy", policy, "--max-running-requests", 1, "--log-requests")
        known = LONG * 30
        generate(server.url, text=known, sampling_params=greedy(1))
        threads = []
        for name, text in (("first", "a"), ("fresh", "Something else entirely. " * 20), ("known", known)):
            threads.append(threading.Thread(target=generate, args=(server.url,), kwargs={
                "text": text, "rid": name, "sampling_params": greedy(3900 if name == "first" else 1)}))
            threads[-1].start()
            wait_for(lambda n=name: f"event=request_received request=" in server.text() and f"name={n} " in server.text(),
                     10, f"{name} is in")
        for thread in threads:
            thread.join()
        order[policy] = re.findall(r"event=request_finished request=\S+ name=(fresh|known) ", server.text())
    assert order == {"fcfs": ["fresh", "known"], "lpm": ["known", "fresh"]}


def test_random_seed_repeats_a_run(cluster):
    def answers(seed):
        server = cluster.unified("--random-seed", seed)
        assert f"random_seed={seed}" in server.text(), "logged, so that a run can be repeated"
        native = [generate(server.url, text=LONG, sampling_params={"temperature": 1, "max_new_tokens": 16,
                                                                   "ignore_eos": True})["output_ids"] for _ in range(3)]
        chat = http("POST", server.url + "/v1/chat/completions", {
            "model": "default", "messages": [{"role": "user", "content": LONG}], "max_tokens": 16, "temperature": 1,
            "ignore_eos": True})[1]["choices"][0]["message"]["content"]
        return native, chat
    first = answers(7)
    assert first == answers(7)
    assert first != answers(8)
    assert len({tuple(ids) for ids in first[0]}) > 1, "requests of one run differ from each other"


def test_model_override_and_tokenizer(cluster, tmp_path):
    server = cluster.unified("--json-model-override-args", '{"max_position_embeddings": 1024}')
    assert server.info()["context_length"] == 1024
    code, out, _ = run("prefill-server", *MODEL, "--json-model-override-args", '{"num_hidden_layers": 2}', "--dry-run")
    whole = run("prefill-server", *MODEL, "--dry-run")[1]
    weights = [int(re.search(r"weights +(\d+) bytes", text)[1]) for text in (out, whole)]
    assert code == 0 and weights[0] < weights[1] / 2 + 1e6, weights
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    bare = cluster.unified("--chat-template", template)
    body = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    tokens = [http("POST", s.url + "/v1/chat/completions", body)[1]["usage"]["prompt_tokens"] for s in (bare, server)]
    assert 0 < tokens[0] < tokens[1], tokens


def test_largest_body(cluster):
    server = cluster.unified("--max-body-bytes", 2000)
    assert http("POST", server.url + "/generate", {"text": "a" * 1000, "sampling_params": greedy(1)})[0] == 200
    assert http("POST", server.url + "/generate", {"text": "a" * 3000, "sampling_params": greedy(1)})[0] == 413


def test_a_second_of_grace_cuts_what_runs(cluster):
    server = cluster.unified("--shutdown-grace-period-secs", 0)
    stream = events(server.url + "/generate", {"text": "a", "sampling_params": greedy(4000), "stream": True})
    next(stream)
    began = time.monotonic()
    server.kill(15)
    assert server.process.wait(timeout=20 * SLOW) == 0
    assert time.monotonic() - began < 5 * SLOW
    with pytest.raises(Exception):  # noqa: B017 - an error event or a cut connection
        for event in stream:
            assert "error" not in event


def test_local_replicas_and_balancing(cluster):
    router = cluster.start("router", *MODEL, "--dp", 2, "--policy", "round_robin", "--page-size", 16,
                           "--max-total-tokens", 4096, "--log-requests")
    for _ in range(6):
        generate(router.url, text="Hello", sampling_params=greedy(4))
    info = router.info()
    assert info["dp_size"] == 2 and info["argument_sources"]["page_size"] == "cli"

    def states():
        return router.info()["internal_states"]
    # Workers tell their load some time later.
    wait_for(lambda: [state["total_pages"] for state in states()] == [256, 256], 10, "the pages forwarded to both")
    wait_for(lambda: all(state["progress"] > 0 for state in states()), 10, "both have worked")
    assert router.text().count("event=request_finished") >= 6


def test_no_ops_and_fall_backs_are_told(cluster):
    server = cluster.unified("--disable-overlap-schedule", "--sampling-backend", "flashinfer",
                             "--prefill-round-robin-balance", "--load-format", "safetensors")
    for flag in ("--disable-overlap-schedule", "--sampling-backend", "--prefill-round-robin-balance"):
        assert len([line for line in server.text().splitlines() if flag in line]) == 1, (flag, server.text())
    assert server.info()["sampling_backend"] == "pytorch"
    plain = cluster.unified()
    assert "--disable-overlap" not in plain.text() and "--sampling" not in plain.text()
    for format_name in ("pt", "gguf", "npcache"):
        code, _, err = run("prefill-server", *MODEL, "--load-format", format_name)
        assert code == 2 and f"argument --load-format: {format_name}" in err and "safetensors" in err
    # none is the only grammar backend of this build: constrained requests are refused by name.
    assert server.info()["grammar_backend"] == "none"
    status, answer, _ = http("POST", server.url + "/generate", {
        "text": "a", "sampling_params": {"max_new_tokens": 1, "regex": "a+"}})
    assert status == 400 and "regex" in answer["error"]["param"]


def test_tokenizer_from_another_folder(cluster, tmp_path):
    weights, words = tmp_path / "weights", tmp_path / "words"
    for folder, names in ((weights, ("config.json", "model.safetensors")), (words, ("tokenizer_config.json",))):
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes((DEMO_MODEL / name).read_bytes())
    # The same model, but it never merges: every byte is a token.
    tokenizer = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = []
    (words / "tokenizer.json").write_text(json.dumps(tokenizer))
    server = cluster.unified("--tokenizer-path", words, model=weights)
    assert http("POST", server.url + "/tokenize", {"prompt": "hello"})[1]["count"] == 5
    assert http("POST", cluster.unified().url + "/tokenize", {"prompt": "hello"})[1]["count"] < 5
    assert server.info()["tokenizer_path"] == str(words)


@pytest.mark.parametrize("method,to_busy", [("round_robin", 3), ("shortest_queue", 0)])
def test_load_balance_method(cluster, method, to_busy):
    """One worker is held by a long request: in turn, or away from it."""
    # The slow kernels make the long one last longer than any pause of this test.
    router = cluster.start("router", *MODEL, "--dp", 2, "--load-balance-method", method,
                           "--kernel-family", "reference", "--compute-threads", 1)

    def progress_and_running():
        return [(s["num_running_reqs"], s["progress"]) for s in router.info()["internal_states"]]
    stream = events(router.url + "/generate", {"text": "a", "sampling_params": greedy(4000), "stream": True})
    next(stream)
    wait_for(lambda: sorted(n for n, _ in progress_and_running()) == [0, 1], 10, "the router knows who is busy")
    # Beside the long one, or never beside it.
    most = 0
    answers = []
    while len(answers) < 4 and most < 2:
        thread = threading.Thread(target=lambda: answers.append(
            generate(router.url, text="Hello", sampling_params=greedy(40))))
        thread.start()
        while thread.is_alive():
            most = max(most, *(n for n, _ in progress_and_running()))
        thread.join()
    next(stream)
    assert (most > 1) == (to_busy > 0), most
    stream.close()


@pytest.mark.parametrize("reserved,together", [(1, 3), (512, 1)])
def test_reserved_decode_tokens_bound_admission(cluster, reserved, together):
    """Pool of 2000, prompts of 500: with 512 kept for each, a second one must wait."""
    router, _, _ = cluster.pd("--max-total-tokens", 2000, "--decode-log-interval", 1, "--disable-radix-cache",
                              decode_args=("--num-reserved-decode-tokens", reserved))
    decode = next(program for program in cluster.programs if program.name.startswith("decode-server"))
    threads = [threading.Thread(target=generate, args=(router.url,), kwargs={
        "input_ids": [10 + i] * 500, "sampling_params": greedy(100)}) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    most = max(int(n) for n in re.findall(r"event=decode_status running=(\d+)", decode.text()))
    assert most <= together and (together > 1 or most == 1), decode.text()[-2000:]
    if together > 1:
        assert most > 1


@pytest.mark.parametrize("name", ["mooncake", "nixl", "ucx"])
def test_every_transfer_backend_name_moves_the_bytes(cluster, name):
    router, _, _ = cluster.pd("--disaggregation-transfer-backend", name)
    whole = cluster.unified()
    wanted = generate(whole.url, text=LONG, sampling_params=greedy(8))["output_ids"]
    assert generate(router.url, text=LONG, sampling_params=greedy(8))["output_ids"] == wanted
    code, _, err = run("prefill-server", *MODEL, "--disaggregation-transfer-backend", "ascend")
    assert code == 2 and "another vendor's hardware" in err


def test_prefill_refuses_direct_requests_and_decode_too(cluster):
    for server in (cluster.prefill(), cluster.decode()):
        status, answer, _ = http("POST", server.url + "/generate", {"text": "Hello", "sampling_params": greedy(1)})
        assert status == 400 and answer["error"]["message"], answer
        assert server.info()["disaggregation_mode"] in ("prefill", "decode")
