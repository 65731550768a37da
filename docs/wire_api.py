"""The daemon's wire as OpenAPI and as a page, from what its requests declare."""

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

from pydantic.json_schema import models_json_schema

from slicewise.cluster.rpc import message
from slicewise.cluster.rpc.message import FailureAnswer, Request, answer_of
from slicewise.cluster.rpc.messages import REQUEST_LIMIT
from slicewise.slurm_plugin.api import desk

_IN_A_MODEL = "#/components/schemas/{model}"
_ASKERS = {
    "everybody": "every user, for what concerns that user",
    "launcher": "the launcher's user, root and SlurmUser",
    "web": "the web server's user, root and SlurmUser",
    "operators": "root and SlurmUser",
}
_HEAD = f"""\
# The wire: what the daemon can be asked by HTTP

The daemon answers HTTP/1.1 with JSON on `run_dir/user.sock`, one request per connection. The kernel
tells it who asks; what that user may see and do is the same as with the commands
([reading](reading.md)). From other hosts the same requests come to `daemon.listen`, each one sealed
as a munge credential like its answer; `slicewise` does that.

```sh
curl --unix-socket /run/slicewise/user.sock http://localhost/v1/status
curl --unix-socket /run/slicewise/user.sock 'http://localhost/v1/why?about=814'
curl --unix-socket /run/slicewise/user.sock http://localhost/v1/service-order \\
  --data '{{"array_job_id": 814, "what": "restart"}}'
```

A GET has its fields in the query; a field that is no text or number is JSON there. A POST has them
as JSON in its body, of {REQUEST_LIMIT // 1024} KiB at most. Fields that are not known are refused.
What is refused or fails is answered by a `FailureAnswer` with an [error code](errors.md). The HTTP
status is then 400, 403, 404, 413, 422 or 429 for what was asked, 503 for what does not answer now,
and 500 for a fault of the daemon. The header `X-Request-Id` of an answer is the `request_id` under
which the daemon's [log](log-events.md) has the question.

[openapi.json](openapi.json) describes requests and answers for programs (OpenAPI 3.1). Newer
versions may add fields to answers under `/v1/`: ignore those that you do not know, as the launcher
and the commands do.
"""


def requests() -> tuple[type[Request], ...]:
    """Every request, by its path."""
    assert desk  # noqa: S101 -- its import declares them all
    return tuple(sorted(message.requests(), key=lambda one: one.path))


def page() -> Iterator[str]:
    """The page of the reference."""
    yield _HEAD
    for kind in requests():
        answer = answer_of(kind)
        yield from (f"## {kind.method} {kind.path}", "", _flowed(kind), "")
        who = _ASKERS[kind.asker] + ("; for its visitors the page" if kind.on_page else "")
        yield from (f"Who may ask: {who}. Answer: `{answer.__name__}`.", "")
        if kind.model_fields:
            yield from ("| field | value |", "| --- | --- |")
            for name, schema in _properties(kind).items():
                needed = "" if name in _schema(kind).get("required", ()) else "; may be left out"
                yield f"| `{name}` | {_words(schema)}{needed} |"
            yield ""


def document() -> str:
    """The OpenAPI document."""
    paths = {kind.path: {kind.method.lower(): _operation(kind)} for kind in requests()}
    bodies = [kind for kind in requests() if kind.method == "POST"]
    _, schemas = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_IN_A_MODEL
    )
    found = {
        "openapi": "3.1.0",
        "info": {"title": "Slicewise's daemon", "version": "1"},
        "servers": [{"url": "http://localhost", "description": "run_dir/user.sock"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted({**_of_answers(), **schemas["$defs"], **_of_queries()}.items()))
        },
    }
    return json.dumps(found, indent=1) + "\n"


def _of_answers() -> Mapping[str, Any]:
    """The models of answers, and of what they hold: as they are written, and with further keys."""
    answers = dict.fromkeys((*(answer_of(kind) for kind in requests()), FailureAnswer))
    _, found = models_json_schema(
        [(answer, "serialization") for answer in answers], ref_template=_IN_A_MODEL
    )
    return {name: _written(schema) for name, schema in found["$defs"].items()}


def _written(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Whoever writes it may leave out what is null."""
    written = {key: value for key, value in schema.items() if key != "additionalProperties"}
    if "properties" in schema:
        written["required"] = [
            name
            for name, field in schema["properties"].items()
            if {"type": "null"} not in field.get("anyOf", ())
        ]
    return written


def _operation(kind: type[Request]) -> Mapping[str, Any]:
    answer = answer_of(kind).__name__
    asked: Mapping[str, Any] = (
        {"parameters": [_parameter(kind, name) for name in kind.model_fields]}
        if kind.method == "GET"
        else {"requestBody": {"required": True, **_json(kind.__name__)}}
    )
    return {
        "operationId": kind.path.rpartition("/")[2],
        "description": f"{_flowed(kind)} Who may ask: {_ASKERS[kind.asker]}.",
        **asked,
        "responses": {
            str(HTTPStatus.OK.value): {"description": "The answer.", **_json(answer)},
            "default": {"description": "Refused or failed.", **_json(FailureAnswer.__name__)},
        },
    }


def _parameter(kind: type[Request], name: str) -> Mapping[str, Any]:
    schema = _properties(kind)[name]
    is_plain = "$ref" not in json.dumps(schema)
    how = {"schema": schema} if is_plain else {"content": {"application/json": {"schema": schema}}}
    return {
        "name": name,
        "in": "query",
        "required": name in _schema(kind).get("required", ()),
        **how,
    }


def _json(model: str) -> Mapping[str, Any]:
    schema = {"$ref": _IN_A_MODEL.format(model=model)}
    return {"content": {"application/json": {"schema": schema}}}


def _schema(kind: type[Request]) -> Mapping[str, Any]:
    return kind.model_json_schema(ref_template=_IN_A_MODEL)


def _properties(kind: type[Request]) -> Mapping[str, Mapping[str, Any]]:
    properties: Mapping[str, Mapping[str, Any]] = _schema(kind)["properties"]
    return properties


def _of_queries() -> Mapping[str, Any]:
    """The models that fields of queries hold."""
    found: dict[str, Any] = {}
    for kind in requests():
        if kind.method == "GET":
            found |= _schema(kind).get("$defs", {})
    return found


_BOUNDS = {
    "maxLength": "{} characters at most",
    "maxItems": "{} at most",
    "minimum": "from {}",
    "exclusiveMinimum": "above {}",
    "maximum": "to {}",
    "pattern": "`{}`",
}


def _words(schema: Mapping[str, Any]) -> str:
    """What a field may hold, in words."""
    if "anyOf" in schema:
        return " or ".join(_words(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}` as JSON"
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if "prefixItems" in schema:
        return f"`[{', '.join(_words(one) for one in schema['prefixItems'])}]`"
    kind = {"integer": "whole number", "string": "text"}.get(schema["type"], schema["type"])
    if kind == "array":
        kind = f"list of {_words(schema['items'])}"
    bounds = (form.format(schema[key]) for key, form in _BOUNDS.items() if key in schema)
    return ", ".join((kind, *bounds)).replace("|", r"\|")


def _flowed(kind: type[Request]) -> str:
    paragraphs = cleandoc(kind.__doc__ or "").split("\n\n")
    return " ".join(" ".join(one.split()) for one in paragraphs).replace("``", "`")
