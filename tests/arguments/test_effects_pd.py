"""Prefill and decode in separate processes, seen from a worker."""
import re

from effects import LONG, MODEL, Taken, ended_or_listens, generate, greedy, http, notes, refused, running_together, wait_for


def test_disaggregation_mode(cluster):
    for server in (cluster.prefill(), cluster.decode()):
        role = server.name.split("-")[0]
        assert server.info()["disaggregation_mode"] == role
        status, answer, _ = http("POST", server.url + "/generate", {"text": "Hello", "sampling_params": greedy(1)})
        assert status == 400 and answer["error"]["message"], answer


def test_disaggregation_transfer_backend(cluster, run):
    """The three names of UCX move the bytes; both ends must say the same one."""
    prefill = cluster.prefill("--disaggregation-transfer-backend", "ucx", wait=False)
    same = cluster.decode("--disaggregation-transfer-backend", "ucx", wait=False)
    other = cluster.decode("--disaggregation-transfer-backend", "nixl", wait=False)
    for program in (prefill, same, other):
        program.wait_ready()
    good, bad = cluster.router(prefill=[prefill], decode=[same]), cluster.router(prefill=[prefill], decode=[other])
    assert len(generate(good.url, text=LONG, sampling_params=greedy(8))["output_ids"]) == 8
    status, answer, _ = http("POST", bad.url + "/generate", {"text": LONG, "sampling_params": greedy(50)})
    assert status >= 400 and "transfer_backend: prefill has ucx, decode has nixl" in answer["error"]["message"], answer
    assert "ascend needs another vendor's hardware" in refused(
        run, "prefill-server", *MODEL, "--disaggregation-transfer-backend", "ascend")


def test_disaggregation_bootstrap_port(cluster):
    with Taken() as port:
        taken = cluster.prefill("--disaggregation-bootstrap-port", port, wait=False)
        assert ended_or_listens(taken) == 1, taken.text()
        assert f"127.0.0.1:{port}" in taken.text() and "--disaggregation-bootstrap-port" in taken.text()


def test_num_reserved_decode_tokens(cluster):
    """Pool of 2000, prompts of 500: with the 512 of the default a second one would have to wait."""
    router, _, decode = cluster.pd("--max-total-tokens", 2000, "--decode-log-interval", 1, "--disable-radix-cache",
                                   decode_args=("--num-reserved-decode-tokens", 1))
    status, answers, _ = http("POST", router.url + "/generate", {
        "input_ids": [[10 + i] * 500 for i in range(3)], "sampling_params": greedy(400)})
    assert status == 200 and [len(answer["output_ids"]) for answer in answers] == [400] * 3
    assert running_together(decode[0]) > 1


def test_disaggregation_bootstrap_address(cluster):
    bootstrap = cluster.start("bootstrap-server")
    worker = cluster.prefill("--disaggregation-bootstrap-address", f"127.0.0.1:{bootstrap.port}")
    assert worker.ports["bootstrap_port"] == 0, "none of its own"
    whole = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    wait_for(lambda: http("GET", bootstrap.url + whole)[0] == 200, 30, "the worker is in")
    assert http("GET", bootstrap.url + whole)[1]["http_address"].endswith(f":{worker.port}")


def test_disaggregation_grant_window(cluster):
    """A window of the whole prompt needs one grant; two chunks ahead would need many."""
    router, _, decode = cluster.pd("--page-size", 4, "--chunked-prefill-size", 16, "--log-level", "debug",
                                   decode_args=("--disaggregation-grant-window", 100))
    generate(router.url, input_ids=[7] * 400, sampling_params=greedy(4))
    grants = [int(n) for n in re.findall(r"event=kv_transfer_done .* grants=(\d+)", decode[0].text())]
    assert grants == [1]


def test_disaggregation_advertise_host(cluster):
    worker = cluster.prefill("--disaggregation-advertise-host", "localhost")
    assert worker.info()["grpc_address"] == f"localhost:{worker.ports['grpc_port']}"
    url = f"http://127.0.0.1:{worker.ports['bootstrap_port']}"
    whole = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    wait_for(lambda: http("GET", url + whole)[0] == 200, 30, "the worker is in")
    assert http("GET", url + whole)[1]["http_address"] == f"localhost:{worker.port}"


def test_prefill_round_robin_balance(cluster):
    """With one copy there is nothing to choose: a no-op, reported by name."""
    server = cluster.decode("--prefill-round-robin-balance")
    assert len(notes(server, "--prefill-round-robin-balance has no effect")) == 1, server.text()
