"""What is told of pools, by launchers that are killed and to daemons that are away."""

from collections.abc import Mapping
from random import Random

import pytest

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.rpc.usage_messages import MOST_RUNS, PoolUsesRequest
from slicewise.launcher.process import pool_watch
from slicewise.launcher.process.pool_watch import PoolWatch
from slicewise.launcher.rules.pools.busy import PoolLook

GPT = "vision/gpt"


class Daemon:
    """Keeps the largest that each launcher says, as the ledger does, unless it is away."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int, int, str], int] = {}
        self.messages = 0
        self.is_away = False
        self.is_lost = False
        """Whether its answers are."""

    async def note(self, request: PoolUsesRequest) -> None:
        if self.is_away:
            raise UnreachableError(Code.DAEMON_DOWN, "away")
        self.messages += 1
        for use in request.uses:
            key = request.seen_by, use.index, use.hour_s, use.service
            self.kept[key] = max(use.used_ms, self.kept.get(key, 0))
        if self.is_lost:
            raise UnreachableError(Code.DAEMON_DOWN, "lost")

    def sums(self) -> Mapping[tuple[int, int], int]:
        """Milliseconds by slot and hour."""
        return {
            (index, hour_s): sum(
                used_ms for (_, *about, _), used_ms in self.kept.items() if about == [index, hour_s]
            )
            for _, index, hour_s, _ in self.kept
        }


def look(at_s: float, *indexes: int) -> PoolLook:
    return PoolLook(at_s, {(7, index, 1000): {GPT: 1.0} for index in indexes})


async def test_the_sum_of_an_hour_is_told_each_time_that_it_grows() -> None:
    daemon = Daemon()
    watch = PoolWatch(daemon.note)
    for at_s in (100, 101, 102):
        watch.turned(look(at_s, 0))
    await watch.report()
    assert daemon.sums() == {(0, 0): 2000}
    await watch.report()
    assert daemon.messages == 1
    watch.turned(look(103, 0))
    await watch.report()
    assert daemon.sums() == {(0, 0): 3000}


@pytest.mark.parametrize("trouble", ["is_away", "is_lost"])
async def test_what_was_not_answered_is_told_again_and_counts_once(trouble: str) -> None:
    daemon = Daemon()
    watch = PoolWatch(daemon.note)
    watch.turned(look(100, 0))
    watch.turned(look(101, 0))
    setattr(daemon, trouble, True)
    with pytest.raises(UnreachableError):
        await watch.report()
    watch.turned(look(102, 0))
    setattr(daemon, trouble, False)
    await watch.report()
    assert daemon.sums() == {(0, 0): 2000}


async def test_many_hours_go_in_several_messages() -> None:
    daemon = Daemon()
    watch = PoolWatch(daemon.note)
    indexes = range(MOST_RUNS + 1)
    watch.turned(look(100, *indexes))
    watch.turned(look(101, *indexes))
    await watch.report()
    assert daemon.messages == 2
    assert daemon.sums() == {(index, 0): 1000 for index in indexes}


async def test_an_hour_is_never_longer_than_it_is() -> None:
    """The clock is set back again and again."""
    daemon = Daemon()
    watch = PoolWatch(daemon.note)
    for _ in range(2):
        for at_s in range(1, 3600, 4):
            watch.turned(look(at_s, 0))
    await watch.report()
    assert daemon.sums() == {(0, 0): 3_600_000}


async def test_of_a_daemon_that_stays_away_old_hours_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_watch, "_MOST", 2)
    daemon = Daemon()
    watch = PoolWatch(daemon.note)
    for hour in range(4):
        for at_s in (100, 101):
            watch.turned(look(3600 * hour + at_s, 0))
    await watch.report()
    assert daemon.sums() == {(0, 7200): 1000, (0, 10800): 1000}


async def test_launchers_that_are_killed_lose_what_they_had_not_told_and_nothing_counts_twice() -> (
    None
):
    random, daemon = Random(20261130), Daemon()  # noqa: S311 -- no secret
    watch, told_s, seen_s, lost_s = PoolWatch(daemon.note), 0, 0, 0
    for second in range(1, 20_000):
        watch.turned(look(second, 0))
        seen_s = second
        daemon.is_away, daemon.is_lost = random.random() < 0.2, random.random() < 0.2
        if second % 10 == 0:
            try:
                await watch.report()
            except UnreachableError:
                pass
            else:
                told_s = second
        if random.random() < 0.003:
            # The next launcher's first look counts for nothing.
            lost_s += second - told_s + 1
            watch, told_s = PoolWatch(daemon.note), second
    found_s = sum(daemon.sums().values()) / 1000
    assert found_s <= seen_s
    assert found_s >= told_s - lost_s - 1
    assert lost_s > 100
