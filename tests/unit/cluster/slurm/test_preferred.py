"""Tests when a preferred reader is asked, and when the commands are."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from slicewise.cluster.slurm import preferred
from slicewise.cluster.slurm.preferred import Preferred
from slicewise.cluster.slurm.reader_error import UNFIT_REST_S, ReaderError


class Scripted:
    """A reader with a script of what becomes of its questions, beside commands that answer 0.

    Attributes:
        script: an exception to raise, or an answer, one a question.
        log: what became known outside, in order.
        now_s: what the clock shows.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *script: BaseException | int) -> None:
        self.script = list(script)
        self.log: list[object] = []
        self.now_s = 100.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr(preferred, "time", clock)
        self._preferred = Preferred("it_failed", self._warn, self._give_up)

    async def ask(self) -> int:
        return await self._preferred.ask(self._read, self._by_commands, request="jobs")

    async def _read(self) -> int:
        found = self.script.pop(0)
        self.log.append("asked")
        await asyncio.sleep(0)
        if isinstance(found, BaseException):
            raise found
        return found

    async def _by_commands(self) -> int:
        return 0

    async def _give_up(self) -> Mapping[str, object]:
        self.log.append("given up")
        return {"status": -9}

    def _warn(self, event: str, /, **fields: object) -> None:
        self.log.append((event, {name: str(value) for name, value in fields.items()}))


@pytest.mark.parametrize("rest_s", [5.0, UNFIT_REST_S])
async def test_after_a_failure_the_commands_answer_as_long_as_it_says(
    monkeypatch: pytest.MonkeyPatch, rest_s: float
) -> None:
    one = Scripted(monkeypatch, 1, ReaderError("it is gone", rest_s), 2)
    assert [await one.ask() for _ in range(3)] == [1, 0, 0]
    told = {"request": "jobs", "why": "it is gone", "status": "-9", "retry_s": str(rest_s)}
    assert one.log == ["asked", "asked", "given up", ("it_failed", told)]
    one.now_s += rest_s - 0.1
    assert await one.ask() == 0
    one.now_s += 0.1
    assert await one.ask() == 2


@pytest.mark.parametrize("error", [asyncio.CancelledError(), RuntimeError("a mistake")])
async def test_any_other_end_is_given_up_too_and_is_passed_on_without_a_rest(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    one = Scripted(monkeypatch, error, 2)
    with pytest.raises(type(error)):
        await one.ask()
    assert one.log == ["asked", "given up"]
    assert await one.ask() == 2


async def test_one_question_at_a_time_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two at once the second one met the reader that the first one had to give up."""
    one = Scripted(monkeypatch, ReaderError("it is gone"), 2)
    assert await asyncio.gather(one.ask(), one.ask()) == [0, 0]
    assert one.log[:2] == ["asked", "given up"]
    assert one.script == [2]
