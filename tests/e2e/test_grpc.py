"""grpcio from Python: plain generation, health and reflection on the HTTP port of a server and of a router."""
import json
import socket
import struct
import time

import pytest

from conftest import SLOW, by_url, generate, greedy, http, pages_in_use, serving, wait_for

grpc = pytest.importorskip("grpc")
health_pb2 = pytest.importorskip("grpc_health.v1.health_pb2")
health_pb2_grpc = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
reflection = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")

TEXT = "What does --dp-size do?"
# With the scalar kernels 4,000 tokens take seconds: a request that ends before was ended by somebody.
UNHURRIED = ("--kernel-family", "reference")


@pytest.fixture(scope="session")
def api(stubs):
    """(messages, stubs) of the plain generation service."""
    return stubs("generate_pb2", "generate_pb2_grpc")


class Served:
    def __init__(self, api, url, workers):
        self.messages, self.stubs = api
        self.url, self.workers = url, workers
        self.channel = grpc.insecure_channel(url.removeprefix("http://"))
        self.stub = self.stubs.GenerationStub(self.channel)

    def request(self, sampling=None, **fields):
        if "input_ids" in fields:
            fields["input_ids"] = self.messages.TokenIds(ids=fields["input_ids"])
        return self.messages.GenerateRequest(sampling=self.messages.SamplingOptions(**(sampling or {})), **fields)

    def call(self, sampling=None, timeout=60 * SLOW, metadata=None, **fields):
        return self.stub.Generate(self.request(sampling, **fields), timeout=timeout, metadata=metadata)

    def refused(self, sampling=None, metadata=None, **fields):
        try:
            answer = list(self.call(sampling, metadata=metadata, **fields))
        except grpc.RpcError as error:
            return error.code(), error.details()
        raise AssertionError(f"not refused: {sampling} {fields}: {answer}")

    def pages(self):
        return sum(pages_in_use(w) for w in self.workers)


@pytest.fixture(params=["alone", "pd"])
def start(request, cluster, api):
    """Starts programs: `args` for the one that clients talk to, `workers` for those that run the model."""
    started = []

    def make(*args, workers=()):
        workers = ("--served-model-name", "demo", *workers)
        if request.param == "alone":
            server = cluster.unified(*workers, *args)
            served = Served(api, server.url, [server])
        else:
            router, prefill, decode = cluster.pd(*workers, router_args=args)
            served = Served(api, router.url, prefill + decode)
        started.append(served)
        return served

    yield make
    for served in started:
        served.channel.close()


def test_same_tokens_as_http(start):
    served = start()
    ids = http("POST", served.url + "/tokenize", {"prompt": TEXT})[1]["tokens"]
    for sampling in (greedy(24), {"temperature": 1.3, "max_new_tokens": 24, "ignore_eos": True, "seed": 11}):
        native = {("sampling_seed" if k == "seed" else k): v for k, v in sampling.items()}
        want = generate(served.url, text=TEXT, sampling_params=native)
        for prompt in ({"text": TEXT}, {"input_ids": ids}):
            whole = list(served.call(sampling, **prompt))
            assert len(whole) == 1
            assert list(whole[0].output_ids) == want["output_ids"]
            assert whole[0].text == want["text"]
            assert whole[0].finish_reason == "length"
            assert whole[0].prompt_tokens == len(ids) and whole[0].completion_tokens == 24
            parts = list(served.call(sampling, stream=True, **prompt))
            assert len(parts) > 1
            assert [i for part in parts for i in part.output_ids] == want["output_ids"]
            assert "".join(part.text for part in parts) == want["text"]
            assert [part.finish_reason for part in parts[:-1]] == [""] * (len(parts) - 1)
            assert parts[-1].finish_reason == "length" and parts[-1].completion_tokens == 24


def test_end_token_and_request_id(start):
    served = start()
    chat = http("POST", served.url + "/tokenize", {"messages": [{"role": "user", "content": TEXT}]})[1]["tokens"]
    want = generate(served.url, input_ids=chat, sampling_params={"temperature": 0, "max_new_tokens": 200})
    got = next(served.call({"temperature": 0, "max_new_tokens": 200}, input_ids=chat, request_id="mine-7"))
    assert got.request_id == "mine-7"
    assert list(got.output_ids) == want["output_ids"] and got.text == want["text"]
    assert got.finish_reason == want["meta_info"]["finish_reason"]["type"] == "stop"
    assert got.matched_token == want["meta_info"]["finish_reason"]["matched"]


def test_stop_strings(start):
    served = start()
    full = next(served.call(greedy(40), text=TEXT, return_logprob=True))
    pieces = [served_text for served_text in full.text.split(" ") if served_text]
    # From within a word over a space into the next: no single token holds it.
    stop = pieces[2][-1] + " " + pieces[3][:1]
    want = full.text[:full.text.index(stop)]
    whole = next(served.call({**greedy(40), "stop": [stop, "never said"]}, text=TEXT))
    assert (whole.text, whole.finish_reason, whole.matched_stop) == (want, "stop", stop)
    parts = list(served.call({**greedy(40), "stop": [stop]}, text=TEXT, stream=True))
    assert "".join(p.text for p in parts) == want
    assert parts[-1].matched_stop == stop and parts[-1].finish_reason == "stop"
    wait_for(lambda: served.pages() == 0, 1, "pages back after a stop string")


def test_logprobs(start):
    served = start()
    body = {"text": TEXT, "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    want = generate(served.url, sampling_params=greedy(6), **body)["meta_info"]
    got = next(served.call(greedy(6), **body))
    for ours, theirs in ((got.output_logprobs, want["output_token_logprobs"]),
                         (got.input_logprobs, want["input_token_logprobs"])):
        assert [entry.token for entry in ours] == [token for _, token, _ in theirs]
        for entry, (logprob, _, _) in zip(ours, theirs):
            assert entry.HasField("logprob") == (logprob is not None)
            if logprob is not None:
                assert abs(entry.logprob - logprob) < 0.02
                assert len(entry.top_ids) == len(entry.top_logprobs) == 2
    parts = list(served.call(greedy(6), stream=True, **body))
    assert [e.token for p in parts for e in p.output_logprobs] == [e.token for e in got.output_logprobs]
    assert [e.token for p in parts for e in p.input_logprobs] == [e.token for e in got.input_logprobs]


def test_deadline(start):
    served = start(workers=UNHURRIED)
    began = time.monotonic()
    with pytest.raises(grpc.RpcError) as error:
        for _ in served.call(greedy(4000), text=TEXT, stream=True, timeout=0.1 * SLOW):
            pass
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 5 * SLOW
    wait_for(lambda: served.pages() == 0, 1, "pages back after a deadline")
    assert next(served.call(greedy(2), text=TEXT)).completion_tokens == 2


@pytest.mark.parametrize("stream", [True, False])
def test_cancel_frees_pages(start, stream):
    served = start(workers=UNHURRIED)
    call = served.call(greedy(4000), text=TEXT, stream=stream)
    if stream:
        next(call)
    wait_for(lambda: served.pages() > 0, 5, "pages of a running request")
    call.cancel()
    wait_for(lambda: served.pages() == 0, 1, "pages back after a cancelled call")


def test_abort_by_request_id(start):
    served = start(workers=UNHURRIED)
    call = served.call(greedy(4000), text=TEXT, stream=True, request_id="victim")
    next(call)
    served.stub.Abort(served.messages.AbortRequest(request_id="somebody-else"))
    next(call)
    served.stub.Abort(served.messages.AbortRequest(request_id="victim"))
    with pytest.raises(grpc.RpcError) as error:
        list(call)
    assert error.value.code() == grpc.StatusCode.CANCELLED
    wait_for(lambda: served.pages() == 0, 1, "pages back after an abort")


def test_bad_input(start):
    served = start()
    limit = http("GET", served.url + "/v1/models")[1]["data"][0]["max_model_len"]
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    rows = [
        ("temperature", {"temperature": -1}, {"text": "x"}),
        ("temperature", {"temperature": float("nan")}, {"text": "x"}),
        ("top_p", {"top_p": 2}, {"text": "x"}),
        ("max_new_tokens", {"max_new_tokens": -1}, {"text": "x"}),
        ("stop", {"stop": [""]}, {"text": "x"}),
        ("stop", {"stop": ["x"] * 1000}, {"text": "x"}),
        ("logit_bias", {"logit_bias": {10 ** 9: 1.0}}, {"text": "x"}),
        ("prompt", {}, {}),
        ("prompt", {}, {"text": ""}),
        ("input_ids", {}, {"input_ids": [5, 10 ** 9]}),
        ("input_ids", {}, {"input_ids": [-1]}),
        ("top_logprobs_num", {}, {"text": "x", "return_logprob": True, "top_logprobs_num": 10 ** 6}),
        ("logprob_start_len", {}, {"text": "x", "return_logprob": True, "logprob_start_len": 10 ** 6}),
        ("request_id", {}, {"text": "x", "request_id": "no spaces please"}),
        (str(limit), {}, {"input_ids": [7] * (limit + 1)}),
        (str(limit), {"max_new_tokens": limit}, {"input_ids": [7] * 8}),
    ]
    for name, sampling, fields in rows:
        code, details = served.refused(sampling, **fields)
        assert code == invalid, (name, sampling, code, details)
        assert name in details, (name, details)
    code, details = served.refused(text="x", model="gpt-nothing")
    assert code == grpc.StatusCode.NOT_FOUND and "gpt-nothing" in details
    assert next(served.call(greedy(2), text="x", model="demo")).completion_tokens == 2


def test_keys(start):
    served = start("--api-key", "right")
    for metadata in (None, [("authorization", "Bearer wrong")], [("authorization", "right")]):
        code, details = served.refused(greedy(2), metadata=metadata, text="x")
        assert code == grpc.StatusCode.UNAUTHENTICATED, metadata
        assert "right" not in details
    key = [("authorization", "Bearer right")]
    assert next(served.call(greedy(2), metadata=key, text="x")).completion_tokens == 2
    for call, request in ((served.stub.GetModelInfo, served.messages.ModelInfoRequest()),
                          (served.stub.GetServerInfo, served.messages.ServerInfoRequest()),
                          (served.stub.Abort, served.messages.AbortRequest(all=True))):
        with pytest.raises(grpc.RpcError) as error:
            call(request)
        assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
        call(request, metadata=key)
    health = health_pb2_grpc.HealthStub(served.channel).Check(health_pb2.HealthCheckRequest())
    assert health.status == health_pb2.HealthCheckResponse.SERVING, "health checks stay open"


def test_health_and_reflection_and_info(start):
    served = start()
    health = health_pb2_grpc.HealthStub(served.channel)
    for service in ("", "tandem.v1.Generation"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING, service
    with pytest.raises(grpc.RpcError) as error:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"))
    assert error.value.code() == grpc.StatusCode.NOT_FOUND
    known = reflection.ProtoReflectionDescriptorDatabase(served.channel)
    services = set(known.get_services())
    assert {"tandem.v1.Generation", "grpc.health.v1.Health"} <= services
    described = known.FindFileContainingSymbol("tandem.v1.Generation")
    assert "GenerateRequest" in [m.name for m in described.message_type]
    info = served.stub.GetModelInfo(served.messages.ModelInfoRequest())
    native = http("GET", served.url + "/get_model_info")[1]
    assert info.is_generation and info.model.served_model_name == "demo"
    assert info.model.model_path == native["model_path"]
    arguments = json.loads(served.stub.GetServerInfo(served.messages.ServerInfoRequest()).json)
    assert arguments["port"] == http("GET", served.url + "/get_server_info")[1]["port"]


def test_timings_and_cached_tokens(start):
    served = start()
    prompt = list(range(100, 200))
    cold = next(served.call(greedy(4), input_ids=prompt))
    warm = list(served.call(greedy(4), input_ids=prompt, stream=True))
    assert cold.cached_tokens == 0 and warm[-1].cached_tokens > 0
    for last in (cold, warm[-1]):
        assert last.timings.HasField("queue_ns") and last.timings.HasField("prefill_ns")
        assert last.timings.HasField("kv_transfer_bytes") == (len(served.workers) > 1)
        assert last.timings.kv_transfer_bytes > 0 or len(served.workers) == 1


def test_own_grpc_port(cluster, api):
    """--grpc-port 0 moves gRPC to a port of its own; HTTP stays where it is."""
    server = cluster.unified("--grpc-port", "0")
    port = server.ports["grpc_port"]
    assert port != server.port
    served = Served(api, f"http://127.0.0.1:{port}", [server])
    assert next(served.call(greedy(2), text="x")).completion_tokens == 2
    served.channel.close()


def test_calls_count_in_the_metrics(cluster, api):
    server = cluster.unified("--enable-metrics", "--served-model-name", "demo")
    served = Served(api, server.url, [server])
    list(served.call(greedy(5), input_ids=[5, 6, 7], stream=True))
    list(served.call(greedy(5), input_ids=[5, 6, 7]))
    text = http("GET", server.url + "/metrics")[1]
    totals = {}
    for line in text.splitlines():
        if line.startswith("sglang:"):
            name = line.split("{")[0]
            totals[name] = totals.get(name, 0) + float(line.rsplit(" ", 1)[1])
    assert totals["sglang:num_requests_total"] == 2
    assert totals["sglang:prompt_tokens_total"] == 6
    assert totals["sglang:generation_tokens_total"] == 10
    assert totals["sglang:time_to_first_token_seconds_count"] == 2
    assert totals["sglang:e2e_request_latency_seconds_count"] == 2


def test_a_refused_call_leaves_the_name_of_a_running_one(start):
    served = start(workers=UNHURRIED)
    running = served.call(greedy(4000), text=TEXT, stream=True, request_id="twin")
    next(running)
    assert served.refused(greedy(2), text="x", request_id="twin")[0] == grpc.StatusCode.ALREADY_EXISTS
    assert served.refused({"temperature": -1}, text="x", request_id="twin")[0] == grpc.StatusCode.INVALID_ARGUMENT
    served.stub.Abort(served.messages.AbortRequest(request_id="twin"))
    with pytest.raises(grpc.RpcError) as error:
        list(running)
    assert error.value.code() == grpc.StatusCode.CANCELLED
    assert next(served.call(greedy(2), text="x", request_id="twin")).completion_tokens == 2


def test_many_calls_cancelled_at_any_moment(start):
    served = start(workers=UNHURRIED)
    for i in range(60):
        call = served.call(greedy(4000), text=TEXT, stream=i % 2 == 0)
        time.sleep((i % 10) * 0.0003)
        call.cancel()
    wait_for(lambda: served.pages() == 0, 2, "pages back after cancelled calls")
    info = served.workers[-1].info()["internal_states"][0]
    wait_for(lambda: all(w.info()["internal_states"][0]["num_running_reqs"] == 0 for w in served.workers), 2,
             f"no request runs on: {info}")


def test_grpc_port_that_is_taken(cluster):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = cluster.unified("--grpc-port", port, wait=False)
        assert server.process.wait(timeout=30 * SLOW) != 0
    assert "--grpc-port" in server.text() and str(port) in server.text()


def test_worker_lost_in_mid_stream(cluster, api):
    sampling = {"temperature": 1.0, "seed": 99, "max_new_tokens": 400, "ignore_eos": True}
    workers = [cluster.unified(*UNHURRIED) for _ in range(2)]
    router = cluster.router(workers=workers)
    served = Served(api, router.url, workers)
    want = next(served.call(sampling, text=TEXT))
    call = served.call(sampling, text=TEXT, stream=True)
    parts = [next(call) for _ in range(20)]
    by_url(workers, wait_for(lambda: serving(router, "null"), 10, "it runs")[0]).kill()
    parts += list(call)
    assert [i for part in parts for i in part.output_ids] == list(want.output_ids)
    assert "".join(part.text for part in parts) == want.text
    assert parts[-1].completion_tokens == 400
    served.channel.close()


def test_full_queue_and_no_worker(cluster, api):
    worker = cluster.unified(*UNHURRIED)
    router = cluster.router("--max-concurrent-requests", "1", "--queue-size", "0", workers=[worker])
    served = Served(api, router.url, [worker])
    running = served.call(greedy(4000), text=TEXT, stream=True)
    next(running)
    assert served.refused(greedy(2), text="x")[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    running.cancel()

    def answered():
        try:
            return next(served.call(greedy(2), text="x")).completion_tokens == 2
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            return False

    wait_for(answered, 5, "room after a cancelled call")
    worker.kill()
    worker.process.wait()
    assert served.refused(greedy(2), text="x")[0] == grpc.StatusCode.UNAVAILABLE
    served.channel.close()


def settings_of(url, mine):
    """The settings that a server opens with, told `mine`: {identifier: value}."""
    host, port = url.removeprefix("http://").split(":")
    frame = b"".join(struct.pack(">HI", *entry) for entry in mine)
    with socket.create_connection((host, int(port)), timeout=20 * SLOW) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + struct.pack(">I", len(frame))[1:] + b"\x04\x00" +
                           bytes(4) + frame)
        with connection.makefile("rb") as answers:
            head = answers.read(9)
            assert head[3] == 4, head
            payload = answers.read(int.from_bytes(head[:3], "big"))
    return dict(struct.iter_unpack(">HI", payload))


def test_workers_serve_sessions_of_routers_themselves(cluster):
    """One call a connection is what only our own server offers (SETTINGS_MAX_CONCURRENT_STREAMS is 3)."""
    worker = cluster.unified()
    assert settings_of(worker.url, [(0xF54B, 1), (2, 0)])[3] == 1
    assert settings_of(worker.url, [(2, 0)])[3] > 1
    assert settings_of(worker.url, [(2, 0), (0xF54B, 1)])[3] > 1
