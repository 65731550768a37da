"""Tests the sum of a service's statistics: which replicas are asked, when, and what is kept."""

import asyncio
import json
import time
from functools import partial
from itertools import count

import pytest
from stand_ins.statistics_world import KEY, World, counts

from slicewise.launcher.probing.engine_failures import ENGINE_FAILURES
from slicewise.launcher.process import counted_service, saved_statistics, statistics, tenant_share
from slicewise.launcher.rules.engines.statistics import MOST_KEYS, Counts

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_APART_S", 0.0)


@pytest.fixture(autouse=True)
def _no_engine_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINE_FAILURES, "_said", set())


async def test_replicas_are_added_up_and_those_that_ended_still_count():
    world = World()
    world.said = {1: {KEY: 5}, 2: {KEY: 7}}
    world.turned(1, 2)
    assert await world.count() == 12
    world.turned(2)
    assert await world.count() == 12
    world.said[2] = {KEY: 8}
    assert await world.count() == 13
    world.turned()
    assert await world.count() == 13


async def test_services_that_share_replicas_count_their_own_models_on_all_of_them():
    world, other = World(), ("n", "1", "inference_count")
    world.turned_to({"t/a": (1,), "t/b": (2,)}, pool := {"t/a": "m", "t/b": "n"})
    world.said = {1: {KEY: 5, other: 1}, 2: {other: 7}}
    assert await counts(world.statistics, "t/a") == {KEY: 5}
    assert await counts(world.statistics, "t/b") == {other: 8}
    # The first replica has unloaded the second model, and loaded it again: it counts from 0.
    world.said[1] = {KEY: 6}
    assert await counts(world.statistics, "t/b") == {other: 8}
    world.said[1] = {KEY: 6, other: 0}
    assert await counts(world.statistics, "t/b") == {other: 8}
    world.said[1] = {KEY: 6, other: 2}
    assert await counts(world.statistics, "t/b") == {other: 10}
    world.turned_to({"t/a": (1,), "t/b": ()}, pool)
    assert await counts(world.statistics, "t/b") == {other: 10}


async def test_a_replica_that_is_silent_counts_with_what_it_said_last():
    world = World()
    world.said = {1: {KEY: 5}, 2: {KEY: 7}}
    world.turned(1, 2)
    assert await world.count() == 12
    world.said = {1: None, 2: {KEY: 8}}
    assert await world.count() == 13


async def test_a_service_that_is_unknown_or_of_which_none_has_said_anything_has_no_counts():
    world = World()
    assert await world.count() is None
    world.turned()
    assert await world.count() is None
    world.said = {1: None}
    world.turned(1)
    assert await world.count() is None


async def test_questions_that_come_together_share_the_next_look():
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    world.goes_on.clear()
    first = asyncio.create_task(world.count())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # What is counted now, the first look may have missed: those who ask now wait for another one.
    later = [asyncio.create_task(world.count()) for _ in range(5)]
    await asyncio.sleep(0)
    world.said = {1: {KEY: 6}}
    world.goes_on.set()
    await asyncio.gather(first, *later)
    assert [one.result() for one in later] == [6] * 5
    assert len(world.asked) == 2


async def test_only_services_that_clients_ask_about_are_looked_at():
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1, services=("t/a", "t/b"))
    await world.statistics.look_on()
    assert world.asked == []
    assert await world.count() == 5
    world.said = {1: {KEY: 6}}
    await world.statistics.look_on()
    assert world.asked == [1, 1]
    world.turned()
    assert await world.count() == 6


async def test_what_no_client_has_asked_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    assert await world.count() == 5
    monkeypatch.setattr(statistics, "_ASKED_S", -1.0)
    await world.statistics.look_on()
    assert world.asked == [1]
    monkeypatch.setattr(statistics, "_KEPT_S", -1.0)
    await world.statistics.look_on()
    world.turned()
    assert await world.count() is None


async def test_a_deleted_service_leaves_nothing():
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    assert await world.count() == 5
    saved = (await world.statistics.saved()).text
    world.turned(services=())
    world.turned()
    assert await world.count() is None
    # Nor does what was saved of it before: the next service of its name has counts of its own.
    for first in ((), ("t/a",)):
        next_one = World()
        next_one.statistics.restore(saved)
        next_one.turned(services=first)
        next_one.turned(services=())
        assert (await next_one.statistics.saved()).text == "{}"
        next_one.turned()
        assert await next_one.count() is None


async def test_what_was_saved_is_kept_until_a_turn_has_found_its_service():
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    assert await world.count() == 5
    saved = (await world.statistics.saved()).text
    next_one = World()
    next_one.statistics.restore(saved)
    assert (await next_one.statistics.saved()).text == saved


async def test_the_launcher_that_leads_next_goes_on_with_the_counts():
    """Also with those of a replica that has ended meanwhile; none is added twice."""
    world, next_one = World(), World()
    world.said = {1: {KEY: 5}, 2: {KEY: 7}, 3: {KEY: 1}}
    world.turned(1, 2, 3, services=("t/a", "t/b"))
    assert await world.count() == 13
    world.turned(2, 3, services=("t/a", "t/b"))
    saved = (await world.statistics.saved()).text
    assert "t/b" not in saved
    next_one.statistics.restore(saved)
    next_one.said = {3: {KEY: 4}}
    next_one.turned()
    assert await next_one.count() == 13
    next_one.turned(3)
    assert await next_one.count() == 16
    # What it saves is no longer what it was told to go on with.
    runs = json.loads((await next_one.statistics.saved()).text)["t/a"]["runs"]
    assert {run[1]: counts for run, counts in runs}[3] == [[list(KEY), 4]]
    other = World()
    other.statistics.restore("{")
    other.turned()
    assert await other.count() is None


async def test_runs_that_ended_long_ago_are_known_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(counted_service, "_MOST_ENDED", 2)
    world = World()
    for port in range(1, 9):
        world.said = {port: {KEY: port}}
        world.turned(port)
        assert await world.count() == sum(range(port + 1))
    assert len(json.loads((await world.statistics.saved()).text)["t/a"]["runs"]) == 3
    world.turned(7)
    world.said = {7: {KEY: 10}}
    assert await world.count() == sum(range(9)) + 3


def sizes(look: int, number: int = 5_000) -> Counts:
    """What a replica says that has other batch sizes at each look."""
    first = look * number
    batches = range(first, first + number)
    return {("m", "1", "batch_stats", str(one), "compute_infer", "count"): 1 for one in batches}


async def test_what_a_service_counts_stays_bounded_whatever_its_replicas_say(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(tenant_share, "_REST", 0.0)
    world = World()
    for look in range(8):
        port = 1 + look // 2
        world.said = {port: sizes(look)}
        world.turned(port)
        assert len(await counts(world.statistics, "t/a") or ()) == MOST_KEYS
        known = world.statistics._services["t/a"]
        assert max(map(len, known.counts.values())) == MOST_KEYS
    # Those that have ended are few, too.
    monkeypatch.setattr(counted_service, "_MOST_ENDED_KEYS", 2 * MOST_KEYS)
    world.turned()
    assert (len(known.counts), len(known.ended)) == (2, MOST_KEYS)


async def test_too_much_that_was_saved_does_not_come_again():
    pairs = [*map(list, sizes(0, 20_000).items())]
    saved = {"t/a": {"ended": pairs, "runs": [[[7, 1, 1], pairs]]}}
    world = World()
    world.statistics.restore(json.dumps(saved))
    world.turned()
    known = world.statistics._services["t/a"]
    assert [len(known.ended), *map(len, known.counts.values())] == [MOST_KEYS, MOST_KEYS]


async def test_a_tenant_s_looks_leave_ten_times_the_cpu_that_they_took(
    monkeypatch: pytest.MonkeyPatch,
):
    """Here each measurement of the CPU's time is a second later."""
    now_s, paused_s, sleep = count(0.0), list[float](), asyncio.sleep

    async def pause(seconds: float) -> None:
        paused_s.append(seconds)
        await sleep(0)

    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1, services=("t/a", "t/b", "u/a"))
    monkeypatch.setattr(time, "thread_time", lambda: next(now_s))
    monkeypatch.setattr(asyncio, "sleep", pause)
    assert await world.count() == 5
    # Of the replica's answer, of what it changes, and of the sum.
    (took_s,) = {3.0}
    for key in ("t/a", "t/b"):
        await counts(world.statistics, key)
        assert paused_s[-1] == pytest.approx(10 * took_s, abs=1)
        took_s += 3 if key == "t/b" else 2
    await counts(world.statistics, "u/a")
    assert paused_s[-1] == 0


async def test_a_tenant_s_silent_replicas_delay_no_other_tenant_s_statistics():
    world = World()
    silent = {f"t/{number}": (1,) for number in range(6)}
    world.said = {1: {KEY: 1}, 2: {KEY: 7}}
    world.turned_to({**silent, "u/a": (2,)})
    await asyncio.gather(*map(partial(counts, world.statistics), [*silent, "u/a"]))
    world.asked.clear()
    world.hung = {1: asyncio.Event()}
    around = asyncio.create_task(world.statistics.look_on())
    async with asyncio.timeout(60):
        assert await counts(world.statistics, "u/a") == {KEY: 7}
        # The next round looks at those of which none hangs, and does not wait either.
        await world.statistics.look_on()
    assert world.asked.count(2) >= 2
    assert world.asked.count(1) == 2
    assert not around.done()
    world.hung[1].set()
    await around
    assert world.asked.count(1) == len(silent)


async def test_silent_replicas_take_a_bounded_number_of_open_files():
    world = World()
    ports = {f"t{number}/a": range(100 * number, 100 * number + 40) for number in range(10)}
    world.hung = dict.fromkeys((one for of in ports.values() for one in of), asyncio.Event())
    world.said = dict.fromkeys(world.hung)
    world.turned_to({service: tuple(of) for service, of in ports.items()})
    looks = [asyncio.create_task(counts(world.statistics, service)) for service in ports]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(world.asked) == 256
    assert sum(one in ports["t0/a"] for one in world.asked) == 32
    world.hung[0].set()
    await asyncio.gather(*looks)
    assert len(world.asked) == 400


async def test_of_a_service_a_bounded_part_is_saved_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(tenant_share, "_REST", 0.0)
    world = World()
    long = {("m" * 1000, str(one), "inference_count"): 1 for one in range(1_500)}
    world.said = {1: long, 2: {KEY: 7}, 3: {KEY: 8}}
    world.turned_to({"t/a": (1, 2), "t/b": (2,), "u/a": (3,)})
    for key in ("t/a", "t/b", "u/a"):
        await counts(world.statistics, key)
    saved = await world.statistics.saved()
    assert saved.left_out == ("t/a",)
    assert [len(one["runs"]) for one in json.loads(saved.text).values()] == [1, 1, 1]
    # Too much in all: the tenant that has least comes first.
    monkeypatch.setattr(saved_statistics, "_MOST_SAVED_IN_ALL_BYTES", 150)
    saved = await world.statistics.saved()
    assert "u/a" in json.loads(saved.text)
    assert "t/b" in saved.left_out
    assert "u/a" not in saved.left_out


async def test_an_engine_that_raises_costs_only_its_own_services(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    world = World()
    world.said = {1: {("short",): 5}, 2: {KEY: 7}}
    world.turned_to({"t/a": (1,), "t/b": (2,)})
    for _ in range(2):
        # Triton's keys have more words: its kind raises IndexError at this one.
        await counts(world.statistics, "t/a")
        assert await counts(world.statistics, "t/a") is None
    assert await counts(world.statistics, "t/b") == {KEY: 7}
    await world.statistics.look_on()
    world.turned_to({"t/a": (), "t/b": (2,)})
    world.turned_to({"t/a": (), "t/b": ()})
    assert await counts(world.statistics, "t/b") == {KEY: 7}
    assert [line.split()[0] for line in caplog.messages] == ["engine_failed"]
    assert "IndexError" in caplog.messages[0]
