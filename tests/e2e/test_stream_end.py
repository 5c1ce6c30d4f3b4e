"""How a stream ends on the wire: the last data and the end of the body are not held up by the kernel's timers.

With Nagle's algorithm against delayed acknowledgements every short write that follows another one waits some 40 ms.
"""
import json
import socket
import statistics
import time

import pytest

from conftest import SLOW, events, greedy

RUNS = 20
# Far below the 40 ms of a stall, far above what an unhurried machine needs: a detector, no benchmark.
STALL_S = 0.020


def read_stream(port, path, body):
    """(seconds from the last token's event to the end of the body, how many reads had part of the end, raw body)."""
    data = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=30 * SLOW) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"POST " + path.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                       b"Content-Length: " + str(len(data)).encode() + b"\r\n\r\n" + data)
        raw, arrivals = b"", []
        while not raw.endswith(b"\r\n0\r\n\r\n"):
            piece = client.recv(65536)
            assert piece, raw[-200:]
            raw += piece
            arrivals.append((len(raw), time.monotonic()))
        end = arrivals[-1][1]
        finish = raw.rindex(b'"finish_reason":')
        last_token = max(at for at in (raw.rfind(b'"content":"', 0, finish), raw.rfind(b'"text":"', 0, finish)))
        came = next(when for size, when in arrivals if size > last_token)
        reads = sum(size > finish for size, _ in arrivals)
        # The connection serves on: keep-alive.
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
    return end - came, reads, raw


def chunks(raw):
    """The payload of a chunked body, its framing checked."""
    head, body = raw.split(b"\r\n\r\n", 1)
    assert b"transfer-encoding: chunked" in head.lower()
    out = b""
    while True:
        size, body = body.split(b"\r\n", 1)
        count = int(size, 16)
        if count == 0:
            assert body == b"\r\n", "nothing follows the last chunk"
            return out
        assert body[count:count + 2] == b"\r\n"
        out, body = out + body[:count], body[count + 2:]


BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 8,
                             "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}},
    "/generate": {"text": "hi", "sampling_params": greedy(8), "stream": True},
}


@pytest.mark.parametrize("kind", ["alone", "pd"])
def test_the_end_of_a_stream_is_not_held_up(cluster, kind):
    server = cluster.unified() if kind == "alone" else cluster.pd()[0]
    for path, body in BODIES.items():
        gaps, together = [], 0
        for _ in range(RUNS):
            gap, reads, raw = read_stream(server.port, path, body)
            assert chunks(raw).endswith(b"data: [DONE]\n\n")
            gaps.append(gap)
            together += reads == 1
        print(f"{kind} {path}: last token to end of stream, median {statistics.median(gaps) * 1000:.2f} ms, "
              f"worst {max(gaps) * 1000:.2f} ms; the end in one read {together} of {RUNS}")
        assert statistics.median(gaps) < STALL_S * SLOW, gaps


@pytest.mark.parametrize("kind", ["alone", "pd"])
def test_a_slow_reader_gets_the_whole_stream(cluster, kind):
    """/generate repeats everything in each event: hundreds of megabytes, if each token's event had to be read."""
    server = cluster.unified() if kind == "alone" else cluster.pd()[0]
    body = {"input_ids": [5, 6, 7], "return_logprob": True, "stream": True,
            "sampling_params": {**greedy(1500), "ignore_eos": True}}
    count = 0
    for event in events(server.url + "/generate", body):
        if event == "[DONE]":
            break
        last = event
        count += 1
        if count < 40:
            time.sleep(0.01)
    assert event == "[DONE]"
    assert len(last["output_ids"]) == 1500 and len(last["meta_info"]["output_token_logprobs"]) == 1500
    assert last["meta_info"]["finish_reason"]["type"] == "length"


@pytest.mark.parametrize("kind", ["alone", "pd"])
def test_tokens_are_not_held_up(cluster, kind):
    """Each token's event is a short write of its own: with Nagle every second one would wait for an acknowledgement."""
    server = cluster.unified() if kind == "alone" else cluster.pd()[0]
    body = {**BODIES["/v1/chat/completions"], "max_tokens": 64}
    times = []
    for _ in range(5):
        began = time.monotonic()
        read_stream(server.port, "/v1/chat/completions", body)
        times.append(time.monotonic() - began)
    print(f"{kind}: 64 tokens streamed in {statistics.median(times) * 1000:.1f} ms")
    # 32 stalls of 40 ms would be 1.3 s on top.
    assert statistics.median(times) < 1.0 * SLOW, times
