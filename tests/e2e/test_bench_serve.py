"""The load client bench/serve against real servers: its counts, its keys, its exit codes."""
import json
import subprocess

import pytest

from conftest import BINARY_DIR, SLOW

SERVE = BINARY_DIR / "bench" / "serve"
pytestmark = pytest.mark.skipif(not SERVE.exists(), reason="skipped: built without benchmarks")
LATENCIES = [f"{what}_{name}_ms" for what in ("mean", "median", "std", "p99")
             for name in ("ttft", "tpot", "itl", "e2e_latency")]
KEYS = LATENCIES + ["duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
                    "input_throughput", "output_throughput", "concurrency", "max_concurrency", "request_rate"]


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
