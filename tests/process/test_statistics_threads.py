"""Tests the sum of a service's statistics: which replicas are asked, when, and what is kept."""

import asyncio
import json
import threading

import pytest
from stand_ins.statistics_world import KEY, World

from slicewise.launcher.probing.engine_failures import ENGINE_FAILURES
from slicewise.launcher.process import statistics
from slicewise.launcher.rules.engines import triton_statistics
from slicewise.launcher.rules.engines.statistics import Counts, StatisticsAnswer
from slicewise.launcher.rules.engines.triton import Triton


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_APART_S", 0.0)


@pytest.fixture(autouse=True)
def _no_engine_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINE_FAILURES, "_said", set())


async def test_an_answer_is_written_once_and_in_no_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads, written = [], triton_statistics.by_http

    def by_http(path: str, counts: Counts) -> StatisticsAnswer:
        threads.append(threading.current_thread())
        return written(path, counts)

    monkeypatch.setattr(Triton, "statistics_by_http", staticmethod(by_http))
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    path = triton_statistics.ALL
    asked = (world.statistics.answer("t/a", path, None) for _ in range(5))
    answers = await asyncio.gather(*asked)
    assert [one is not None and one.status for one in answers] == [200] * 5
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    world.said = {1: {KEY: 6}}
    found = await world.statistics.answer("t/a", path, None)
    assert found is not None
    assert json.loads(found.body)["model_stats"][0]["inference_count"] == 6
    # However many different ones clients ask for, few are kept, also while nothing is counted.
    for number in range(5):
        await world.statistics.answer("t/a", f"/v2/models/{number}/stats", None)
    assert len(world.statistics._services["t/a"].derived.answers) == 1
    called = await world.statistics.answer("t/a", "/", b"")
    assert called is not None
    assert called.body[:1] == b"\0"
