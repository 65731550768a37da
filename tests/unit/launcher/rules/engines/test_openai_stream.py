"""Tests requests whose answers are streamed, and what their events say."""

import json

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.launcher.rules.engines import openai_stream
from slicewise.launcher.rules.engines.engine import TokenUsage
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp
from slicewise.launcher.rules.engines.openai_stream import (
    has_text,
    parse_prompts,
    streamed_request,
    usage,
)

ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def test_a_chat_has_messages_and_a_completion_a_prompt():
    chat = streamed_request("m", {"messages": [], "max_tokens": 3, "stream": False, "model": "x"})
    assert (chat.method, chat.path) == ("POST", "/v1/chat/completions")
    assert json.loads(chat.head) == {
        "messages": [],
        "max_tokens": 3,
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert streamed_request("m", {"prompt": "a"}).path == "/v1/completions"


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ({"text": "a"}, True),
        ({"text": ""}, False),
        ({"delta": {"content": "a"}}, True),
        ({"delta": {"reasoning_content": "a"}}, True),
        ({"delta": {"reasoning": "a"}}, True),
        ({"delta": {"role": "assistant", "content": None}}, False),
    ],
)
def test_the_first_token_is_the_first_text(choice: dict[str, object], found: bool):
    event = b"data: " + json.dumps({"choices": [choice], "usage": None}).encode() + b"\n\n"
    assert not has_text(ROLE)
    assert has_text(ROLE + event) is found
    assert not has_text(ROLE + event.rstrip(b"\n")), "an event that has not come whole"


def test_the_end_says_how_many_tokens_it_took():
    assert usage(ROLE + COUNTS + DONE) == TokenUsage(7, 3)
    assert usage(b'-cut-off":1}]}\n\n' + COUNTS.replace(b"\n", b"\r\n") + DONE) == TokenUsage(7, 3)
    assert usage(ROLE + DONE) is None


@pytest.mark.parametrize(
    "event",
    [b"data: x\n", b'data: {"choices":1}\n', b'data: {"usage":{"prompt_tokens":-1}}\n', b"data:\n"],
)
def test_another_server_s_answer_is_none(event: bytes):
    for read in (has_text, usage):
        with pytest.raises((TypeError, ValueError)):
            read(event)


def test_why_a_stream_ended_early():
    event = b'data: {"error":{"message":"queue is full","type":"x","code":503}}\n\n'
    assert LlamaCpp().stream_failure(ROLE + event + DONE) == "queue is full"
    assert usage(event + DONE) is None
    assert openai_stream.stream_error(b"") == b""


def test_a_user_s_requests_are_one_a_line():
    text = '{"prompt": "a"}\n\n{"messages": [], "max_tokens": 5}\n'
    assert parse_prompts(text) == ({"prompt": "a"}, {"messages": [], "max_tokens": 5})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no request"),
        ('{"prompt":1}\nx', "line 2"),
        ('{"a":1}', "line 1"),
        ("[" * 100_000, "line 1"),
        ('{"prompt": ' + "9" * 5000 + "}", "line 1"),
    ],
)
def test_what_is_no_request_is_named(text: str, said: str):
    with pytest.raises(InvalidInputError, match=rf"{said}.*SW-INPUT-FILE"):
        parse_prompts(text)
