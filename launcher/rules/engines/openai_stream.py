"""Requests whose answers OpenAI's API streams, and what an answer's events say.

https://platform.openai.com/docs/api-reference/completions
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.launcher.rules.engines.engine import Request, TokenUsage
from slicewise.launcher.rules.engines.said import Said

_MOST_CHOICES = 128
_HEADERS = {"Content-Type": "application/json"}
_EVENT, _END = b"data:", b"[DONE]"


class _Delta(Said):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Said):
    text: str | None = None
    delta: _Delta = _Delta()

    @property
    def has_text(self) -> bool:
        """Whether it brings a part of the answer; the first event of a chat may say a role only."""
        delta = self.delta
        return bool(self.text or delta.content or delta.reasoning_content or delta.reasoning)


class _Usage(Said):
    prompt_tokens: int = Field(ge=0, lt=2**31)
    completion_tokens: int = Field(ge=0, lt=2**31)


class _Event(Said):
    choices: list[_Choice] = Field([], max_length=_MOST_CHOICES)
    usage: _Usage | None = None


def streamed_request(model: str, asked: Mapping[str, object]) -> Request:
    """Build a request of a chat if it has messages, else of a completion, answered by a stream."""
    path = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
    whole = {**asked, "model": model, "stream": True, "stream_options": {"include_usage": True}}
    return Request("POST", path, _HEADERS, json.dumps(whole).encode())


def has_text(body: bytes) -> bool:
    """Whether a whole event in this part of a stream brings a part of the answer.

    Raises TypeError or ValueError if it is no such stream.
    """
    return any(choice.has_text for event in _events(body) for choice in event.choices)


def usage(body: bytes) -> TokenUsage | None:
    """Return what the last events of a stream count; None if they count nothing.

    Raises TypeError or ValueError if it is no such stream.
    """
    usages = [event.usage for event in _events(body) if event.usage is not None]
    if not usages:
        return None
    return TokenUsage(usages[-1].prompt_tokens, usages[-1].completion_tokens)


def _events(body: bytes) -> Iterator[_Event]:
    """Yield the whole events; the first one may have begun before this part."""
    for line in body.split(b"\n")[:-1]:
        text = line.removeprefix(_EVENT).strip()
        if line.startswith(_EVENT) and text != _END:
            yield _Event.parse(text)


def stream_error(body: bytes) -> bytes:
    """Return the event by which the server ends a stream early; b"" if there is none."""
    texts = [line.removeprefix(_EVENT).strip() for line in body.split(b"\n")]
    return next((text for text in reversed(texts) if text.startswith(b'{"error"')), b"")


def parse_prompts(data: str) -> tuple[Mapping[str, Any], ...]:
    """Read bodies of requests as JSON, one a line; empty lines are skipped.

    Raises InvalidInputError (SW-INPUT-FILE).
    """
    bodies = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict) or not {"prompt", "messages"} & body.keys():
            raise _no_prompts(f"line {number} is no JSON object with prompt or messages")
        bodies.append(body)
    if not bodies:
        raise _no_prompts("there is no request")
    return tuple(bodies)


def _no_prompts(why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.INPUT_FILE,
        f"The requests can't be read: {why}.",
        'Write a request on each line, as curl would send it: {"prompt": "hello"}',
    )
