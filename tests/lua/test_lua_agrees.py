"""Property: slicewise.lua and the daemon read the same in what users write."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import whitespace

import pytest
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from waiting import PATIENCE_S

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gres import parse_gpu_requests, shared_gpus
from slicewise.cluster.language.service import directives_of_script, head_lines, is_service

ROOT = Path(__file__).resolve().parents[2]
SUBMIT_EACH = ROOT / "tests" / "lua" / "submit_each.lua"
MODULE = ROOT / "slurm_plugin" / "lua" / "slicewise.lua"
HEAD = 65_536

Read = Mapping[str, str] | str


class Lua:
    """slicewise.lua under real Lua."""

    def __init__(self, field: str) -> None:
        self._process = subprocess.Popen(
            ["lua5.1", str(SUBMIT_EACH), str(MODULE), field],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def submit(self, value: bytes) -> tuple[str, list[str]]:
        """What it makes of a job without an answer; the directives that the daemon would see."""
        self._stdin.write(value.hex().encode() + b"\n")
        self._stdin.flush()
        became, question = self._stdout.readline().decode("utf-8", "replace").split(" ", 1)
        lines = json.loads(question).get("directives", []) if question.strip() else []
        return became, lines

    def close(self) -> None:
        self._stdin.close()
        self._process.wait(timeout=PATIENCE_S)
        self._stdout.close()


@pytest.fixture(scope="module", params=["script"])
def lua(request: pytest.FixtureRequest) -> Iterator[Lua]:
    running = Lua(request.param)
    yield running
    running.close()


def read(lines: list[str]) -> Read:
    try:
        return directives_of_script(lines)
    except InvalidInputError as error:
        return error.refusal.code


BLANKS = st.sampled_from([" ", "\t", "\v", "\f", "\r", "\x1c", "\x85", "\xa0", "\u2003", "\u2028"])
PIECES = st.sampled_from(
    [
        "#",
        "#SLICEWISE",
        "#SLICEWISE ",
        "name=",
        "name=x",
        "tenant=y",
        "\n",
        "\n",
        "\n#",
        "true",
        "é",
    ]
)
LINES = st.builds(
    lambda before, key, value, after: f"{before}#SLICEWISE {key}={value}{after}\n",
    st.text(BLANKS, max_size=2),
    st.sampled_from(["name", "tenant", "Name", ""]),
    st.text("ab\t é\x00", max_size=4),
    st.text(BLANKS, max_size=2),
)
SCRIPTS = st.lists(LINES | PIECES | BLANKS | st.text(max_size=3), max_size=80).map("".join)
NAME = "#SLICEWISE name=x\n"


@given(SCRIPTS)
@settings(max_examples=examples(100, nightly=6000), deadline=None)
@example(NAME * 64 + "#SLICEWISE name=late\n")
@example(NAME * 65 + "#SLICEWISE bad\n")
@example("#".ljust(HEAD - 8, "#") + "\n" + NAME)
@example("#SLICEWISE name=".ljust(2048, "x") + "\n")
@example("#SLICEWISE name=".ljust(2049, "x") + "\n")
@example("#SLICEWISE name=".ljust(2047, "x") + "é\n")
@example(NAME + "#" + "é" * (HEAD // 2 - 20) + "\n" + NAME * 3)
@example("# " * (HEAD // 2 - 8) + "\n#SLICEWISE name=abcdef\n")
def test_they_read_the_same_of_a_script(lua: Lua, script: str) -> None:
    text = script.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    assert read(lua.submit(text.encode())[1]) == read(list(head_lines(text)))


@given(st.binary(max_size=300), SCRIPTS)
@settings(deadline=None)
def test_they_read_the_same_of_text_that_is_no_text(lua: Lua, junk: bytes, script: str) -> None:
    raw = b"#" + junk + b"\n" + script.encode("utf-8", "replace")
    assert read(lua.submit(raw)[1]) == read(list(head_lines(raw.decode("utf-8", "replace"))))


def is_limited_by_slurm(gres: str) -> bool:
    """Each GPU has a type of its own; none is shared, or can't be read."""
    try:
        return not shared_gpus(gres) and not any(gpu.is_open for gpu in parse_gpu_requests(gres))
    except InvalidInputError:
        return False


def asks_for_none(gres: str) -> bool:
    """It names GPUs and the number of each is 0."""
    parts = [part.strip(whitespace) for part in gres.split(",")]
    named = [part for part in parts if shared_gpus(part) or not is_without_gpus(part)]
    return bool(named) and all(re.fullmatch(r".*[:=]0+", part) for part in named)


def is_without_gpus(part: str) -> bool:
    try:
        return not parse_gpu_requests(part)
    except InvalidInputError:
        return False


GRES_PIECES = st.sampled_from(
    [
        *" \t\x1c:=,+-_.01kGé\u0661\xa0",
        "gpu",
        "gres:",
        "gres/",
        "gpu:1",
        "gpu:a:",
        "gpu:auto",
        "gpumem",
        "shard",
        "mps",
        "auto",
        "1g.10gb",
        "a100",
        ":1",
        "=2",
        "123456789",
    ]
)


@pytest.mark.parametrize("lua", ["gres"], indirect=True)
@given(st.lists(GRES_PIECES, max_size=8).map("".join))
@settings(max_examples=examples(200, nightly=10_000), deadline=None)
@example("gpu:a100:12345678")
@example("gpu:a100:123456789")
@example("gpu:1k")
@example("gpu:1k:1")
@example("gpu:auto")
@example("gpu:auto=2")
@example("gres/shard:2")
@example("gres/gpu:a100:1,mps")
@example("gpu:a:0")
@example("gpu:a:0,gpu:a100:1")
@example("shard:0")
def test_they_call_the_same_gpus_typed(lua: Lua, gres: str) -> None:
    read = "pass" if is_limited_by_slurm(gres) else "held"
    assert lua.submit(gres.encode())[0] == ("refused" if asks_for_none(gres) else read)


@given(SCRIPTS)
@settings(max_examples=examples(100, nightly=6000), deadline=None)
@example("#SLICEWISE name=x")
@example("#SLICEWISE\tname=")
@example("#SLICEWISE  need=1GiB\n#SLICEWISE name")
def test_they_call_the_same_a_service(lua: Lua, script: str) -> None:
    became, lines = lua.submit(script.encode("utf-8", "replace"))
    assert (became == "refused") == is_service(lines)
