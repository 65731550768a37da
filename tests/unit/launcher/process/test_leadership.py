"""Tests that one of two launchers acts, and that one alone acts unless another has the lock."""

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders.replica_keys import gateway_directory
from pydantic import TypeAdapter
from stand_ins.led_launcher import DOWN, Switch, World
from stand_ins.scripted import ETC

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.runtime.leadership import led_only
from slicewise.cluster.settings.file import LauncherSettings
from slicewise.cluster.settings.read import launcher_database_url, load_settings
from slicewise.launcher.gateway.identity import KEY
from slicewise.launcher.probing.prober import Prober, Replica, probe
from slicewise.launcher.process import loop
from slicewise.launcher.process.leadership import Leadership, own_store
from slicewise.launcher.process.loop import Launcher
from slicewise.launcher.process.saved_state import SavedRows, SavedState
from slicewise.launcher.process.saved_statistics import SavedStatistics
from slicewise.launcher.process.statistics import ServiceStatistics
from slicewise.launcher.process.statistics_socket import StatisticsSocket
from slicewise.launcher.rules.autoscale.capacity import Level, ReplicaCapacity
from slicewise.launcher.rules.autoscale.curve import Curve
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.turn.curves import KeptCurve
from slicewise.launcher.rules.turn.state import ServiceState

pytestmark = pytest.mark.usefixtures("clock")


def nobody(news: asyncio.Event) -> Prober:
    """No replica to ask."""
    return Prober(news, partial(probe, Path("/nowhere")))


class Lock:
    """The test sets its holder: "me", another host, or "down"."""

    def __init__(self, by: str) -> None:
        self.by = by

    def hold(self) -> bool:
        if self.by == "down":
            raise DOWN
        return self.by == "me"

    def holder(self) -> str:
        return "" if self.by == "me" else self.by


def test_alone_it_leads_unless_another_has_the_lock() -> None:
    lock = Lock("down")
    leader = Leadership(lock, pair=False)
    leader.turn()
    assert leader.leads()
    lock.by = "gw2"
    leader.turn()
    assert not leader.leads()
    with pytest.raises(UnreachableError, match=r"gw2 does.*SW-LOCK"):
        leader.require()
    # It does not lead again only because PostgreSQL went away.
    lock.by = "down"
    leader.turn()
    assert not leader.leads()
    lock.by = "me"
    leader.turn()
    assert leader.leads()


def test_of_a_pair_none_leads_without_the_lock() -> None:
    lock = Lock("down")
    leader = Leadership(lock, pair=True)
    leader.turn()
    assert not leader.leads()
    lock.by = "me"
    leader.turn()
    # Whoever had it before has stopped by the time that it leads.
    assert not leader.leads()


def test_a_pair_needs_a_database(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("SLICEWISE_LAUNCHER_DATABASE_URL", raising=False)
    settings = load_settings(ETC)
    assert own_store(settings) is None
    pair = settings.model_copy(update={"launcher": LauncherSettings(pair=True)})
    with pytest.raises(InvalidInputError, match="SW-SETTINGS"):
        own_store(pair)
    file = tmp_path / "url"
    file.write_text("postgresql:///a\n")
    assert launcher_database_url(LauncherSettings(url_file=file)) == "postgresql:///a"
    with pytest.raises(InvalidInputError, match=r"launcher\.url_file.*none: No such file"):
        launcher_database_url(LauncherSettings(url_file=tmp_path / "none"))
    monkeypatch.setenv("SLICEWISE_LAUNCHER_DATABASE_URL", "postgresql:///b")
    assert launcher_database_url(LauncherSettings(url_file=file)) == "postgresql:///b"
    assert own_store(pair) is not None


class Kept(SavedState):
    def __init__(self, **known: ServiceState) -> None:
        super().__init__(None)
        self.known: Mapping[str, ServiceState] = known
        self.loads = 0

    async def load(self) -> Mapping[str, ServiceState]:
        self.loads += 1
        return self.known

    async def save(self, state: Mapping[str, ServiceState]) -> None:
        self.known = state


class Late(Kept):
    """Can be read from the second time on."""

    @property
    def is_loaded(self) -> bool:
        return self.loads > 1

    async def load(self) -> Mapping[str, ServiceState]:
        found = await super().load()
        return found if self.is_loaded else {}


async def test_on_standby_it_asks_nobody_and_saves_nothing() -> None:
    world, leader, kept = World(), Switch(), Kept(a=ServiceState())
    launcher = Launcher(world, world, replicas=nobody, leader=leader, saved=kept)  # type: ignore[arg-type]
    await launcher.turn()
    await launcher.save()
    await launcher.tell_keys()
    assert (world.asked, kept.loads) == ([], 0)


async def test_each_time_that_it_comes_to_lead_it_begins_with_what_was_saved() -> None:
    world, leader, kept = World(), Switch(), Kept(a=ServiceState())
    launcher = Launcher(world, world, replicas=nobody, leader=leader, saved=kept)  # type: ignore[arg-type]
    for led in (True, True, False, True):
        leader.led = led
        await launcher.turn()
    assert kept.loads == 2
    assert world.asked == ["view"] * 3
    kept.known = {}
    await launcher.save()
    assert list(kept.known) == ["a"]


async def test_what_the_last_one_saved_may_be_read_late_and_is_never_lost() -> None:
    world, kept = World(), Late(a=ServiceState())
    launcher = Launcher(world, world, replicas=nobody, saved=kept)  # type: ignore[arg-type]
    await launcher.turn()
    # Read now; no turn has taken it over until the next one.
    for _ in range(2):
        await launcher.save()
        assert list(kept.known) == ["a"]
    await launcher.turn()
    kept.known = {}
    await launcher.save()
    assert list(kept.known) == ["a"]


class Curves(SavedRows[KeptCurve]):
    """Curves that can't be read at first."""

    def __init__(self, known: Mapping[str, KeptCurve]) -> None:
        super().__init__(None, TypeAdapter(KeptCurve))
        self.known, self.loads = known, 0

    @property
    def is_loaded(self) -> bool:
        return self.loads > 1

    async def load(self) -> Mapping[str, KeptCurve]:
        self.loads += 1
        return self.known if self.is_loaded else {}

    async def save(self, state: Mapping[str, KeptCurve]) -> None:
        self.known = state


async def test_curves_that_are_read_late_are_joined_with_what_is_learnt_meanwhile() -> None:
    learnt = Memory(capacity=ReplicaCapacity(levels={0: Level(9.0, 9.0, 9.0, 1)}))
    kept = Kept(**{"a/b": ServiceState(learnt, replicas="a/new:1")})
    curves = Curves({"a/old": KeptCurve(Curve(), "a/c", 1.0)})
    world = World()
    launcher = Launcher(
        *(world, world),
        replicas=nobody,
        saved=kept,
        saved_curves=curves,  # type: ignore[arg-type]
    )
    for _ in range(2):
        await launcher.turn()
        await launcher.save()
    assert curves.known.keys() == {"a/old", "a/new"}
    assert curves.known["a/new"].service == "a/b"


async def test_whoever_lost_the_lead_in_the_midst_of_a_turn_changes_nothing() -> None:
    world, leader = World(), Switch()
    led = led_only(world, leader, frozenset({"apply", "set_desired_slots"}))
    with pytest.raises(UnreachableError, match="SW-LOCK"):
        await led.apply(())
    with pytest.raises(UnreachableError, match="DATABASE"):
        await led.observe()
    assert world.asked == ["observe"]


async def test_the_gateway_is_told_of_keys_and_trouble_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "slicewise.launcher")
    world = World()
    launcher = Launcher(world, world, replicas=nobody)  # type: ignore[arg-type]
    await launcher.turn()
    caplog.clear()
    await launcher.tell_keys()
    await launcher.tell_keys()
    assert world.asked == ["view", "grants", "grants"]
    assert [one.split()[0] for one in caplog.messages] == ["keys_not_set"]


async def test_the_daemon_is_told_when_keys_were_used(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "slicewise.launcher")
    world, leader = World(), Switch()
    told: list[Mapping[str, float]] = []
    launcher = Launcher(world, world, replicas=nobody, leader=leader)  # type: ignore[arg-type]
    await launcher.tell_key_uses()
    assert world.asked == []
    leader.led = True
    caplog.clear()
    for _ in range(2):
        await launcher.tell_key_uses()
    assert world.asked == ["key_ages", "key_ages"]
    assert [one.split()[0] for one in caplog.messages] == ["key_uses_not_told"]

    async def key_ages() -> Mapping[str, float]:
        return {"a" * 64: 5.0}

    async def note_uses(used_s: Mapping[str, float]) -> None:
        told.append(used_s)

    monkeypatch.setattr(world, "key_ages", key_ages, raising=False)
    monkeypatch.setattr(world, "note_uses", note_uses, raising=False)
    now_s = time.time()
    await launcher.tell_key_uses()
    ((digest, used_s),) = told[0].items()
    assert digest == "a" * 64
    assert -5 <= used_s - now_s < 60


async def test_statistics_go_on_while_replicas_are_silent_and_what_is_not_saved_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / KEY).symlink_to(gateway_directory() / KEY)
    silent, rounds, left_out = asyncio.Event(), list[None](), ("t/a", "t/b")

    class Slow(ServiceStatistics):
        async def look_on(self) -> None:
            rounds.append(None)
            await silent.wait()

        async def saved(self) -> SavedStatistics:
            return SavedStatistics('{"t/c":1}', left_out)

    launcher = Launcher(
        World(),  # type: ignore[arg-type]
        World(),  # type: ignore[arg-type]
        replicas=nobody,
        statistics=(served := StatisticsSocket(tmp_path, Slow(nothing))),
    )
    async with asyncio.timeout(60):
        for _ in range(3):
            await launcher.serve_statistics()
            await asyncio.sleep(0)
    assert len(rounds) == 3
    assert (tmp_path / "statistics.json").read_text() == '{"t/c":1}'
    assert caplog.messages == ['statistics_not_saved service=- why="t/a, t/b"']
    served.close()


async def nothing(_: Replica) -> None:
    """A replica that does not answer."""


async def test_it_ends_when_told_and_saves_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LONGEST_S", 60.0)
    world, kept = World(), Kept(a=ServiceState())
    launcher = Launcher(world, world, replicas=nobody, saved=kept)  # type: ignore[arg-type]
    ended = asyncio.Event()
    running = asyncio.create_task(launcher.run(60.0, ended))
    await asyncio.sleep(0.1)
    kept.known = {}
    ended.set()
    await asyncio.wait_for(running, 20)
    assert list(kept.known) == ["a"]


# Its pace


UNDISTURBED_S = 20.0


@pytest.fixture
def undisturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a pause be so long."""
    monkeypatch.setattr(loop, "LONGEST_S", UNDISTURBED_S)


class Paced(Launcher):
    """Takes turns that do nothing; the first is as busy as it is told to be.

    Without anything to do the next turn comes after ``UNDISTURBED_S``, longer than any test lasts.
    """

    def __init__(self, *, is_busy: bool) -> None:
        super().__init__(World(), World(), replicas=nobody)  # type: ignore[arg-type]
        self.turned_s: list[float] = []
        self.busy = is_busy

    async def turn(self) -> bool:
        self.turned_s.append(asyncio.get_running_loop().time())
        return self.busy

    async def gaps_s(self, seconds: float, meanwhile: float | None = None) -> list[float]:
        ended = asyncio.Event()
        running = asyncio.create_task(self.run(UNDISTURBED_S, ended))
        if meanwhile is not None:
            await asyncio.sleep(meanwhile)
            self._due.set()
            seconds -= meanwhile
        await asyncio.sleep(seconds)
        ended.set()
        await running
        return [b - a for a, b in pairwise(self.turned_s)]


@pytest.mark.usefixtures("undisturbed")
async def test_the_next_turn_comes_soon_while_there_is_something_to_do() -> None:
    assert await Paced(is_busy=False).gaps_s(0.7) == []
    assert len(await Paced(is_busy=True).gaps_s(2.0)) >= 3


@pytest.mark.usefixtures("undisturbed")
async def test_a_replicas_answer_makes_the_next_turn_due_at_once() -> None:
    (gap_s,) = await Paced(is_busy=False).gaps_s(0.6, meanwhile=0.2)
    assert gap_s < UNDISTURBED_S / 2


def test_engines_of_the_site_that_are_broken_are_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = SimpleNamespace(broken={"toy": "ImportError: no module"})
    monkeypatch.setattr(loop, "ENGINES", broken)
    loop.report_broken_engines(["vllm", "trion"])
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", 'engine_broken engine=toy why="ImportError: no module"'),
        ("WARNING", 'engine_broken engine=trion why="there is no such engine here"'),
    ]


async def test_what_requests_used_is_posted_by_who_leads_no_more() -> None:
    """After a failover: nobody else has this host's journal."""
    posted = list[str]()

    class Usage:
        refused = unreadable = ""
        missed = waiting = 0

        async def post(self) -> None:
            posted.append("all")

    world, leader = World(), Switch()
    leader.led = False
    launcher = Launcher(world, world, replicas=nobody, leader=leader, usage=Usage())  # type: ignore[arg-type]
    await launcher.post_usage()
    assert posted == ["all"]
    assert "post_usage" not in loop._DAEMON_CHANGES
