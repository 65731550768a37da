"""Tests what openai.lua reads of a body, with a stand-in for HAProxy."""

import json
import re
import resource
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.settings.gateway import GatewaySettings
from launcher.scripts.render import gateway_files

HAPROXY = """
local act
core = { register_action = function(name, _, one) act = name == "read_openai" and one or act end }
%s
for line in io.lines() do
    local length, encoded = line:match("^(%%d*) (%%x*)$")
    local body = encoded:gsub("%%x%%x", function(one) return string.char(tonumber(one, 16)) end)
    local vars = { ["txn.by_model"] = true }
    act({
        f = { req_body = function() return body end },
        http = { req_get_headers = function()
            return { ["content-length"] = length ~= "" and { [0] = length } or nil }
        end },
        get_var = function(_, name) return vars[name] end,
        set_var = function(_, name, value) vars[name] = value end,
    })
    print(vars["txn.name"] or vars["txn.refused"], vars["txn.plain"] and "plain" or "stream")
end
"""
CODE, UNSEEN = "SW-GATEWAY-MODEL", "SW-GATEWAY-MODEL-UNSEEN"


@cache
def program() -> str:
    settings = GatewaySettings(directory=Path("/gw"), services=1, backends=1, servers=1)
    return HAPROXY % gateway_files(settings)["openai.lua"]


def read(*bodies: bytes, lengths: Sequence[int | None] = ()) -> list[list[str]]:
    """Model, or why there is none; and whether the answer is plain for sure."""
    told = lengths or [len(body) for body in bodies]
    lines = [
        f"{'' if length is None else length} {body.hex()}"
        for length, body in zip(told, bodies, strict=True)
    ]
    ran = subprocess.run(
        ("lua5.3", "-e", program()),
        input="\n".join(lines),
        text=True,
        capture_output=True,
        check=True,
    )
    return [line.split("\t") for line in ran.stdout.splitlines()]


WORDS = st.text(alphabet='abm"\\{}[]:,é\n ', max_size=8) | st.sampled_from(["model", "stream"])
PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)
BODIES = st.dictionaries(WORDS, PARTS, max_size=5)


@settings(max_examples=10, deadline=None)
@given(bodies=st.lists(BODIES, min_size=20, max_size=40), indent=st.sampled_from([None, 2]))
def test_it_reads_what_a_parser_reads(bodies: list[dict[str, Any]], indent: int | None) -> None:
    texts = [json.dumps(one, indent=indent, ensure_ascii=False).encode() for one in bodies]
    for body, text, (model, kind) in zip(bodies, texts, read(*texts), strict=True):
        expected = body.get("model")
        if isinstance(expected, str) and not set('"\\\n') & set(expected):
            # Bytes that no name has are written as question marks.
            wanted = re.sub(rb"[^a-z]", b"?", expected.encode()).decode()
        else:
            wanted = CODE
        assert model == wanted, text
        hides = any(set(key) & set('"\\\n') for key in body)
        asks = body.get("stream") not in {None, False} if _is_plain(body.get("stream")) else True
        assert kind == ("stream" if hides or asks else "plain"), text


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool)


@settings(max_examples=10, deadline=None)
@given(body=BODIES, data=st.data())
def test_of_a_part_it_reads_nothing_else(body: dict[str, Any], data: st.DataObject) -> None:
    """Where HAProxy has not all of it, the answer may be a stream, whatever it says so far."""
    whole = json.dumps({"model": "chat", **body, "last": 0} if "model" not in body else body)
    text = whole.encode()
    parts = [text[: data.draw(st.integers(0, len(text) - 1))] for _ in range(20)]
    (model, _), *found = read(text, *parts, lengths=[len(text)] * 21)
    for one, kind in found:
        assert one in {model, CODE, UNSEEN}
        assert kind == "stream"


def test_only_a_key_of_the_outermost_object_that_is_there_once_names_the_model() -> None:
    bodies = {
        b'{"a": {"model": "none"}, "model": "chat"}': "chat",
        b'{"a": "\\"model\\": \\"none\\"", "model": "chat"}': "chat",
        b'{"a": {"model": "none"}}': CODE,
        b'["model", {"model": "none"}]': CODE,
        b'{"model": "chat", "model": "none"}': CODE,
        b'{"model": "chat", "model": 1}': CODE,
    }
    assert [one for one, _ in read(*bodies)] == list(bodies.values())


def test_of_a_text_of_wide_characters_nothing_is_read() -> None:
    """An engine may: it would stream where a plain answer is expected."""
    text = '{"model": "a", "stream": true}'
    wide = [text.encode(name) for name in ("utf-16-le", "utf-16", "utf-32-be")]
    assert read(*wide, text.encode() + b"\0") == [[CODE, "stream"]] * 4
    narrow = '{"model": "a", "x": "\U0001f600"}'.encode()
    assert read(narrow) == [["a", "plain"]]


def test_without_a_length_much_of_a_body_may_be_a_part_of_it() -> None:
    long, short = b'{"a": "' + b"x" * 12_000, b'{"a": "' + b"x" * 3_000
    found = read(long, short, long, lengths=[None, None, len(long)])
    assert [one for one, _ in found] == [UNSEEN, CODE, CODE]


def test_a_hostile_body_takes_time_by_its_length_only() -> None:
    """A second way through one of them would take minutes."""
    length = 256 * 1024
    hostile = [
        one * (length // len(one))
        for one in (b"{", b"[", b'"', b'{"', b"\\", b'{"a":', b'"\\"', b" ", b'"a" ', b"}{", b'"":')
    ]
    before_s = _cpu_s()
    ended = read(*(b'{"a": ' + one for one in hostile), *(b"{" + one for one in hostile))
    assert len(ended) == 2 * len(hostile)
    assert _cpu_s() - before_s < 60


def _cpu_s() -> float:
    """Seconds of CPU of the programs that have run."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
