"""Tests what usage.lua counts of answers, with a stand-in for HAProxy."""

import json
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.rules.gateway.usage_lines import UsageLine, parse_usage_line
from slicewise.launcher.scripts.render import gateway_files

HAPROXY = """
local usage, said
filter = { FLT_CFG_FL_HTX = 1, register_data_filter = function() end }
core = {
    debug = 7, warning = 4, thread = 3,
    now = function() return { sec = 1, usec = 2000 } end,
    get_info = function() return { node = "gw 1.example", Pid = 17, Start_time_sec = 5 } end,
    log = function(_, text) said = text end,
    register_filter = function(_, class) usage = class end,
}
%s
for line in io.lines() do
    local kind, is_whole, takes_out, hex = line:match("^(%%S+) (%%d) (%%S+) (.*)$")
    local vars = { ["txn.metered"] = true, ["txn.service"] = "t/chat", ["txn.payer"] = "t" }
    vars["txn.takes_out"] = takes_out ~= "-" and takes_out or nil
    local txn = {
        f = { status = function() return 200 end, date = function() return 1002 end },
        get_var = function(_, name) return vars[name] end,
        set_var = function(_, name, value) vars[name] = value end,
    }
    local request = { is_resp = function() return false end }
    local answer = { is_resp = function() return true end }
    -- What HAProxy has and has not sent on: a callback says how much of it may go.
    local text, sent, is_last = "", {}, false
    local message = {
        channel = answer,
        get_headers = function() return { ["content-type"] = { [0] = kind } } end,
        del_header = function() end,
        body = function() return text end,
        eom = function() return is_last end,
        set = function(_, other) text = other return #other end,
    }
    local state = usage:new()
    state:start_analyze(txn, request)
    state:start_analyze(txn, answer)
    state:http_headers(txn, message)
    local function come(piece)
        text = text .. piece:gsub("%%x%%x", function(one) return string.char(tonumber(one, 16)) end)
        local passed = state:http_payload(txn, message) or #text
        sent[#sent + 1] = text:sub(1, passed)
        text = text:sub(passed + 1)
    end
    for piece in hex:gmatch("%%S+") do come(piece) end
    is_last = is_whole == "1"
    if is_last then
        if text ~= "" then come("") end
        state:http_end(txn, message)
    end
    said = nil
    state:end_analyze(txn, answer)
    state:end_analyze(txn, answer)
    print(said)
    print((table.concat(sent):gsub(".", function(one) return ("%%02x"):format(one:byte()) end)))
end
"""
STREAM, JSON = "text/event-stream", "application/json"
USAGE = {"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}


@cache
def program() -> str:
    made = GatewaySettings(directory=Path("/gw"), services=1, backends=1, servers=1)
    return HAPROXY % gateway_files(made)["usage.lua"]


def lines(*answers: tuple[str, Sequence[bytes]], is_whole: bool = True) -> list[UsageLine]:
    found = told(*answers, is_whole=is_whole)
    assert [text for _, text in found] == [b"".join(pieces) for _, pieces in answers]
    return [line for line, _ in found]


def told(
    *answers: tuple[str, Sequence[bytes]], is_whole: bool = True, takes_out: str = "-"
) -> list[tuple[UsageLine, bytes]]:
    """The line of each answer, and what its client gets."""
    asked = [
        f"{kind} {is_whole:d} {takes_out} {' '.join(piece.hex() for piece in pieces)}"
        for kind, pieces in answers
    ]
    ran = subprocess.run(
        ("lua5.3", "-e", program()),
        input="\n".join(asked),
        text=True,
        capture_output=True,
        check=True,
        timeout=120,
    )
    *shown, _ = ran.stdout.split("\n")
    parsed = [parse_usage_line(text) for text in shown[::2]]
    assert len(parsed) == len(answers)
    sent = map(bytes.fromhex, shown[1::2])
    return [(line, text) for line, text in zip(parsed, sent, strict=True) if line is not None]


def counts(line: UsageLine) -> tuple[int, int, int]:
    return line.prompt_tokens, line.cached_tokens, line.output_tokens


def test_lines_of_a_thread_are_numbered_one_after_the_other():
    said = lines(*[(JSON, [b"{}"])] * 3)
    assert [(line.thread, line.place, line.boot) for line in said] == [
        (3, place, "gw_1.example-17-5") for place in range(3)
    ]


LIAR = json.dumps('","usage":{"prompt_tokens":1,"completion_tokens":1}')[1:-1]
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from((LIAR, '"usage":{', "\\", '\\"', "}]}")))
VALUES = st.recursive(
    st.one_of(TEXTS, st.integers(-9, 9), st.none()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(TEXTS, st.sampled_from(("usage", "timings"))), inner, max_size=3),
    ),
    max_leaves=6,
)
OTHERS = st.dictionaries(
    st.text(max_size=8).filter(lambda key: key not in {"usage", "timings"}), VALUES
)


@st.composite
def pieces(draw: st.DrawFn, body: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=5)))
    return [body[at:end] for at, end in zip((0, *cuts), (*cuts, len(body)), strict=True)]


@st.composite
def whole_answers(draw: st.DrawFn) -> list[bytes]:
    """An answer with usage somewhere among an engine's keys, and anything deeper."""
    before, after = draw(OTHERS), draw(OTHERS)
    padding = {"choices": [{"content": draw(TEXTS) * draw(st.sampled_from((1, 3000)))}]}
    said: dict[str, Any] = {**before, **padding, "usage": USAGE, **after}
    spaces = draw(st.sampled_from(((",", ":"), (", ", ": "))))
    body = json.dumps(said, separators=spaces, ensure_ascii=draw(st.booleans()))
    return draw(pieces(body.encode("utf-8", "replace")))


@given(st.lists(whole_answers(), min_size=10, max_size=20))
@settings(max_examples=examples(4, nightly=100))
def test_only_the_engine_s_own_counts_are_counted(answers: list[list[bytes]]):
    said = lines(*((JSON, answer) for answer in answers))
    assert [counts(line) for line in said] == [(9, 4, 7)] * len(answers)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], int]:
    """A stream without counts, and how many of its chunks have text."""
    texts = draw(st.lists(st.text(max_size=6), max_size=8))
    chunks = [
        {"choices": [{"delta": {"content": text, "x": [{"usage": USAGE}]}}]} for text in texts
    ]
    end = draw(st.sampled_from(("\n\n", "\r\n\r\n")))
    body = "".join(f"data: {json.dumps(one, separators=(',', ':'))}{end}" for one in chunks)
    return draw(pieces(body.encode())), sum(map(bool, texts))


@given(st.lists(streams(), min_size=10, max_size=20))
@settings(max_examples=examples(4, nightly=100))
def test_of_a_stream_without_counts_chunks_with_text_are_counted(
    answers: list[tuple[list[bytes], int]],
):
    said = lines(*((STREAM, parts) for parts, _ in answers), is_whole=False)
    assert [line.output_tokens for line in said] == [chunks for _, chunks in answers]
    assert {line.is_exact for line in said} == {False}


@given(st.lists(st.lists(st.binary(max_size=300), max_size=4), min_size=30, max_size=60))
@settings(max_examples=examples(4, nightly=100))
def test_any_bytes_are_an_answer(answers: list[list[bytes]]):
    for kind in (STREAM, JSON):
        assert len(lines(*((kind, parts) for parts in answers))) == len(answers)


def chunk(**said: Any) -> bytes:
    return b"event: chunk\ndata: " + json.dumps(said).encode() + b"\n\n"


@pytest.mark.parametrize("is_whole", [True, False])
def test_of_many_running_sums_the_last_one_counts(is_whole: bool):
    sums = [{"prompt_tokens": 9, "completion_tokens": count} for count in range(1, 40)]
    answer = [chunk(usage=usage) for usage in sums] + [chunk(usage=None), b"data: [DONE]\n\n"]
    first = chunk(message={"usage": {"input_tokens": 9, "cache_read_input_tokens": 4}})
    last = chunk(usage={"output_tokens": 7})
    texts = [chunk(delta={"text": "x"})] * 9
    said = lines((STREAM, answer), (STREAM, [first, *texts, last]), is_whole=is_whole)
    assert [counts(line) for line in said] == [(9, 0, 39), (13, 4, 7)]


def compact(said: Any) -> bytes:
    return b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n"


def running(text: str, **said: Any) -> dict[str, Any]:
    """A chunk of vLLM's form; llama.cpp's has its keys in another order."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return {"id": "c", "choices": [{**choice, **said.pop("choice", {})}], **said}


def sums(output: int, **more: int) -> dict[str, Any]:
    return {"prompt_tokens": 9, "total_tokens": 9 + output, "completion_tokens": output, **more}


TIMINGS = {"cache_n": 4, "prompt_n": 5, "prompt_ms": 1.25e-3, "predicted_n": 0}
LAST = {"id": "c", "choices": [], "usage": USAGE}
LIES = '","usage":{"completion_tokens":1}}\n\ndata: {"choices":[],"usage":{}} "timings":{}}'
WORDS = st.lists(st.one_of(st.text(max_size=9), st.just(LIES)), max_size=7)


@st.composite
def asked_streams(draw: st.DrawFn, takes_out: str) -> tuple[list[bytes], bytes]:
    """What the engine sends that was asked for its sums, and what the client has asked for."""
    words = draw(WORDS)
    said, wanted = [], []
    for output, word in enumerate(words, 1):
        more = {"timings": TIMINGS | {"predicted_n": output}}
        if takes_out != "timings":
            more = {"usage": sums(output), **draw(st.sampled_from(({}, {"system": "x"})))}
        said.append(compact(running(word, **more)))
        more.pop("usage", None)
        wanted.append(compact(running(word, **more if takes_out != "timings" else {})))
    if takes_out == "timings":
        last = running("", timings=TIMINGS, choice={"finish_reason": "stop"})
        said.append(compact(last))
        wanted.append(compact(last))
    else:
        said.append(compact(LAST))
        wanted += [compact(LAST)] if takes_out == "running" else []
    said.append(b"data: [DONE]\n\n")
    wanted.append(b"data: [DONE]\n\n")
    return draw(pieces(b"".join(said))), b"".join(wanted)


@pytest.mark.parametrize("takes_out", ["usage", "running", "timings"])
@given(data=st.data())
@settings(max_examples=examples(4, nightly=100))
def test_what_the_client_has_not_asked_for_is_taken_out(takes_out: str, data: st.DataObject):
    made = st.lists(asked_streams(takes_out), min_size=10, max_size=20)
    answers = data.draw(made)
    found = told(*((STREAM, parts) for parts, _ in answers), takes_out=takes_out)
    assert [text for _, text in found] == [wanted for _, wanted in answers]


@pytest.mark.parametrize("takes_out", ["usage", "running", "-"])
def test_of_a_cut_stream_the_sums_of_all_its_choices_count(takes_out: str):
    said = [
        compact(running("x", usage=sums(output), choice={"index": index}))
        for output in range(1, 30)
        for index in range(3)
    ]
    ((line, _),) = told((STREAM, said), is_whole=False, takes_out=takes_out)
    assert (counts(line), line.is_exact) == ((9, 0, 3 * 29), True)


def test_of_a_cut_stream_of_llama_cpp_its_timings_count():
    said = [compact(running("x", timings=TIMINGS | {"predicted_n": n})) for n in range(1, 20)]
    ((line, _),) = told((STREAM, said), is_whole=False, takes_out="timings")
    assert (counts(line), line.is_exact) == ((9, 4, 19), True)


def test_of_a_cut_stream_a_sum_of_its_beginning_is_not_its_output():
    """Anthropic's streams say the prompt first, with no output yet."""
    said = [compact({"message": {"usage": {"input_tokens": 9, "output_tokens": 0}}})]
    said += [compact({"delta": {"text": "x"}})] * 5
    ((line, _),) = told((STREAM, said), is_whole=False)
    assert (counts(line), line.is_exact) == ((9, 0, 5), False)


@given(st.lists(st.lists(st.binary(max_size=300), max_size=4), min_size=30, max_size=60))
@settings(max_examples=examples(4, nightly=100))
def test_of_any_bytes_nothing_else_is_taken_out(answers: list[list[bytes]]):
    found = told(*((STREAM, parts) for parts in answers), takes_out="usage")
    assert [text for _, text in found] == [b"".join(parts) for parts in answers]


HOSTILE = (b"\n", b"a\n", b"data:\n", b'data: {"usage":{}}\n', b'data:"usage":{"usage":{')
"""What a replica could send to keep HAProxy busy; the last one comes in lines of 8 KiB."""


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_hostile_stream_keeps_haproxy_about_as_busy_as_an_engine_s(unit: bytes):
    ordinary = chunk(choices=[{"index": 0, "delta": {"content": "hello"}}], model="m" * 100)
    piece = (unit * 16384)[:8191] + b"\n"
    most = 2 * steps([(ordinary * 100)[:8192]] * 30)
    assert steps([piece] * 30) < most
    assert steps([piece] * 30, "usage") < most


@pytest.mark.parametrize("unit", [b"x", b'"', b"}", b"data:", b"\\"])
def test_a_piece_without_a_line_s_end_is_looked_through_once(unit: bytes):
    """Not from each of its bytes on: at 16 KiB HAProxy's watchdog ended HAProxy."""
    piece = (unit * 2**20)[: 2**20]
    ((_, text),) = told((STREAM, [piece]))
    assert text == piece


def steps(answer: list[bytes], takes_out: str = "-") -> int:
    """Instructions of Lua that an answer takes, in thousands."""
    counting = "local steps = 0\ndebug.sethook(function() steps = steps + 1 end, '', 1000)\n"
    asked = f"{STREAM} 1 {takes_out} {' '.join(piece.hex() for piece in answer)}"
    ran = subprocess.run(
        ("lua5.3", "-e", f"{counting}{program()}\nprint(steps)"),
        input=asked,
        text=True,
        capture_output=True,
        check=True,
    )
    return int(ran.stdout.splitlines()[-1])
