"""Tests what openai.lua writes into a request's body as it passes, with a stand-in for HAProxy."""

import json
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.scripts.render import gateway_files

HAPROXY = """
local ask
local meanings = { ["t,gpt-4"] = "u/big", ["t,u/big"] = "u/big", ["t,none"] = "-" }
filter = { FLT_CFG_FL_HTX = 1, register_data_filter = function() end }
Map = { new = function() return { lookup = function(_, key) return meanings[key] end } end }
core = {
    warning = 4,
    log = function(_, text) print(text) end,
    register_action = function() end,
    register_service = function() end,
    register_task = function() end,
    register_filter = function(_, class) ask = class end,
}
%s
for line in io.lines() do
    local sums, hex = line:match("^(%%S+) (.*)$")
    local vars = { ["txn.service"] = "u/big", ["txn.payer"] = "t", ["txn.sums"] = sums }
    local has_length = true
    local txn = {
        f = { req_ver = function() return "1.1" end },
        http = {
            req_get_headers = function() return {} end,
            req_del_header = function() has_length = false end,
        },
        get_var = function(_, name) return vars[name] end,
        set_var = function(_, name, value) vars[name] = value end,
    }
    local text, sent, is_last, most = "", {}, false, 0
    local message = {
        channel = { is_resp = function() return false end },
        body = function() return text end,
        eom = function() return is_last end,
        set = function(_, other) text = other return #other end,
    }
    local state = ask:new()
    state:http_headers(txn, message)
    local function come(piece)
        text = text .. piece:gsub("%%x%%x", function(one) return string.char(tonumber(one, 16)) end)
        local passed = state:http_payload(txn, message) or #text
        sent[#sent + 1] = text:sub(1, passed)
        text = text:sub(passed + 1)
        most = math.max(most, #text)
    end
    for piece in hex:gmatch("%%S+") do come(piece) end
    is_last = true
    if text ~= "" then come("") end
    local all = table.concat(sent):gsub(".", function(one) return ("%%02x"):format(one:byte()) end)
    print(has_length and 1 or 0, vars["txn.takes_out"] or "", most, all)
end
"""
VLLM, LLAMA_CPP = "stream_options", "timings_per_token"
ALL = {"include_usage": True, "continuous_usage_stats": True}


@cache
def program() -> str:
    made = GatewaySettings(directory=Path("/gw"), services=1, backends=1, servers=1)
    return HAPROXY % gateway_files(made)["openai.lua"]


def sent(*bodies: Sequence[bytes], sums: str = VLLM) -> list[tuple[bytes, str]]:
    """What the engine gets of each body in pieces, and what is taken out of its stream."""
    asked = [f"{sums} {' '.join(piece.hex() for piece in body)}" for body in bodies]
    ran = subprocess.run(
        ("lua5.3", "-e", program()),
        input="\n".join(asked),
        text=True,
        capture_output=True,
        check=True,
    )
    found = [line.split("\t") for line in ran.stdout.splitlines()]
    assert [(length, int(most) <= 4096) for length, _, most, _ in found] == [("0", True)] * len(
        bodies
    )
    return [(bytes.fromhex(text), takes_out) for _, takes_out, _, text in found]


WORDS = st.text(alphabet='abm"\\{}[]:,é\n ', max_size=8) | st.sampled_from(
    ["model", "stream", "stream_options", "x" * 300]
)
PARTS = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
OWN = {
    "model": st.sampled_from(["big", "gpt-4", "u/big", "gpt-4:ad", "big:ad", "none", "org/Big-7B"]),
    "stream": st.sampled_from([True, False, None]),
    "stream_options": st.none()
    | st.dictionaries(st.sampled_from([*ALL, "include_obfuscation"]), st.booleans(), max_size=3),
}
ENGINE_NAMES = {"gpt-4": "big", "u/big": "big", "gpt-4:ad": "big:ad"}


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[bytes], dict[str, Any]]:
    """A body in pieces, and what it says."""
    said = draw(st.dictionaries(WORDS.filter(lambda key: key not in OWN), PARTS, max_size=3))
    said |= draw(st.fixed_dictionaries({}, optional=OWN))
    said = dict(draw(st.permutations(list(said.items()))))
    text = json.dumps(said, indent=draw(st.sampled_from([None, 2])), ensure_ascii=False).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[at:end] for at, end in zip((0, *cuts), (*cuts, len(text)), strict=True)], said


@settings(max_examples=examples(4, nightly=100), deadline=None)
@given(made=st.lists(requests(), min_size=20, max_size=40))
def test_the_engine_gets_its_own_name_and_is_asked_for_running_sums(
    made: list[tuple[list[bytes], dict[str, Any]]],
) -> None:
    found = sent(*(pieces for pieces, _ in made))
    for (pieces, said), (text, takes_out) in zip(made, found, strict=True):
        wanted = dict(said)
        options = said.get("stream_options") or {}
        if "model" in said:
            wanted["model"] = ENGINE_NAMES.get(said["model"], said["model"])
        is_asked = "stream_options" in said or (
            said.get("stream") is True
            and not any("\\" in json.dumps(key, ensure_ascii=False) for key in said)
        )
        if is_asked:
            wanted["stream_options"] = options | ALL
        out = ""
        if is_asked and not options.get("include_usage"):
            out = "usage"
        elif is_asked and not options.get("continuous_usage_stats"):
            out = "running"
        assert (json.loads(text), takes_out) == (wanted, out), pieces
        if wanted == said:
            assert text == b"".join(pieces)


@pytest.mark.parametrize(("asked", "out"), [({}, "timings"), ({LLAMA_CPP: True}, "")])
def test_llama_cpp_is_asked_for_timings(asked: dict[str, Any], out: str) -> None:
    said = {"stream": True, **asked}
    ((text, takes_out),) = sent([json.dumps(said).encode()], sums=LLAMA_CPP)
    assert (json.loads(text), takes_out) == (said | {LLAMA_CPP: True}, out)


UNCLEAR = (
    b'{"stream": true, "stream": true}',
    b'{"stream": 1}',
    b'{"stream": "true"}',
    b'{"str\\u0065am": false, "stream": true}',
    b'{"stream": true, "x": [',
    b'{"stream": true, "stream_options": {"a": {}}}',
    b'{"stream": true, "stream_options": {"a": "}"}}',
    b'{"stream": true, "stream_options": [true]}',
    b'{"a": {"stream": true}}',
    b'{"a": "\\"stream\\": true"}',
    b'[{"stream": true}]',
    b'"stream"',
    b"",
    b'{"stream": true, "model": "gpt-4',
    b'{"model": "\\u0067pt-4"}',
    b'{"stream": ' + b" " * 9000 + b"true",
    '{"model": "gpt-4", "stream": true}'.encode("utf-16"),
    '{"model": "gpt-4", "stream": true}'.encode("utf-16-le"),
    b"--boundary\r\n\r\ngpt-4",
)


@pytest.mark.parametrize("size", [1, 100_000])
def test_what_is_unclear_goes_on_as_it_is(size: int) -> None:
    bodies = [[one[at : at + size] for at in range(0, len(one), size)] for one in UNCLEAR]
    assert sent(*bodies) == [(one, "") for one in UNCLEAR]


@settings(max_examples=examples(4, nightly=100), deadline=None)
@given(bodies=st.lists(st.lists(st.binary(max_size=300), max_size=4), min_size=20, max_size=40))
@example(bodies=[[b'{"' + b"\\" * 5000, b'"' * 5000], [b"{" * 9000], [b'{"a":"b",' * 9000]])
def test_any_bytes_are_a_body(bodies: list[list[bytes]]) -> None:
    assert [text for text, _ in sent(*bodies)] == [b"".join(body) for body in bodies]
