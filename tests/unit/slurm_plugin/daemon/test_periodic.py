import asyncio
import logging
from collections.abc import Callable

import pytest
from log_lines import lines
from stand_ins.scripted import DOWN

from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.daemon.periodic import PeriodicLoops

pytestmark = pytest.mark.usefixtures("clock")


def failing_once(error: Exception) -> Callable[[], asyncio.Future[None]]:
    """A step that fails the first time it is taken."""
    turns = iter((error,))

    async def step() -> None:
        for problem in turns:
            raise problem

    return step  # type: ignore[return-value]


async def taken_twice(error: Exception) -> list[tuple[str, bool]]:
    told: list[tuple[str, bool]] = []
    again = asyncio.Event()

    def on_turn(name: str, took_s: float, failed: bool) -> None:
        told.append((name, failed))
        if len(told) == 2:
            again.set()

    loop = asyncio.create_task(PeriodicLoops(on_turn).repeat("moves", failing_once(error), 0.001))
    async with asyncio.timeout(5):
        await again.wait()
    loop.cancel()
    return told


@pytest.mark.parametrize("error", [DOWN, KeyError("a strange job"), RecursionError()])
async def test_a_turn_that_fails_is_not_the_last(error: Exception) -> None:
    assert await taken_twice(error) == [("moves", True), ("moves", False)]


async def test_what_nobody_expected_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "slicewise.daemon")
    await taken_twice(KeyError("a strange job"))
    assert "moves_failed" in caplog.text
    assert "kind=KeyError at=test_periodic.py:" in caplog.text


async def test_events_of_a_turn_carry_the_loop_and_the_number_of_the_turn() -> None:
    async def step() -> None:
        report("limit_set", sacctmgr="x")
        again.set()

    again = asyncio.Event()
    with lines() as caught:
        await taken_twice(DOWN)
        loop = asyncio.create_task(PeriodicLoops(lambda *_: None).repeat("limits", step, 0.001))
        for _ in range(2):
            async with asyncio.timeout(5):
                await again.wait()
            again.clear()
        loop.cancel()
    told = [(one["event"], one["loop"], one["cycle"]) for one in caught.events()]
    assert told[0] == ("moves_failed", "moves", 1)
    assert told[1:3] == [("limit_set", "limits", 1), ("limit_set", "limits", 2)]


async def test_news_make_the_next_turn_due() -> None:
    news, taken = asyncio.Event(), asyncio.Event()
    turns = 0

    async def step() -> None:
        nonlocal turns
        turns += 1
        taken.set()

    loops = PeriodicLoops(lambda *_: None)
    loop = asyncio.create_task(loops.repeat("limits", step, 3600.0, news=news))
    for _ in range(2):
        async with asyncio.timeout(5):
            await taken.wait()
        taken.clear()
        news.set()
    loop.cancel()
    assert turns == 2
