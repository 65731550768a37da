"""Tests that one of two launchers acts, and that one alone acts unless another has the lock."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from builders.replica_keys import gateway_directory
from stand_ins.led_launcher import Switch, World

from slicewise.launcher.gateway.files import STATISTICS
from slicewise.launcher.gateway.identity import KEY
from slicewise.launcher.probing.prober import Prober, Replica, probe
from slicewise.launcher.process.loop import Launcher
from slicewise.launcher.process.statistics import ServiceStatistics
from slicewise.launcher.process.statistics_socket import StatisticsSocket


def nobody(news: asyncio.Event) -> Prober:
    """No replica to ask."""
    return Prober(news, partial(probe, Path("/nowhere")))


async def test_who_leads_answers_questions_of_statistics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / KEY).symlink_to(gateway_directory() / KEY)

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(str(tmp_path / STATISTICS))
        except OSError:
            return False
        writer.close()
        return True

    async def serve(*leaders: Switch) -> bool:
        for launcher in leaders:
            await launchers[launcher].serve_statistics()
        return await listens()

    one, two = Switch(), Switch()
    launchers = {
        leader: Launcher(
            World(),  # type: ignore[arg-type]
            World(),  # type: ignore[arg-type]
            replicas=nobody,
            leader=leader,
            statistics=StatisticsSocket(tmp_path, ServiceStatistics(nothing)),
        )
        for leader in (one, two)
    }
    assert not await serve(one, two)
    one.led = True
    assert await serve(one, two)
    one.led, two.led = False, True
    # The one that has led learns late that it leads no more, and leaves the other one its socket.
    assert await serve(two, one)
    assert (tmp_path / "statistics.json").read_text() == "{}"
    two.led = False
    assert not await serve(two)
    (tmp_path / KEY).unlink()
    one.led = True
    assert not await serve(one, one)
    assert [line.split()[0] for line in caplog.messages] == ["statistics_not_served"]


async def nothing(_: Replica) -> None:
    """A replica that does not answer."""
