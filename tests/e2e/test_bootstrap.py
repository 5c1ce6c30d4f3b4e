"""SGLang's bootstrap routes, on bootstrap-server and on the port that a prefill worker embeds."""
import pytest

from conftest import http, wait_for

LAYOUT = {"prefill_dp_rank": -1, "prefill_cp_rank": -1, "target_tp_rank": -1, "target_pp_rank": -1}


def route(url, **ranks):
    query = "&".join(f"{k}={v}" for k, v in {**LAYOUT, **ranks}.items())
    return http("GET", f"{url}/route?{query}")


def rank(url, dp=0, cp=0, tp=0, pp=0):
    return route(url, prefill_dp_rank=dp, prefill_cp_rank=cp, target_tp_rank=tp, target_pp_rank=pp)


def row(**more):
    return {"role": "Prefill", "attn_tp_size": 1, "attn_tp_rank": 0, "attn_dp_size": 1, "attn_dp_rank": 0,
            "pp_size": 1, "pp_rank": 0, "rank_ip": "10.0.0.1", "rank_port": 5001, "page_size": 16,
            "kv_cache_dtype": "bf16", "load_balance_method": "round_robin", **more}


def error_of(answer):
    """The message; checks OpenAI's shape on the way."""
    status, body, _ = answer
    assert isinstance(body, dict) and body["error"]["message"], (status, body)
    assert body["error"]["code"] == status
    return body["error"]["message"]


def test_ranks_register_and_are_found(cluster):
    server = cluster.start("bootstrap-server")
    url = server.url
    assert http("GET", url + "/health")[0] == 200
    assert route(url)[0] == 503, "nobody is in"
    # Two ranks of one deployment: not ready before the second is in, in whatever order they come.
    two = {"attn_tp_size": 2}
    assert http("PUT", url + "/route", row(attn_tp_rank=1, rank_ip="10.0.0.2", **two))[0] == 200
    assert route(url)[0] == 503, "one rank of two is in"
    assert rank(url, tp=1)[0] == 503
    assert http("PUT", url + "/route", row(**two))[0] == 200
    status, layout, _ = route(url)
    assert status == 200, layout
    assert (layout["attn_tp_size"], layout["dp_size"], layout["pp_size"], layout["page_size"]) == (2, 1, 1, 16)
    assert layout["kv_cache_dtype"] == "bf16" and layout["follow_bootstrap_room"] is True
    for tp, ip in ((0, "10.0.0.1"), (1, "10.0.0.2")):
        status, found, _ = rank(url, tp=tp)
        assert (status, found["rank_ip"], found["rank_port"]) == (200, ip, 5001)
    answer = rank(url, tp=2)
    assert answer[0] == 404 and error_of(answer)
    answer = rank(url, dp=1)
    assert answer[0] == 404 and error_of(answer)


def test_registering_again_replaces(cluster):
    url = cluster.start("bootstrap-server").url
    for port in (5001, 5002, 5002):
        assert http("PUT", url + "/route", row(rank_port=port))[0] == 200
    assert rank(url)[1]["rank_port"] == 5002
    # Another layout is another deployment: the old rank does not count towards it.
    assert http("PUT", url + "/route", row(attn_tp_size=2, attn_tp_rank=1))[0] == 200
    assert route(url)[0] == 503
    assert http("PUT", url + "/route", row(attn_tp_size=2, rank_port=5003))[0] == 200
    assert rank(url)[1]["rank_port"] == 5003


def test_rooms_of_ranks(cluster):
    url = cluster.start("bootstrap-server").url
    big = 2**63 - 1
    for room, dp in ((1, 0), (2, 3), (big, 7), (2, 4)):
        assert http("POST", url + "/register_dp_rank", {"bootstrap_room": room, "dp_rank": dp})[0] == 200
    status, ranks, _ = http("POST", url + "/query_dp_ranks", {"bootstrap_rooms": [2, big, 1, 99]})
    assert status == 200
    assert ranks == {"1": 0, "2": 4, str(big): 7}, "a room that nobody named is left out"


@pytest.mark.parametrize("body,names", [
    (b"{", "line 1, column 2"), (b"[]", "object"), (b"\xff", ""), (b"[" * 100_000, "deep"), (b" " * (5 << 20), ""),
    (row(attn_tp_size=0), "attn_tp_size"), (row(attn_tp_rank="0"), "attn_tp_rank"), (row(rank_ip=""), "rank_ip"),
    (row(rank_port=0), "rank_port"), (row(role="Decode"), "role"), (row(attn_dp_size=2**40), "attn_dp_size"),
    (row(attn_tp_rank=1), ""), (row(rank_ip="x" * 5000), ""),
    *[({k: v for k, v in row().items() if k != gone}, gone)
      for gone in ("attn_tp_size", "attn_tp_rank", "attn_dp_size", "attn_dp_rank", "pp_size", "pp_rank", "rank_ip",
                   "rank_port")],
], ids=lambda v: (repr(v)[:30] if not isinstance(v, dict) else "row"))
def test_bad_rows_change_nothing(cluster, body, names):
    url = cluster.start("bootstrap-server").url
    answer = http("PUT", url + "/route", body)
    assert answer[0] == 400, answer
    assert names in error_of(answer)
    assert route(url)[0] == 503
    assert http("GET", url + "/health")[0] == 200


def test_bad_questions(cluster):
    url = cluster.start("bootstrap-server").url
    assert http("PUT", url + "/route", row())[0] == 200
    for query, names in (("", "prefill_dp_rank"), ("prefill_dp_rank=0", "prefill_cp_rank"),
                         ("prefill_dp_rank=x&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0", "prefill_dp_rank"),
                         ("prefill_dp_rank=-2&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0", "prefill_dp_rank")):
        answer = http("GET", f"{url}/route?{query}")
        assert answer[0] == 400 and names in error_of(answer), query
    for path, body, names in (("/register_dp_rank", {}, "bootstrap_room"),
                              ("/register_dp_rank", {"bootstrap_room": 1}, "dp_rank"),
                              ("/register_dp_rank", {"bootstrap_room": -1, "dp_rank": 0}, "bootstrap_room"),
                              ("/query_dp_ranks", {}, "bootstrap_rooms"),
                              ("/query_dp_ranks", {"bootstrap_rooms": 1}, "bootstrap_rooms"),
                              ("/query_dp_ranks", {"bootstrap_rooms": ["1"]}, "bootstrap_rooms[0]")):
        answer = http("POST", url + path, body)
        assert answer[0] == 400 and names in error_of(answer), (path, body)
    assert http("POST", url + "/route", {})[0] == 405
    assert http("GET", url + "/nothing")[0] == 404
    assert http("GET", url + "/metrics")[0] == 404, "only with --enable-metrics"


def test_metrics_count_rows(cluster):
    url = cluster.start("bootstrap-server", "--enable-metrics").url
    assert http("PUT", url + "/route", row())[0] == 200
    text = http("GET", url + "/metrics")[1]
    assert "tandem_bootstrap_rows 1" in text


def test_a_prefill_worker_embeds_the_service(cluster):
    worker = cluster.prefill()
    url = f"http://127.0.0.1:{worker.ports['bootstrap_port']}"
    assert http("GET", url + "/health")[0] == 200
    info = worker.info()
    wait_for(lambda: route(url)[0] == 200, 10, "it has registered with itself")
    layout = route(url)[1]
    assert (layout["attn_tp_size"], layout["dp_size"], layout["pp_size"]) == (1, 1, 1)
    assert layout["page_size"] == info["page_size"]
    assert layout["http_address"].endswith(f":{worker.port}")
    assert layout["model_digest"] == info["model_digest"]
    status, found, _ = rank(url)
    assert status == 200
    assert found["rank_port"] == worker.ports["grpc_port"]
    assert rank(url, tp=1)[0] == 404
    assert http("POST", url + "/register_dp_rank", {"bootstrap_room": 5, "dp_rank": 0})[0] == 200
    assert http("POST", url + "/query_dp_ranks", {"bootstrap_rooms": [5]})[1] == {"5": 0}


def test_a_worker_registers_at_a_bootstrap_server_and_again_after_its_restart(cluster):
    server = cluster.start("bootstrap-server")
    worker = cluster.prefill("--disaggregation-bootstrap-address", f"127.0.0.1:{server.port}")
    wait_for(lambda: route(server.url)[0] == 200, 10, "the worker is in")
    server.kill()
    server.process.wait()
    again = cluster.start("bootstrap-server", "--port", server.port)
    wait_for(lambda: route(again.url)[0] == 200, 10, "the worker is in again")
    assert route(again.url)[1]["http_address"].endswith(f":{worker.port}")
