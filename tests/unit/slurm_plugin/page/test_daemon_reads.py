"""Tests what the web server asks the daemon, and how often."""

from collections.abc import Callable

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.key_messages import KeyRevokeRequest
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.overview_messages import OverviewRequest
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.page import daemon_reads
from slicewise.slurm_plugin.page.daemon_reads import DaemonReads

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], list[str]]:
    """Refuse the first questions to the daemon with a code; who asked is collected."""

    def made(refused: int, code: str) -> list[str]:
        users: list[str] = []

        async def ask(client: DaemonClient, _: object) -> DoneAnswer:
            users.append(client._acting_for)
            if len(users) <= refused:
                raise InvalidInputError(code, "No.")
            return DoneAnswer()

        monkeypatch.setattr(DaemonClient, "ask", ask)
        monkeypatch.setattr(daemon_reads, "_AGAIN_S", 0.0)
        return users

    return made


async def test_what_the_daemon_is_too_busy_for_is_asked_again(
    asked: Callable[[int, str], list[str]],
):
    users = asked(3, "SW-BUSY")
    await DaemonReads(DaemonSettings()).ask("alice", OverviewRequest())
    assert users == ["alice"] * 4


async def test_a_change_is_asked_for_once(asked: Callable[[int, str], list[str]]):
    """Each try counts against what visitors may change: they would be kept out for being busy."""
    users = asked(1, "SW-BUSY")
    with pytest.raises(InvalidInputError, match="No"):
        await DaemonReads(DaemonSettings()).change("alice", KeyRevokeRequest(key_id="a" * 12))
    assert users == ["alice"]


async def test_a_busy_daemon_is_asked_again_soon_and_then_less_often(
    asked: Callable[[int, str], list[str]], monkeypatch: pytest.MonkeyPatch
):
    waits_s: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits_s.append(wait_s)

    asked(6, "SW-BUSY")
    monkeypatch.setattr(daemon_reads, "_AGAIN_S", 0.01)
    monkeypatch.setattr(daemon_reads.asyncio, "sleep", sleep)
    await DaemonReads(DaemonSettings()).ask("alice", OverviewRequest())
    assert waits_s == [0.01, 0.02, 0.04, 0.08, 0.1, 0.1]


async def test_a_daemon_that_stays_busy_is_given_up(
    asked: Callable[[int, str], list[str]], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(daemon_reads, "_PATIENCE_S", 0.05)
    users = asked(10_000_000, "SW-BUSY")
    with pytest.raises(InvalidInputError, match="No"):
        await DaemonReads(DaemonSettings()).ask("alice", OverviewRequest())
    assert len(users) > 1


async def test_any_other_refusal_is_final(asked: Callable[[int, str], list[str]]):
    users = asked(1, "SW-FORBIDDEN")
    with pytest.raises(InvalidInputError):
        await DaemonReads(DaemonSettings()).ask("alice", OverviewRequest())
    assert users == ["alice"]
