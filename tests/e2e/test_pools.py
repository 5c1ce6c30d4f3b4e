"""Full pools: two requests that reach the two workers of a pair in opposite orders do not wait for each other for ever."""
import queue

import pytest

from conftest import SLOW

grpc = pytest.importorskip("grpc")

PROMPT = 400  # tokens
POOL = ("--max-total-tokens", 512, "--disable-radix-cache")
UNAVAILABLE = 14


@pytest.fixture(scope="module")
def wire(stubs):
    """The messages and stubs of the session stream."""
    return stubs("common_pb2", "session_pb2", "session_pb2_grpc")


class Session:
    """What a router is to one worker."""

    def __init__(self, wire, worker):
        self.common, self.session, stubs = wire
        self.channel = grpc.insecure_channel(worker.info()["grpc_address"])
        self.up = queue.Queue()
        self.up.put(self.session.SessionUp(hello=self.session.RouterHello(incarnation=77, protocol_version=1)))
        self.down = stubs.SessionStub(self.channel).Open(iter(self.up.get, None), timeout=60 * SLOW)
        self.info = next(self.down).hello.info
        self.events = []

    def submit(self, request, attempt, split):
        sampling = self.common.SamplingParams(max_new_tokens=4, top_k=1, top_p=1, repetition_penalty=1, ignore_eos=True)
        body = self.common.Request(id=request, input_ids=[10 + i % 50 for i in range(PROMPT)], sampling=sampling,
                                   logprob_start_len=-1)
        split = self.session.Disaggregation(room=request, attempt=attempt, **split)
        self.up.put(self.session.SessionUp(
            submit=self.session.Submit(request=body, attempt=attempt, disaggregation=split)))

    def next_event(self, request):
        while True:
            for event in self.events:
                if event.request == request:
                    self.events.remove(event)
                    return event
            message = next(self.down)
            assert not message.HasField("submit_rejected"), message
            self.events += message.step.events

    def finish(self, request):
        while True:
            event = self.next_event(request)
            if event.HasField("finish"):
                return event.finish

    def close(self):
        self.up.put(None)
        self.channel.close()


def test_opposite_orders_do_not_deadlock(cluster, wire):
    prefill, decode = cluster.prefill(*POOL), cluster.decode(*POOL, "--num-reserved-decode-tokens", 8)
    first, second = Session(wire, prefill), Session(wire, decode)
    try:
        common = wire[0]
        to_prefill = {"role": common.ROLE_PREFILL, "decode_incarnation": second.info.incarnation}
        to_decode = {"role": common.ROLE_DECODE, "peer_grpc_address": prefill.info()["grpc_address"],
                     "peer_incarnation": first.info.incarnation, "decode_incarnation": second.info.incarnation}
        # Prefill is full of A, which decode has not heard of; decode is full of B's grant.
        first.submit(0xA, 0, to_prefill)
        assert first.next_event(0xA).tokens
        second.submit(0xB, 0, to_decode)
        first.submit(0xB, 0, to_prefill)
        second.submit(0xA, 0, to_decode)
        # A gives way; B runs to its end; then decode asks for A and hears that it may be tried again.
        assert second.finish(0xB).kind == common.FINISH_KIND_LENGTH
        assert second.finish(0xA).status.code == UNAVAILABLE
        first.submit(0xA, 1, to_prefill)
        second.submit(0xA, 1, to_decode)
        assert second.finish(0xA).kind == common.FINISH_KIND_LENGTH
    finally:
        first.close()
        second.close()
