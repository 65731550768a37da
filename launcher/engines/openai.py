"""What servers of language models have in common that speak OpenAI's protocol by HTTP."""

import json

from launcher.engines.engine import Request
from launcher.engines.said import Said

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
