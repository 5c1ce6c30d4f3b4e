"""Scheduling, KV pool, prefix cache, what is streamed and logged by an engine."""
import re

from cluster_support import events
from effects import (LONG, MODEL, batches, generate, greedy, http, notes, refused, running_together, wait_for)


def at_once(server, count, tokens, prompt_tokens=10):
    """One HTTP request that holds many prompts: they reach the engine together."""
    status, answers, _ = http("POST", server.url + "/generate", {
        "input_ids": [[10 + i] * prompt_tokens for i in range(count)], "sampling_params": greedy(tokens)})
    assert status == 200 and len(answers) == count, answers
    return answers


def test_max_running_requests(cluster):
    server = cluster.unified("--max-running-requests", 1, "--decode-log-interval", 1)
    at_once(server, 6, 100)
    assert running_together(server) == 1


def test_chunked_prefill_size(cluster):
    prompt = LONG * 20
    server = cluster.unified("--chunked-prefill-size", 32, "--disable-radix-cache", "--log-level", "debug")
    answer = generate(server.url, text=prompt, sampling_params=greedy(8))
    chunks = [tokens for tokens, _ in batches(server) if tokens > 0]
    assert sum(chunks) == answer["meta_info"]["prompt_tokens"] > 100
    assert chunks[:-1] == [32] * (len(chunks) - 1) and chunks[-1] <= 32, chunks
    whole = cluster.unified("--chunked-prefill-size", -1, "--disable-radix-cache", "--log-level", "debug")
    assert generate(whole.url, text=prompt, sampling_params=greedy(8))["output_ids"] == answer["output_ids"]
    assert [tokens for tokens, _ in batches(whole) if tokens > 0] == [sum(chunks)]


def test_max_prefill_tokens(cluster):
    server = cluster.unified("--max-prefill-tokens", 64, "--context-length", 64, "--disable-radix-cache",
                             "--log-level", "debug")
    at_once(server, 32, 2, prompt_tokens=25)
    assert max(tokens for tokens, _ in batches(server)) <= 64, batches(server)


def test_schedule_policy(cluster, run):
    """lpm: of two waiting requests the one whose prefix is cached goes first, though it came last."""
    known = LONG * 30
    server = cluster.unified("--schedule-policy", "lpm", "--max-running-requests", 1, "--log-requests")
    generate(server.url, text=known, sampling_params=greedy(1))
    status, answer, _ = http("POST", server.url + "/generate", {
        "text": ["a", "Something else entirely. " * 20, known], "rid": ["first", "fresh", "known"],
        "sampling_params": [greedy(1000), greedy(1), greedy(1)]})
    assert status == 200, answer
    ends = re.findall(r"event=request_finished request=\S+ name=(fresh|known) ", server.text())
    assert ends == ["known", "fresh"]
    assert "--schedule-policy: lof is known, but not built yet" in refused(
        run, "prefill-server", *MODEL, "--schedule-policy", "lof")
    # Without a prefix cache there is nothing to order by.
    assert "--disable-radix-cache leaves none" in refused(
        run, "prefill-server", *MODEL, "--schedule-policy", "lpm", "--disable-radix-cache")


def test_schedule_conservativeness(cluster):
    """min(1, 0.7 times the value) is the share that admission sets aside at first; it falls from there."""
    server = cluster.unified("--schedule-conservativeness", 0.5, "--decode-log-interval", 1)
    generate(server.url, text="Hello", sampling_params=greedy(8))
    ratios = [float(value) for value in re.findall(r"new_token_ratio=(\S+)", server.text())]
    assert 0.34 < ratios[0] <= 0.35 and ratios == sorted(ratios, reverse=True), ratios


def test_mem_fraction_static(run):
    pools = []
    for fraction in ("0.02", "0.04"):
        code, out, err = run("prefill-server", *MODEL, "--mem-fraction-static", fraction, "--dry-run")
        assert code == 0, err
        pools.append(int(re.search(r"KV pool +(\d+) bytes", out)[1]))
    assert 0 < pools[0] < pools[1]
    code, _, err = run("prefill-server", *MODEL, "--mem-fraction-static", "0.0001", "--dry-run")
    assert code == 2 and "raise --mem-fraction-static above" in err, err


def test_max_total_tokens(cluster):
    server = cluster.unified("--max-total-tokens", 1000, "--page-size", 16)
    assert server.info()["max_total_num_tokens"] == 992 == server.info()["max_total_tokens"]
    status, answer, _ = http("POST", server.url + "/generate", {"input_ids": [5] * 993, "sampling_params": greedy(1)})
    assert status == 400, answer
    # More than memory holds: what is in force is said.
    clamped = cluster.unified("--max-total-tokens", 2_000_000_000, "--mem-fraction-static", "0.02")
    assert len(notes(clamped, "--max-total-tokens 2000000000 is more than memory holds")) == 1, clamped.text()
    assert clamped.info()["max_total_num_tokens"] < 2_000_000_000


def test_page_size(cluster):
    server = cluster.unified("--page-size", 16)
    assert server.info()["max_total_num_tokens"] % 16 == 0
    cached = [generate(server.url, input_ids=[7] * 60, sampling_params=greedy(2))["meta_info"]["cached_tokens"]
              for _ in range(2)]
    assert cached == [0, 48], "whole pages only"


def test_disable_radix_cache(cluster):
    server = cluster.unified("--disable-radix-cache")
    for _ in range(2):
        answer = generate(server.url, text=LONG, sampling_params=greedy(2))
        assert answer["meta_info"]["cached_tokens"] == 0
    load = server.info()["internal_states"][0]
    assert load["cached_pages"] == load["used_pages"] == 0, load


def test_enable_cache_report(cluster):
    server = cluster.unified("--enable-cache-report")
    body = {"model": "default", "messages": [{"role": "user", "content": LONG}], "max_tokens": 2, "temperature": 0}
    http("POST", server.url + "/v1/chat/completions", body)
    usage = http("POST", server.url + "/v1/chat/completions", body)[1]["usage"]
    assert (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0) > 0, usage


def test_stream_interval(cluster):
    server = cluster.unified("--stream-interval", 8)
    got = [event for event in events(server.url + "/generate", {
        "text": LONG, "sampling_params": greedy(64), "stream": True}) if event != "[DONE]"]
    assert 8 <= len(got) <= 10, len(got)
    assert got[-1]["text"] == generate(server.url, text=LONG, sampling_params=greedy(64))["text"]


def test_decode_log_interval(cluster):
    server = cluster.unified("--decode-log-interval", 1)
    generate(server.url, text=LONG, sampling_params=greedy(30))
    # The first token is the prefill's; the step that ends a request has nobody running after it.
    assert server.text().count("event=decode_status") >= 28, server.text()


def test_log_requests(cluster):
    server = cluster.unified("--log-requests")
    generate(server.url, text=LONG, rid="my-name", sampling_params=greedy(5))
    lines = [line for line in server.text().splitlines() if "my-name" in line]
    assert ["event=request_received" in line for line in lines] == [True, False], lines
    assert "event=request_finished" in lines[1] and "completion_tokens=5" in lines[1], lines
    # What a router submits is logged too, in every role.
    router, prefill, decode = cluster.pd("--log-requests")
    generate(router.url, text=LONG, rid="routed", sampling_params=greedy(5))
    for worker in prefill + decode:
        wait_for(lambda w=worker: w.text().count("name=routed ") == 2, 30, f"two lines of {worker.name}")
    assert "event=request_finished" in decode[0].text() and "completion_tokens=4" in decode[0].text()


def test_log_level(cluster):
    debug = cluster.unified("--log-level", "DEBUG")
    generate(debug.url, text="Hello", sampling_params=greedy(4))
    assert "level=debug" in debug.text(), "a line per batch"
    quiet = cluster.unified("--log-level", "error")
    generate(quiet.url, text="Hello", sampling_params=greedy(4))
    assert quiet.text() == "", "nothing was wrong, so nothing is said"


def test_enable_metrics(cluster):
    server = cluster.unified("--enable-metrics")
    generate(server.url, text="Hello", sampling_params=greedy(4))
    status, text, _ = http("GET", server.url + "/metrics")
    assert status == 200, text
    assert re.search(r'^sglang:generation_tokens_total\{.*is_streaming="false".*\} 4$', text, re.M), text
    bootstrap = cluster.start("bootstrap-server", "--enable-metrics")
    assert "tandem_bootstrap_rows 0" in http("GET", bootstrap.url + "/metrics")[1]
