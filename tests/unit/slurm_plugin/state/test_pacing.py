"""Tests that the wait for the next look ends when something happens."""

import asyncio
import time
from collections.abc import Callable

import pytest
from builders.service_views import a_report

from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.slurm.asked import RequestCount
from slicewise.cluster.rpc.messages import ServiceReportRequest
from slicewise.slurm_plugin.rules.services.pace import Pace
from slicewise.slurm_plugin.state.pacing import Pacing
from slicewise.slurm_plugin.state.reports import ServiceReports

pytestmark = pytest.mark.usefixtures("clock")

SLOW = Pace(moving_s=0.01, waiting_s=15.0, rest_s=15.0, requests_per_min=1200)


def at_rest(pace: Pace = SLOW, asked: RequestCount | None = None) -> Pacing:
    """After a look that found nothing under way."""
    pacing = Pacing(pace, asked or RequestCount())
    pacing.begin()
    pacing.end(0.0, moves=False, waits=False)
    return pacing


@pytest.mark.parametrize("happens", [Pacing.stir, lambda pacing: pacing.acted.set()])
async def test_what_happens_ends_the_rest(happens: Callable[[Pacing], None]) -> None:
    pacing = at_rest()
    waiting = asyncio.create_task(pacing.wait())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    happens(pacing)
    async with asyncio.timeout(10):
        await waiting


async def test_while_something_moves_the_pause_is_short() -> None:
    pacing = at_rest()
    pacing.begin()
    pacing.end(0.0, moves=True, waits=False)
    async with asyncio.timeout(10):
        await pacing.wait()


async def test_a_look_after_a_change_reads_all_again_and_the_next_does_not() -> None:
    pacing = at_rest()
    assert pacing.begin()
    pacing.end(0.0, moves=False, waits=False)
    pacing.acted.set()
    assert not pacing.begin()
    assert not pacing.acted.is_set()
    pacing.end(0.0, moves=True, waits=False)
    assert not pacing.begin()


def test_a_look_after_a_submission_reads_all_again() -> None:
    """It may have been refused for a GPU that an operator has just added."""
    pacing = at_rest()
    pacing.stir()
    assert not pacing.begin()
    pacing.end(0.0, moves=False, waits=False)
    assert pacing.begin()


def test_a_look_after_one_that_failed_reads_all_again() -> None:
    pacing = at_rest()
    pacing.acted.set()
    pacing.begin()
    assert not pacing.begin()
    pacing.end(0.0, moves=False, waits=False)
    assert pacing.begin()


async def test_what_is_heard_of_during_a_look_is_looked_at_again() -> None:
    pacing = at_rest()
    pacing.begin()
    pacing.stir()
    pacing.end(0.0, moves=False, waits=False)
    async with asyncio.timeout(10):
        await pacing.wait()


async def test_questions_of_the_whole_process_count() -> None:
    asked = RequestCount()
    pacing = at_rest(asked=asked)
    assert (pacing.has_spent_all, pacing.may_look_now) == (False, True)
    asked.reads["squeue"] = 5000
    assert (pacing.has_spent_all, pacing.may_look_now) == (True, False)
    pacing.acted.set()
    waiting = asyncio.create_task(pacing.wait())
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    waiting.cancel()


async def test_a_slow_look_is_not_repeated_for_a_request() -> None:
    pacing = at_rest()
    pacing.begin()
    await asyncio.sleep(2)
    pacing.end(0.0, moves=False, waits=False)
    assert not pacing.may_look_now


async def slow_look(asked: RequestCount | None = None) -> Pacing:
    """After a look that took two seconds: the next one is due in ten."""
    pacing = at_rest(asked=asked)
    pacing.begin()
    await asyncio.sleep(2)
    pacing.end(2.0, moves=True, waits=True)
    return pacing


async def test_where_looks_are_slow_what_was_changed_is_looked_at_alone_and_at_once() -> None:
    """A replica that ended waited for ten seconds until a look at 20,000 jobs showed it."""
    pacing = await slow_look()
    waiting = asyncio.create_task(pacing.wait())
    await asyncio.sleep(1)
    pacing.change({814})
    began_s = time.monotonic()
    await waiting
    assert time.monotonic() == pytest.approx(began_s, abs=0.001)
    assert pacing.alone() == {814}
    assert not pacing.alone(), "once"
    assert not pacing.acted.is_set()


async def test_where_looks_are_quick_all_jobs_are_looked_at() -> None:
    pacing = at_rest()
    pacing.change({814})
    assert pacing.acted.is_set()
    assert not pacing.alone()


async def test_many_arrays_are_looked_at_with_all_jobs() -> None:
    pacing = await slow_look()
    pacing.change(range(5))
    assert pacing.acted.is_set()


async def test_a_look_at_all_jobs_shows_what_was_changed_before() -> None:
    pacing = await slow_look()
    pacing.change({814})
    pacing.begin()
    pacing.end(0.0, moves=False, waits=False)
    assert not pacing.alone()


async def test_a_look_at_some_waits_where_all_questions_are_spent() -> None:
    asked = RequestCount()
    pacing = await slow_look(asked)
    asked.reads["squeue"] = 5000
    pacing.change({814})
    assert not pacing.alone()
    waiting = asyncio.create_task(pacing.wait())
    done, _ = await asyncio.wait({waiting}, timeout=5)
    assert not done
    waiting.cancel()


@pytest.mark.parametrize(("answered_s", "pause_s"), [(0.1, 2), (1, 5), (5, 10)])
async def test_the_pause_follows_from_what_slurm_took_to_answer(
    answered_s: float, pause_s: float
) -> None:
    """Questions are asked together: none is waited for longer than the look takes."""
    pacing = at_rest()
    pacing.begin()
    await asyncio.sleep(2)
    pacing.end(answered_s, moves=True, waits=False)
    ended_s = time.monotonic()
    await pacing.wait()
    assert time.monotonic() - ended_s == pytest.approx(pause_s, abs=0.001)


def _report(*ready: int) -> ServiceReportRequest:
    where = tuple((814, index) for index in ready)
    one = a_report(name="bert", desired_replicas=2, ready=where)
    return ServiceReportRequest(services=(one,))


def test_a_replica_that_answers_no_longer_makes_a_look_due() -> None:
    """Its job has ended, mostly, and the launcher waits until a look shows that."""
    lost: list[bool] = []
    reports = ServiceReports(ALONE, lambda: lost.append(True))
    for ready, losses in (((0,), 0), ((0, 1), 0), ((0, 1), 0), ((1,), 1), ((1, 2), 1), ((), 2)):
        reports.take(_report(*ready))
        assert len(lost) == losses
