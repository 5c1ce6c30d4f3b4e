"""The official openai client where something is wrong: its exception classes, headers, and clients that leave."""
import threading

import pytest

from conftest import SLOW, http, pages_in_use, wait_for
from openai_support import (ON, QUESTION, UNHURRIED, Served, ask, complete, kind, openai,  # noqa: F401 (fixtures)
                            served, start)


def test_bad_requests(served):
    client = served.client()
    rows = [
        ("temperature", {"temperature": "hot"}),
        ("temperature", {"temperature": -0.5}),
        ("top_p", {"top_p": 0}),
        ("n", {"n": 0}),
        ("stop", {"stop": 5}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 1000}),
        ("max_tokens", {"max_tokens": -3}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}),
        ("return_timings", {"extra_body": {"return_timings": "yes"}}),
    ]
    for name, options in rows:
        try:
            pytest.fail(f"{name}: {ask(client, **{'max_tokens': 2, **options})}")
        except openai.BadRequestError as caught:
            error = caught
        assert error.status_code == 400, name
        assert error.type == "invalid_request_error", name
        assert name in error.message, (name, error.message)
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": 5}])
    assert "messages[0].content" in error.value.message
    with pytest.raises(openai.BadRequestError):
        ask(client, stream=True, temperature=-1)
    assert ask(client, max_tokens=2).choices, "the server lives"


def test_prompt_longer_than_the_context(served):
    client = served.client()
    limit = http("GET", served.url + "/v1/models")[1]["data"][0]["max_model_len"]
    for call in (lambda: complete(client, [7] * (limit + 1)),
                 lambda: complete(client, [7] * 8, max_tokens=limit),
                 lambda: ask(client, "word " * limit),
                 lambda: ask(client, "word " * limit, stream=True)):
        with pytest.raises(openai.BadRequestError) as error:
            call()
        assert error.value.code == "context_length_exceeded"
        assert str(limit) in error.value.message


def test_keys(cluster, kind):
    served = start(cluster, kind, "--api-key", "right")
    with pytest.raises(openai.AuthenticationError) as error:
        ask(served.client("wrong"), max_tokens=2)
    assert error.value.status_code == 401 and error.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        served.client("wrong").models.list()
    assert ask(served.client("right"), max_tokens=2).choices
    assert "right" not in str(served.client("right").models.list())
    status, info, _ = http("GET", served.url + "/get_server_info", headers={"Authorization": "Bearer right"})
    assert status == 200 and "right" not in str(info.get("api_key"))


def test_not_found(served):
    client = served.client()
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-nothing", messages=QUESTION)
    assert error.value.code == "model_not_found" and "gpt-nothing" in error.value.message
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="demo", input="text")


def test_full_queue_is_a_rate_limit(cluster):
    served = start(cluster, "pd", "--max-concurrent-requests", "1", "--queue-size", "0", workers=UNHURRIED)
    client = served.client()
    stream = ask(client, stream=True, max_tokens=3000, extra_body=ON)
    next(iter(stream))
    with pytest.raises(openai.RateLimitError) as error:
        ask(client, max_tokens=2)
    assert error.value.status_code == 429
    assert error.value.response.headers["retry-after"] == "1"
    stream.close()

    def answered():
        try:
            return ask(client, max_tokens=2)
        except openai.RateLimitError:
            return None

    wait_for(answered, 5, "room for a request after the stream was closed")


def test_no_worker_left_is_503(cluster):
    worker = cluster.unified("--served-model-name", "demo")
    router = cluster.router(workers=[worker])
    client = Served(router.url, [worker], "router").client()
    assert ask(client, max_tokens=2).choices
    worker.kill()
    worker.process.wait()
    for options in ({}, {"stream": True}):
        with pytest.raises(openai.InternalServerError) as error:
            ask(client, max_tokens=2, **options)
        assert error.value.status_code == 503
        assert error.value.type == "service_unavailable_error"


def test_raw_response(served):
    raw = served.client().chat.completions.with_raw_response.create(
        model="demo", messages=QUESTION, max_tokens=3, extra_headers={"x-request-id": "mine-1"},
        extra_body={"not_a_member": 1})
    assert raw.status_code == 200
    assert raw.headers["content-type"].startswith("application/json")
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-tandem-ignored-fields"] == "not_a_member"
    parsed = raw.parse()
    assert parsed.choices[0].message.content is not None
    assert parsed._request_id == "mine-1"
    with served.client().chat.completions.with_streaming_response.create(
            model="demo", messages=QUESTION, max_tokens=3, stream=True) as streamed:
        assert streamed.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in streamed.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"


def test_closing_a_stream_frees_its_pages(cluster, kind):
    served = start(cluster, kind, workers=UNHURRIED)
    client = served.client()
    stream = ask(client, stream=True, max_tokens=3000, extra_body=ON)
    for _, chunk in zip(range(5), stream):
        assert chunk.choices
    assert any(pages_in_use(w) > 0 for w in served.workers)
    stream.close()
    wait_for(lambda: all(pages_in_use(w) == 0 for w in served.workers), 1, "pages back after a closed stream")
    assert ask(client, max_tokens=2).choices


def test_system_and_parts_and_turns(served):
    client = served.client()
    messages = [{"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "What does "},
                                             {"type": "text", "text": "--dp-size do?"}]},
                {"role": "assistant", "content": "It sets a size."},
                {"role": "user", "content": "Once more \U0001F600 \u00e9"}]
    answer = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=12)
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > 20
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}])
    assert "messages[0].content[0]" in error.value.message


def test_a_client_that_gives_up_frees_its_pages(cluster, kind):
    """Without a stream nothing is written before the end: the server has to notice that nobody waits."""
    served = start(cluster, kind, workers=UNHURRIED)
    impatient = served.client().with_options(timeout=0.3 * SLOW)
    with pytest.raises(openai.APITimeoutError):
        ask(impatient, max_tokens=3000, extra_body=ON)
    wait_for(lambda: all(pages_in_use(w) == 0 for w in served.workers), 1, "pages back after a client gave up")


def test_retries_of_the_client_wait_for_room(cluster):
    """The client's own retries, on by default, turn a full queue into a late answer."""
    served = start(cluster, "pd", "--max-concurrent-requests", "1", "--queue-size", "0", workers=UNHURRIED)
    client = served.client()
    stream = ask(client, stream=True, max_tokens=3000, extra_body=ON)
    next(iter(stream))
    closer = threading.Timer(0.5, stream.close)
    closer.start()
    try:
        assert ask(client.with_options(max_retries=5), max_tokens=2).choices
    finally:
        closer.join()
