"""The official openai client, unmodified, against a stand-alone server and against a router over a PD pair."""
import asyncio

import pytest

from conftest import SLOW, http
from openai_support import ON, QUESTION, ask, complete, kind, openai, served, start  # noqa: F401 (fixtures)


def chat_text(stream):
    """(text by choice, finish reasons by choice, usage, chunks) of a streamed chat."""
    texts, reasons, usage, chunks = {}, {}, None, list(stream)
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                assert choice.index not in reasons, "two finish chunks"
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage, chunks


def test_models(served):
    client = served.client()
    listed = client.models.list().data
    assert [m.id for m in listed] == ["demo"]
    assert listed[0].object == "model"
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("nobody")
    assert error.value.code == "model_not_found"


def test_chat_streamed_and_whole_agree(served):
    client = served.client()
    whole = ask(client, max_tokens=40)
    assert whole.object == "chat.completion" and whole.model == "demo" and whole.id
    answer = whole.choices[0].message.content
    assert answer and whole.choices[0].message.role == "assistant"
    usage = whole.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    stream = ask(client, max_tokens=40, stream=True, stream_options={"include_usage": True})
    texts, reasons, streamed, chunks = chat_text(stream)
    assert texts == {0: answer}
    assert reasons == {0: whole.choices[0].finish_reason}
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (usage.prompt_tokens, usage.completion_tokens)
    assert chunks[-1].choices == [] and all(c.usage is None for c in chunks[:-1])
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({c.id for c in chunks}) == 1 and chunks[0].object == "chat.completion.chunk"
    plain = ask(client, max_tokens=40, stream=True)
    texts, _, streamed, _ = chat_text(plain)
    assert texts == {0: answer} and streamed is None


def test_chat_length_limits(served):
    client = served.client()
    for name in ("max_tokens", "max_completion_tokens"):
        answer = ask(client, extra_body=ON, **{name: 7})
        assert answer.choices[0].finish_reason == "length", name
        assert answer.usage.completion_tokens == 7, name


def test_chat_choices_and_seeds(served):
    client = served.client()
    twice = ask(client, n=2, max_tokens=12, extra_body=ON)
    assert [c.index for c in twice.choices] == [0, 1]
    assert twice.choices[0].message.content == twice.choices[1].message.content, "greedy"
    assert twice.usage.completion_tokens == 24
    noisy = {"temperature": 1.5, "max_tokens": 24, "extra_body": ON}
    first = ask(client, seed=11, n=2, **noisy)
    again = ask(client, seed=11, n=2, **noisy)
    other = ask(client, seed=12, n=2, **noisy)
    say = [[c.message.content for c in answer.choices] for answer in (first, again, other)]
    assert say[0] == say[1]
    assert say[0][0] != say[0][1], "choices draw their own noise"
    assert say[0] != say[2]
    texts, reasons, _, _ = chat_text(ask(client, seed=11, n=2, stream=True, **noisy))
    assert [texts[0], texts[1]] == say[0]
    assert reasons == {0: "length", 1: "length"}


def test_chat_logprobs(served):
    client = served.client()
    answer = ask(client, logprobs=True, top_logprobs=3, max_tokens=12, extra_body=ON).choices[0]
    content = answer.logprobs.content
    assert len(content) == 12
    assert b"".join(bytes(t.bytes) for t in content).decode("utf-8", "replace") == answer.message.content
    for token in content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token, "greedy takes the likeliest"
        assert abs(token.top_logprobs[0].logprob - token.logprob) < 1e-5
        order = [t.logprob for t in token.top_logprobs]
        assert order == sorted(order, reverse=True)
    streamed = []
    for chunk in ask(client, logprobs=True, top_logprobs=3, max_tokens=12, extra_body=ON, stream=True):
        for choice in chunk.choices:
            streamed += choice.logprobs.content if choice.logprobs else []
    assert [t.token for t in streamed] == [t.token for t in content]
    assert all(abs(a.logprob - b.logprob) < 0.02 for a, b in zip(streamed, content))


def stops(client):
    """A greedy answer, and a stop string that no single token of it holds."""
    answer = ask(client, logprobs=True, max_tokens=40, extra_body=ON).choices[0]
    tokens = [bytes(t.bytes).decode("utf-8", "replace") for t in answer.logprobs.content]
    for i in range(4, len(tokens) - 3):
        stop = tokens[i][-1:] + tokens[i + 1] + tokens[i + 2][:1]
        if len(stop) > 2 and "\ufffd" not in stop and not any(stop in t for t in tokens):
            return answer.message.content, stop
    raise AssertionError(f"no stop string across tokens in {tokens}")


def test_chat_stop_strings(served):
    client = served.client()
    full, across = stops(client)
    word = next(w for w in full.split()[3:] if len(w) > 3)
    rows = [(across, across), ([across, "never said"], across), (word, word), (["never said"], None)]
    for stop, matched in rows:
        want = full if matched is None else full[:full.index(matched)]
        reason = "length" if matched is None else "stop"
        whole = ask(client, stop=stop, max_tokens=40, extra_body=ON).choices[0]
        assert whole.message.content == want, stop
        assert whole.finish_reason == reason
        assert whole.model_extra["matched_stop"] == matched
        texts, reasons, _, _ = chat_text(ask(client, stop=stop, max_tokens=40, extra_body=ON, stream=True))
        assert texts == {0: want} and reasons == {0: reason}, stop


def test_completion_prompt_forms(served):
    client = served.client()
    text = "What does --dp-size do?"
    ids = http("POST", served.url + "/tokenize", {"prompt": text})[1]["tokens"]
    one = complete(client, text, max_tokens=10, extra_body=ON)
    assert one.object == "text_completion" and one.usage.completion_tokens == 10
    want = one.choices[0].text
    assert want and one.choices[0].finish_reason == "length"
    assert complete(client, ids, max_tokens=10, extra_body=ON).choices[0].text == want
    several = complete(client, [text, "Once", text], max_tokens=10, extra_body=ON)
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert [several.choices[i].text == want for i in range(3)] == [True, False, True]
    lists = complete(client, [ids, ids[:3]], max_tokens=10, extra_body=ON)
    assert lists.choices[0].text == want and len(lists.choices) == 2
    assert complete(client, text).usage.completion_tokens <= 16, "OpenAI's default"


def test_completion_choices_stop_and_stream(served):
    client = served.client()
    text = "What does --dp-size do?"
    full = complete(client, text, max_tokens=24, extra_body=ON).choices[0].text
    stop = next(w for w in full.split()[2:] if len(w) > 2)
    cut = complete(client, text, max_tokens=24, stop=stop, extra_body=ON).choices[0]
    assert cut.text == full[:full.index(stop)] and cut.finish_reason == "stop"
    texts, usage = {}, None
    for chunk in complete(client, [text, text], n=2, max_tokens=24, stream=True, extra_body=ON,
                          stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {i: full for i in range(4)}
    assert usage.completion_tokens == 4 * 24


def test_completion_echo_and_logprobs(served):
    client = served.client()
    text = "What does --dp-size do?"
    # ignore_eos lets special tokens come, which the text leaves out and the list of tokens does not.
    spelt = {**ON, "skip_special_tokens": False}
    plain = complete(client, text, max_tokens=8, extra_body=spelt).choices[0].text
    echoed = complete(client, text, max_tokens=8, echo=True, extra_body=spelt).choices[0]
    assert echoed.text == text + plain and echoed.logprobs is None
    rich = complete(client, text, max_tokens=8, echo=True, logprobs=2, extra_body=spelt)
    got = rich.choices[0].logprobs
    count = rich.usage.prompt_tokens + 8
    assert rich.choices[0].text == text + plain
    assert len(got.tokens) == len(got.token_logprobs) == len(got.top_logprobs) == len(got.text_offset) == count
    assert got.token_logprobs[0] is None and all(p <= 0 for p in got.token_logprobs[1:])
    assert "".join(got.tokens) == text + plain
    assert got.text_offset[0] == 0 and got.text_offset == sorted(got.text_offset)
    assert all(2 <= len(top) <= 3 for top in got.top_logprobs[1:])
    alone = complete(client, text, max_tokens=8, logprobs=2, extra_body=spelt).choices[0].logprobs
    assert alone.tokens == got.tokens[-8:]
    streamed, said = [], ""
    for chunk in complete(client, text, max_tokens=8, echo=True, logprobs=2, stream=True, extra_body=spelt):
        for choice in chunk.choices:
            said += choice.text
            streamed += choice.logprobs.tokens if choice.logprobs else []
    assert said == text + plain and streamed == got.tokens


def test_async_client(served):
    async def run():
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0,
                                      timeout=60 * SLOW) as client:
            async def one():
                return (await ask(client, max_tokens=20, extra_body=ON)).choices[0].message.content

            async def streamed():
                text = ""
                async for chunk in await ask(client, max_tokens=20, extra_body=ON, stream=True):
                    text += "".join(choice.delta.content or "" for choice in chunk.choices)
                return text

            return await asyncio.gather(*(one() for _ in range(4)), *(streamed() for _ in range(4)))

    answers = asyncio.run(run())
    assert answers == [answers[0]] * 8 and answers[0]


def test_timings(served):
    client = served.client()
    names = {"tokenize_ms", "queue_ms", "prefill_ms", "first_token_ms", "kv_transfer_ms", "kv_transfer_bytes",
             "decode_tokens_per_second"}
    asked = {**ON, "return_timings": True}
    whole = ask(client, max_tokens=20, extra_body=asked).model_extra["timings"]
    last = list(ask(client, max_tokens=20, extra_body=asked, stream=True,
                    stream_options={"include_usage": True}))[-1].model_extra["timings"]
    finish = [c.model_extra.get("timings") for c in ask(client, max_tokens=20, extra_body=asked, stream=True)]
    assert finish[:-1] == [None] * (len(finish) - 1)
    for timings in (whole, last, finish[-1]):
        assert set(timings) == names
        absent = {name for name in names if timings[name] is None}
        assert absent == (set() if served.kind == "pd" else {"kv_transfer_ms", "kv_transfer_bytes"})
        assert all(timings[name] >= 0 for name in names - absent)
        assert timings["first_token_ms"] >= timings["prefill_ms"] > 0
        if served.kind == "pd":
            assert timings["kv_transfer_bytes"] > 0
    assert "timings" not in ask(client, max_tokens=2).model_extra


def test_a_pair_says_what_one_server_says(cluster):
    clients = [start(cluster, kind).client() for kind in ("alone", "pd")]
    for options in ({}, {"temperature": 1.2, "seed": 5}, {"temperature": 0.7, "top_p": 0.8, "seed": 6}):
        answers = [ask(c, max_tokens=60, extra_body=ON, **options).choices[0].message.content for c in clients]
        assert answers[0] == answers[1], options


def test_stream_helper_builds_the_same_answer(served):
    client = served.client()
    # The helper raises an exception of its own for an answer that was cut at its length: let it end.
    want = ask(client, n=2, max_tokens=200)
    with client.chat.completions.stream(model="demo", messages=QUESTION, temperature=0, n=2, max_tokens=200,
                                        stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert [c.message.content for c in final.choices] == [c.message.content for c in want.choices]
    assert [c.finish_reason for c in final.choices] == ["stop", "stop"]
    assert final.usage.completion_tokens == want.usage.completion_tokens


def test_parameters_that_change_nothing_here_are_taken(served):
    client = served.client()
    want = ask(client, max_tokens=8, extra_body=ON).choices[0].message.content
    rows = [{"user": "me"}, {"metadata": {"a": "b"}}, {"store": False}, {"service_tier": "auto"},
            {"response_format": {"type": "text"}}, {"top_p": 1}, {"presence_penalty": 0, "frequency_penalty": 0},
            {"logit_bias": {}}, {"stop": None}, {"n": 1}, {"tool_choice": "none", "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}]
    for options in rows:
        assert ask(client, max_tokens=8, extra_body=ON, **options).choices[0].message.content == want, options


def test_logit_bias_and_penalties(served):
    client = served.client()
    forced = complete(client, "Once", max_tokens=4, logit_bias={"300": 100}, logprobs=0, extra_body=ON)
    assert len(set(forced.choices[0].logprobs.tokens)) == 1, "the biased token wins each time"
    banned = complete(client, "Once", max_tokens=4, logit_bias={"300": 100}, frequency_penalty=2, presence_penalty=2,
                      extra_body={**ON, "repetition_penalty": 1.5})
    assert banned.usage.completion_tokens == 4
    plain = complete(client, "a a a a", max_tokens=12, extra_body=ON).choices[0].text
    pushed = complete(client, "a a a a", max_tokens=12, extra_body={**ON, "repetition_penalty": 2.0}).choices[0].text
    assert plain != pushed
