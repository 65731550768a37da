"""OpenAI's API by HTTP: its paths, its list of models, and the form of its errors.

https://platform.openai.com/docs/api-reference/models
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.engines.engine import Request
from launcher.engines.said import Said
from launcher.engines.statistics import StatisticsAnswer

ANSWERS = "/v1/(completions|chat/completions|responses)"
"""Paths whose answers may be streams."""
HTTP_PATHS = ("/v1/(models|embeddings|rerank)", ANSWERS)
"""Paths that only ask the model; others change what a server serves, or show what it does for
others."""
SERVED = "models, completions, chat, responses, embeddings and reranking (/v1/...)"
KEEP_ALIVE_S = 86_400
"""Seconds for which a server on uvicorn keeps an idle connection where a variable sets that: longer
than HAProxy keeps one, so that HAProxy never takes one in the moment in which the server closes it.
Unless set, it is 5 s."""

_UNKNOWN = "SW-GATEWAY-UNKNOWN"


class _Error(Said):
    message: str


class _Failure(Said):
    """An answer to a refused request, as OpenAI's API has it."""

    error: _Error


def smallest_completion(model: str) -> Request:
    """Build a completion of one token."""
    body = {"model": model, "prompt": "1", "max_tokens": 1}
    headers = {"Content-Type": "application/json"}
    return Request("POST", "/v1/completions", headers, json.dumps(body).encode())


def failure(said: bytes) -> str:
    """Return the server's own message, else all that was answered.

    The message stands in ``error``; in SGLang's answers it may stand beside no other key of ours.
    """
    for kind in (_Failure, _Error):
        try:
            found = kind.parse(said)
        except (ValueError, TypeError):
            continue
        return found.error.message if isinstance(found, _Failure) else found.message
    return said.decode(errors="replace")


@dataclass(frozen=True)
class ListedModel:
    """A service as a model of OpenAI's API.

    Attributes:
        created_s: Unix seconds at which it was last applied.
    """

    name: str
    tenant: str
    created_s: int

    @property
    def said(self) -> dict[str, object]:
        """The object ``model`` of OpenAI's API."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created_s,
            "owned_by": self.tenant,
        }


def models_answer(models: Sequence[ListedModel], name: str) -> StatisticsAnswer:
    """Answer with the model of that name, or with all of them if ``name`` is ""."""
    if not name:
        found = {"object": "list", "data": [one.said for one in models]}
        return StatisticsAnswer(200, json.dumps(found).encode())
    for one in models:
        if one.name == name:
            return StatisticsAnswer(200, json.dumps(one.said).encode())
    return openai_error(404, _UNKNOWN, "there is no such model that this key opens.", "model")


def openai_error(
    status: int, code: str, message: str, parameter: str | None = None
) -> StatisticsAnswer:
    """Return an error that OpenAI's clients understand."""
    error = {
        "message": f"{code}: {message}",
        "type": "server_error" if status >= 500 else "invalid_request_error",  # noqa: PLR2004
        "param": parameter,
        "code": code,
    }
    return StatisticsAnswer(status, json.dumps({"error": error}).encode())
