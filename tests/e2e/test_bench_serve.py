"""The load client bench/serve against real servers: its counts, its keys, its exit codes."""
import json
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import BINARY_DIR, DEMO_MODEL, SLOW

SERVE = BINARY_DIR / "bench" / "serve"
pytestmark = pytest.mark.skipif(not SERVE.exists(), reason="skipped: built without benchmarks")
LATENCIES = [f"{what}_{name}_ms" for what in ("mean", "median", "std", "p99")
             for name in ("ttft", "tpot", "itl", "e2e_latency", "e2el")]
KEYS = LATENCIES + ["duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
                    "input_throughput", "output_throughput", "concurrency", "max_concurrency", "request_rate",
                    "total_token_throughput", "request_goodput", "accept_length", "max_concurrent_requests", "burstiness"]


def serve(*words):
    done = subprocess.run([str(SERVE), *map(str, words)], capture_output=True, text=True, timeout=120 * SLOW)
    assert done.returncode >= 0, f"ended by signal {-done.returncode}"
    return done


def measured(folder, server, *words, code=0):
    file = folder / "test-serve.jsonl"
    file.unlink(missing_ok=True)
    done = serve("--base-url", server.url, "--output-file", file, "--output-details", *words)
    assert done.returncode == code, done.stderr
    (line,) = file.read_text().splitlines()
    return json.loads(line), done


def test_every_backend_counts_what_the_server_did(cluster):
    server = cluster.unified()
    common = ["--num-prompts", 6, "--random-input-len", 24, "--random-output-len", 8, "--random-range-ratio", 1,
              "--max-concurrency", 3]
    for backend in ("sglang", "sglang-oai", "sglang-oai-chat"):
        for stream in ([], ["--disable-stream"]):
            result, done = measured(cluster.folder, server, "--backend", backend, *common, *stream)
            assert [key for key in KEYS if key not in result] == []
            assert (result["completed"], result["failed"]) == (6, 0)
            assert result["output_lens"] == [8] * 6
            assert result["total_output_tokens"] == 48
            if backend != "sglang-oai-chat":
                assert result["total_input_tokens"] == 6 * 24
            assert 0 < result["median_ttft_ms"] <= result["max_e2e_latency_ms"]
            assert 0 < result["concurrency"] <= 3.01
            if not stream:
                assert all(len(gaps) <= 7 for gaps in result["itls"])
            assert "Output token throughput" in done.stdout


def test_rate_and_goodput(cluster):
    server = cluster.unified()
    words = ["--num-prompts", 5, "--random-input-len", 8, "--random-output-len", 4, "--request-rate", 50]
    result, _ = measured(cluster.folder, server, *words, "--goodput", "ttft:1e9", "tpot:1e9", "e2el:1e9")
    assert result["request_goodput"] == pytest.approx(result["request_throughput"])
    result, _ = measured(cluster.folder, server, *words, "--goodput", "ttft:0")
    assert result["request_goodput"] == 0


def test_result_file_of_vllm(cluster):
    server = cluster.unified()
    folder = cluster.folder / "test-results"
    words = ["--backend", "vllm", "--endpoint", "/v1/completions", "--num-prompts", 4, "--input-len", 8,
             "--output-len", 6, "--random-range-ratio", 1, "--request-rate", 200, "--burstiness", 0.5,
             "--max-concurrency", 2, "--ignore-eos", "--disable-tqdm", "--tokenizer", DEMO_MODEL, "--percentile-metrics", "ttft,e2el", "--metric-percentiles",
             "25,99.9", "--metadata", "tp=1", "--request-id-prefix", "t-", "--save-result", "--result-dir", folder]
    result, done = measured(cluster.folder, server, *words)
    (file,) = folder.iterdir()
    assert re.fullmatch(r"vllm-200.0qps-concurrency2-[^/]+-\d{8}-\d{6}\.json", file.name)
    saved = json.loads(file.read_text())
    assert set(result) - set(saved) >= {"ttfts", "itls", "latencies", "start_times", "generated_texts", "errors"}
    assert saved == {key: result[key] for key in saved}
    assert 0 < saved["p25_ttft_ms"] <= saved["p99.9_ttft_ms"] <= saved["max_ttft_ms"]
    assert saved["p99.9_e2el_ms"] >= saved["median_e2el_ms"] == saved["median_e2e_latency_ms"]
    assert "p25_itl_ms" not in saved and saved["tp"] == "1" and saved["burstiness"] == 0.5
    assert saved["total_token_throughput"] == saved["total_throughput"]
    assert saved["total_output_tokens"] == 24 and saved["total_output_tokens_retokenized"] > 0
    assert 1 <= saved["max_concurrent_requests"] <= 2
    assert "P99.9 E2E latency" in done.stdout and "ITL" not in done.stdout
    lost = serve("--base-url", server.url, *words, "--result-filename", "no/such/folder.json")
    assert lost.returncode == 1 and "cannot write" in lost.stderr


def test_request_ids_and_names_are_sent():
    """Looked at from the other side: a server that keeps what it got."""
    heads, bodies = [], []

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            heads.append((self.path, self.headers.get("x-request-id")))
            bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            body = json.dumps({"choices": [{"text": "a", "finish_reason": "length"}],
                               "usage": {"prompt_tokens": 4, "completion_tokens": 1}}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.send_error(404)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = serve("--port", server.server_port, "--backend", "vllm", "--disable-stream", "--num-prompts", 3,
                     "--input-len", 4, "--model", "org/m", "--served-model-name", "other", "--max-concurrency", 1,
                     "--endpoint", "/deep/v1/completions", "--request-id-prefix", "run7-")
        server.shutdown()
    assert done.returncode == 0, done.stderr
    # The warm-up has no id: names are for what is measured.
    assert [name for _, name in heads] == [None, "run7-0", "run7-1", "run7-2"]
    assert {path for path, _ in heads} == {"/deep/v1/completions"}
    assert {body["model"] for body in bodies} == {"other"}


def test_failures_are_counted_and_only_total_failure_fails_the_run(cluster):
    server = cluster.unified()
    turns = [{"value": "What does --dp-size do?"}, {"value": "It sets a size, I think."}]
    long = [{"value": "word " * 8000}, turns[1]]
    file = cluster.folder / "test-conversations.json"
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": long}, {"conversations": turns[:1]}]))
    dataset = ["--dataset-name", "sharegpt", "--dataset-path", file, "--sharegpt-output-len", 5]
    result, done = measured(cluster.folder, server, "--num-prompts", 3, *dataset)
    assert (result["completed"], result["failed"]) == (1, 1)
    assert "1 of 2 requests failed" in done.stderr
    assert sorted(bool(error) for error in result["errors"]) == [False, True]

    result, done = measured(cluster.folder, server, "--num-prompts", 2, "--extra-request-body",
                            '{"sampling_params": {"temperature": -1}}', code=1)
    assert (result["completed"], result["failed"]) == (0, 2)
    assert "HTTP 400" in done.stderr


def test_nobody_there_and_bad_flags():
    # Port 9 (discard) is never served here; connecting is refused at once.
    done = serve("--port", 9, "--num-prompts", 1, "--model", "m", "--random-input-len", 4)
    assert done.returncode == 1 and "cannot connect" in done.stderr
    done = serve("--backend", "none")
    assert done.returncode == 2 and "--backend" in done.stderr
    done = serve("--temperature", "0")
    assert done.returncode == 2 and "--extra-request-body" in done.stderr
    done = serve("--metadata", "duration=1")
    assert done.returncode == 2 and "'duration' is the name of a figure" in done.stderr
