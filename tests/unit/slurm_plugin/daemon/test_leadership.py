"""Tests which daemon acts: never two of a pair, and one alone though PostgreSQL is away."""

from dataclasses import dataclass

import pytest
from builders.tenants import policy_of, tenant
from hypothesis import given
from hypothesis import strategies as st
from stand_ins.leader_locks import Lock, Postgres
from stand_ins.led_launcher import Switch
from stand_ins.scripted import ScriptedSlurm, desire, job, settings

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.slurm.interface import Slurm, Tasks
from slicewise.slurm_plugin.admission_server.admit import Admission
from slicewise.slurm_plugin.daemon.leadership import Leadership, led_slurm
from slicewise.slurm_plugin.state.cluster_state import ClusterState

pytestmark = pytest.mark.usefixtures("clock")

TURN_S = 0.3
PAIR = ("ctl1", "ctl2")


@dataclass
class Daemons:
    server: Postgres
    pair: bool = True

    def __post_init__(self) -> None:
        self.locks = {host: Lock(self.server, host) for host in PAIR}
        self.each = {
            host: Leadership(lock, pair=self.pair, now_s=lambda: self.server.now_s)
            for host, lock in self.locks.items()
        }

    def leading(self) -> list[str]:
        return [host for host, one in self.each.items() if one.leads()]

    def pass_by(self, seconds: float) -> None:
        """Nobody takes a turn; never do two lead meanwhile."""
        end_s = self.server.now_s + seconds
        while self.server.now_s < end_s:
            self.server.now_s = min(self.server.now_s + 0.05, end_s)
            assert len(self.leading()) <= 1

    def live(self, seconds: float, *hosts: str) -> None:
        """Those that do not hang take their turns."""
        end_s = self.server.now_s + seconds
        while self.server.now_s < end_s:
            for host in hosts:
                self.each[host].turn()
            self.pass_by(TURN_S)


@pytest.fixture
def daemons() -> Daemons:
    return Daemons(Postgres())


def test_one_of_a_pair_leads_and_the_other_names_it(daemons: Daemons) -> None:
    daemons.live(5, *PAIR)
    assert daemons.leading() == ["ctl1"]
    with pytest.raises(UnreachableError, match=r"the one on ctl1 does.*SW-DAEMON-STANDBY"):
        daemons.each["ctl2"].require()


def test_a_killed_leader_is_followed_within_three_seconds(daemons: Daemons) -> None:
    daemons.live(5, *PAIR)
    daemons.server.free()
    daemons.live(3, "ctl2")
    assert daemons.leading()[-1:] == ["ctl2"]


def test_a_leader_that_hangs_or_is_cut_off_leads_no_more(daemons: Daemons) -> None:
    daemons.live(5, *PAIR)
    daemons.live(2.4, "ctl2")
    assert daemons.leading() == []
    # It holds the lock all the time: no other daemon can have led.
    daemons.live(TURN_S, *PAIR)
    assert daemons.leading() == ["ctl1"]
    daemons.locks["ctl1"].reached = False
    daemons.live(TURN_S, *PAIR)
    assert daemons.leading() == []


MISFORTUNES = st.lists(
    st.tuples(
        st.sampled_from(["free", "cut ctl1", "cut ctl2", "heal", "both", "ctl1", "ctl2", "none"]),
        st.floats(0.05, 4),
    ),
    max_size=30,
)


@given(MISFORTUNES)
def test_no_two_lead_whatever_happens(misfortunes: list[tuple[str, float]]) -> None:
    daemons = Daemons(Postgres())
    daemons.live(3, *PAIR)
    for what, seconds in misfortunes:
        match what.split():
            case ["free"]:
                daemons.server.free()
            case ["cut", host]:
                daemons.locks[host].reached = False
            case ["heal"]:
                for lock in daemons.locks.values():
                    lock.reached = True
            case ["none"]:
                daemons.pass_by(seconds)
            case [who]:
                daemons.live(seconds, *(PAIR if who == "both" else (who,)))
        assert len(daemons.leading()) <= 1


async def test_alone_it_waits_for_the_lock_and_then_acts_without_postgresql() -> None:
    daemons = Daemons(Postgres(), pair=False)
    first, second = daemons.each.values()
    await first.start()
    assert first.leads()
    with pytest.raises(UnreachableError, match="SW-DAEMON-STANDBY"):
        await second.start()
    daemons.locks["ctl1"].reached = False
    first.turn()
    assert first.leads()


def test_no_failure_of_the_lock_ends_its_thread(daemons: Daemons) -> None:
    class Odd(Lock):
        def holder(self) -> str:
            raise RuntimeError("nobody expected that")

    Lock(daemons.server, "ctl9").hold()
    standby = Leadership(Odd(daemons.server, "ctl1"), pair=True)
    standby.turn()
    assert not standby.leads()


async def test_alone_it_gives_way_to_whoever_has_the_lock_when_postgresql_is_back() -> None:
    daemons = Daemons(Postgres(), pair=False)
    first, second = daemons.each.values()
    await first.start()
    daemons.server.free()
    await second.start()
    first.turn()
    assert first.leads()
    first.turn()
    assert (first.leads(), first.holder) == (False, "ctl2")


async def test_on_standby_it_looks_and_touches_nothing() -> None:
    slurm, leader = (
        ScriptedSlurm(job(0, held=False, reason="Priority")),
        Switch("SW-DAEMON-STANDBY"),
    )
    cluster_state = ClusterState(settings(), slurm, Admission("enforce"), leader)
    cluster_state.set_policy(policy_of(tenant("vision", 2000)), {})
    await cluster_state.turn()
    assert [service.name for service in cluster_state.view.services] == ["bert"]
    for call in (desire(cluster_state, 814, frozenset({0})), cluster_state.delete(814)):
        with pytest.raises(UnreachableError, match="SW-DAEMON-STANDBY"):
            await call
    assert (slurm.actions, cluster_state.acts) == ([], False)
    leader.led = True
    assert cluster_state.acts


async def test_what_was_asked_before_another_daemon_led_is_not_carried_out_later() -> None:
    slurm, leader = ScriptedSlurm(job(0)), Switch("SW-DAEMON-STANDBY")
    cluster_state = ClusterState(settings(), slurm, Admission("enforce"), leader)
    cluster_state.set_policy(policy_of(tenant("vision", 2000)), {})
    leader.led = True
    await cluster_state.turn()
    number = cluster_state.desired_slots_versions[814]
    leader.led = False
    await cluster_state.turn()
    leader.led = True
    await cluster_state.turn()
    with pytest.raises(InvalidInputError, match="SW-SERVICE-CHANGED"):
        await cluster_state.set_desired_slots(814, frozenset({0}), after=number)
    await cluster_state.set_desired_slots(
        814, frozenset({0}), after=cluster_state.desired_slots_versions[814]
    )


async def test_what_is_under_way_at_a_takeover_counts_as_wished() -> None:
    slurm, leader = ScriptedSlurm(job(0), job(1)), Switch("SW-DAEMON-STANDBY")
    cluster_state = ClusterState(settings(), slurm, Admission("enforce"), leader)
    cluster_state.set_policy(policy_of(tenant("vision", 2000)), {})
    await cluster_state.turn()
    # The other daemon has released one, and then ended.
    slurm.shown = (job(0, held=False, reason="Priority"), job(1))
    await cluster_state.turn()
    leader.led = True
    await cluster_state.turn()
    assert slurm.actions == []


CHANGES = {
    "hold": (Tasks(1, frozenset({0})),),
    "release": (1,),
    "requeue_hold": (1,),
    "requeue": (frozenset({(1, 5)}),),
    "cancel": (1,),
    "update": ({},),
    "weigh_nodes": ({"gpu01": 7},),
    "sacctmgr": ([["modify"]],),
    "set_limits": ([["modify"]],),
}
READS = {
    "clock_s",
    *("version", "config", "partitions", "jobs", "nodes", "steps", "runs", "job_history"),
    *("batch_script", "throttled"),
    *(
        "associations",
        "coordinators",
        "qos",
        "qos_elsewhere",
        "priorities",
        "requests",
        "excluded_nodes",
    ),
    *("submissions", "tasks", "plans", "reservations", "reserved", "cores", "devices"),
}


def test_every_call_on_slurm_is_known_to_change_something_or_not() -> None:
    calls = {name for name in dir(Slurm) if not name.startswith("_")}
    assert calls == READS | CHANGES.keys()


@pytest.mark.parametrize("name", CHANGES)
async def test_on_standby_nothing_is_changed_in_slurm(name: str) -> None:
    standby = Leadership(Lock(Postgres(session=object(), holder="ctl1"), "ctl2"), pair=True)
    slurm = ScriptedSlurm()
    with pytest.raises(UnreachableError, match="SW-DAEMON-STANDBY"):
        await getattr(led_slurm(slurm, standby), name)(*CHANGES[name])
    assert slurm.done == []
    assert await led_slurm(slurm, standby).jobs() == ()
    await getattr(led_slurm(slurm, ALONE), name)(*CHANGES[name])
    assert slurm.done != [] or name == "update"
