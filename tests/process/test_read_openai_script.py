"""Tests what openai.lua reads of a body, with a stand-in for HAProxy."""

import json
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.scripts.render import gateway_files

HAPROXY = """
local act
filter = { FLT_CFG_FL_HTX = 1 }
Map = { new = function() end }
core = {
    register_action = function(name, _, one) act = name == "read_openai" and one or act end,
    register_service = function(_, _, one) find_model = one end,
    register_filter = function() end,
    register_task = function(one) write_counts = one end,
}
%s
for line in io.lines() do
    local length, encoded = line:match("^(%%d*) (%%x*)$")
    local body = encoded:gsub("%%x%%x", function(one) return string.char(tonumber(one, 16)) end)
    local vars = { ["txn.by_model"] = true, ["txn.tenant"] = "t" }
    act({
        f = { req_body = function() return body end },
        http = { req_get_headers = function()
            return { ["content-length"] = length ~= "" and { [0] = length } or nil }
        end },
        get_var = function(_, name) return vars[name] end,
        set_var = function(_, name, value) vars[name] = value end,
    })
    local model = vars["txn.adapter"] and vars["txn.adapter"]:sub(3) or vars["txn.name"]
    print(model or vars["txn.refused"], vars["txn.plain"] and "plain" or "stream")
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
            wanted = re.sub(rb"[^a-z:]", b"?", expected.encode()).decode()
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


COUNTED = """
local work, find = 0, string.find
local function count(more)
    work = work + more
    if work >= most then
        io.stderr:write(work)
        os.exit(0)
    end
end
debug.sethook(function() count(1000) end, "", 1000)
for _, name in ipairs({ "find", "match" }) do
    local search = string[name]
    string[name] = function(text, pattern, from, ...)
        local first = from or 1
        local _, last = find(text, pattern:sub(1, 1) == "^" and "^%s*" or pattern, first, ...)
        count((last or #text) - first + 1)
        return search(text, pattern, from, ...)
    end
end
local sub = string.sub
string.sub = function(...)
    local part = sub(...)
    count(#part)
    return part
end
"""
"""Counts instructions of Lua, and the bytes through which its searches walk and that it copies; at
``most`` it ends."""
MOST_WORK = 100
"""For each byte of a body: more than twice what it is."""


def test_a_hostile_body_takes_work_by_its_length_only() -> None:
    """A second way through one of them would take minutes."""
    size = 256 * 1024
    hostile = [
        one * (size // len(one))
        for one in (b"{", b"[", b'"', b'{"', b"\\", b'{"a":', b'"\\"', b" ", b'"a" ', b"}{", b'"":')
    ]
    bodies = [b'{"a": ' + one for one in hostile] + [b"{" + one for one in hostile]
    length = sum(map(len, bodies))
    text = f"local most = {MOST_WORK * length}\n{COUNTED}{program()}io.stderr:write(work)"
    lines = [f"{len(body)} {body.hex()}" for body in bodies]
    ran = subprocess.run(
        ("lua5.3", "-e", text), input="\n".join(lines), text=True, capture_output=True, check=True
    )
    assert length < int(ran.stderr) < MOST_WORK * length
    assert len(ran.stdout.splitlines()) == len(bodies)


PIECES = """
function openai_refusal(code, service)
    return code == "SW-GATEWAY-MODEL-UNSEEN" and 307 or 400, "", code
end
for line in io.lines() do
    local size, length, encoded = line:match("^(%%d+) (%%d*) (%%x*)$")
    local body = encoded:gsub("%%x%%x", function(one) return string.char(tonumber(one, 16)) end)
    local at, said = 1, ""
    find_model({
        headers = { ["content-length"] = length ~= "" and { [0] = length } or nil },
        path = "/v1/completions",
        qs = "",
        get_var = function(_, name) return name == "txn.tenant" and "t" or nil end,
        receive = function()
            assert(at, "HAProxy would wait for ever")
            local piece = body:sub(at, at + size - 1)
            at = piece ~= "" and at + size or nil
            return piece
        end,
        set_status = function() end,
        start_response = function() end,
        add_header = function(_, name, value) said = name == "location" and value or said end,
        send = function(_, code) print(said ~= "" and said or code) end,
    })
end
"""


def found_in_pieces(*bodies: bytes, size: int, is_length_said: bool = True) -> list[str]:
    """Where a client is led to whose body comes in pieces of ``size`` bytes, or why nowhere."""
    lines = [f"{size} {len(one) if is_length_said else ''} {one.hex()}" for one in bodies]
    no_line = program().replace("for line in io.lines()", "for line in nil_lines()", 1)
    script = "function nil_lines() return function() end end\n" + no_line + PIECES % ()
    ran = subprocess.run(
        ("lua5.3", "-e", script),
        input="\n".join(lines),
        text=True,
        capture_output=True,
        check=True,
    )
    return ran.stdout.splitlines()


@settings(max_examples=10, deadline=None)
@given(
    bodies=st.lists(BODIES, min_size=20, max_size=40),
    size=st.integers(1, 30),
    is_length_said=st.booleans(),
)
def test_in_pieces_it_finds_what_a_parser_finds(
    bodies: list[dict[str, Any]], size: int, is_length_said: bool
) -> None:
    texts = [json.dumps(one, ensure_ascii=False).encode() for one in bodies]
    found = found_in_pieces(*texts, size=size, is_length_said=is_length_said)
    for body, text, said in zip(bodies, texts, found, strict=True):
        model = body.get("model")
        if not isinstance(model, str) or set('"\\\n') & set(model):
            assert said == CODE, text
        elif re.fullmatch("[a-z0-9][a-z0-9-]*", model):
            assert said == f"/t/{model}/v1/completions", text
        else:
            assert said == "SW-GATEWAY-UNKNOWN", text


def test_long_texts_and_runs_of_backslashes_are_passed_over_in_pieces() -> None:
    """A quote belongs to a text or ends it whichever piece its backslashes are in."""
    ends = b', "model": "chat"}'
    bodies = [
        b'{"a": "' + b"x" * 10_000 + b'\\"model\\": \\"none\\"' + b'"' + ends,
        *(b'{"a": "' + b"\\\\" * count + b'"' + ends for count in range(1, 9)),
        *(b'{"a": "' + b"\\\\" * count + b'\\"", "a": {}' + ends for count in range(1, 9)),
        b'{"' + b"k" * 10_000 + b'model": 1' + ends,
        b" \n" * 5_000 + b'{ "model"' + b" " * 5_000 + b":" + b"\n" * 5_000 + b'"chat"}',
    ]
    for size in (1, 2, 3, 7, 8192):
        assert found_in_pieces(*bodies, size=size) == ["/t/chat/v1/completions"] * len(bodies)
    assert found_in_pieces(b"", b"{", b'{"a', b'{"model": "ch', b"[]", b'{"a": 1}}', size=2) == (
        [CODE] * 6
    )
    assert found_in_pieces(b'{"model": "chat:legal"}', size=5) == ["/t/chat/v1/completions"]
    assert found_in_pieces(b'{"model": "v1:a"}', b'{"model": ":a"}', size=5) == (
        ["SW-GATEWAY-UNKNOWN"] * 2
    )
    assert found_in_pieces(b'{"model": "v1"}', b'{"model": "a/b"}', size=5) == (
        ["SW-GATEWAY-UNKNOWN"] * 2
    )


def test_in_pieces_a_hostile_body_takes_a_bounded_number_of_steps() -> None:
    """Texts may be of any length; brackets, quotes and backslashes are looked at one by one."""

    def bodies(count: int) -> list[bytes]:
        many = (b"[]," * count, b"{}," * count, b'"a",' * count, b'"' + b'\\"' * count + b'",')
        ends = b'0], "model": "chat"}'
        slow = (*many, (b'"' + b"\\\\" * 4_000 + b'",') * (count // 4_000))
        return [b'{"a": [' + one + ends for one in slow]

    assert found_in_pieces(*bodies(40_000), size=8192) == ["/t/chat/v1/completions"] * 5
    assert found_in_pieces(*bodies(240_000), size=8192) == [CODE] * 5
    long = b'{"a": "' + b"x" * 1_000_000 + b'", "model": "chat"}'
    assert found_in_pieces(long, size=8192) == ["/t/chat/v1/completions"]


def names(body: bytes, *, by_model: bool) -> tuple[str, str]:
    """The service and the adapter that a body names; of a direct request that of t/chat."""
    here = '["txn.by_model"] = true, ["txn.tenant"] = "t"'
    direct = '["txn.service"] = "t/chat", ["txn.tenant"] = "t"'
    text = program() if by_model else program().replace(here, direct)
    said = 'print(vars["txn.name"] or "-", vars["txn.adapter"] or "-") print(model'
    text = text.replace("print(model", said)
    line = f"{len(body)} {body.hex()}"
    ran = subprocess.run(
        ("lua5.3", "-e", text), input=line, text=True, capture_output=True, check=True
    )
    service, adapter = ran.stdout.splitlines()[0].split("\t")
    return service, adapter


def test_a_model_with_a_colon_is_an_adapter_of_the_service_before_it() -> None:
    assert names(b'{"model": "chat"}', by_model=True) == ("chat", "-")
    assert names(b'{"model": "chat:legal"}', by_model=True) == ("chat", "t/chat:legal")
    assert names(b'{"model": "chat:a:b"}', by_model=True) == ("chat", "t/chat:a:b")
    assert names(b'{"model": ":legal"}', by_model=True) == ("", "t/:legal")
    longest = "s" * 32 + ":" + "a" * 63
    said = json.dumps({"model": longest}).encode()
    assert names(said, by_model=True) == ("s" * 32, f"t/{longest}")


def test_at_a_service_s_own_address_only_its_own_adapters_count() -> None:
    assert names(b'{"model": "chat:legal"}', by_model=False) == ("-", "t/chat:legal")
    for text in ("other:legal", "chat", "legal", "chat2:legal", "u/chat:legal", ":"):
        body = json.dumps({"model": text}).encode()
        assert names(body, by_model=False) == ("-", "-"), text
    assert names(b'{"model": "chat:a", "model": "chat:b"}', by_model=False) == ("-", "-")


COUNTING = """
map, writes, actions = { ["t/chat:legal"] = "0", ["t/chat:tax"] = "0" }, 0, {}
Map = { new = function() return { lookup = function(_, name) return map[name] end } end }
filter = { FLT_CFG_FL_HTX = 1 }
core = {
    thread = 3,
    register_filter = function() end,
    register_action = function(name, _, one) actions[name] = one end,
    register_service = function() end,
    register_task = function(one) write_counts = coroutine.wrap(one) end,
    msleep = coroutine.yield,
    set_map = function(_, key, value) map[key], writes = value, writes + 1 end,
}
%s
local function ask(name)
    actions.count_adapter({ get_var = function() return name end })
end
for _, name in ipairs({ "t/chat:legal", "t/chat:tax", "t/chat:legal", "t/chat:none" }) do
    ask(name)
end
local before = writes
map["t/chat:tax"] = nil
for _ = 1, 5 do write_counts() end
ask("t/chat:legal")
for _ = 1, 5 do write_counts() end
print(before, writes, map["t/chat:legal/3"], map["t/chat:tax/3"], map["t/chat:none/3"])
"""


def test_no_request_waits_until_its_adapter_s_count_is_written_and_none_is_lost() -> None:
    settings = GatewaySettings(directory=Path("/gw"), services=1, backends=1, servers=1)
    script = COUNTING % gateway_files(settings)["openai.lua"]
    ran = subprocess.run(("lua5.3", "-e", script), text=True, capture_output=True, check=True)
    # One that has been taken away meanwhile gets no entry again.
    assert ran.stdout.split() == ["0", "2", "3", "nil", "nil"]
