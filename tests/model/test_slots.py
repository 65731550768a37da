"""Tests the slots of services on the model of Slurm: what runs, and who may let it run."""

import pytest
from model_daemon import SETTINGS, DaemonOnModel

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.interface import Tasks
from slicewise.cluster.language.units import Millislices

SERVES_S = 300.0
"""Seconds after which a replica ends by itself."""


@pytest.fixture
def own(site: DaemonOnModel) -> DaemonOnModel:
    """lab has three slices."""
    site.set_quota("lab", 3)
    return site


@pytest.fixture
def array(own: DaemonOnModel) -> int:
    """A service of four slots, all held as administrator."""
    return own.apply("lab", 4)


def test_slots_run_within_the_quota(own: DaemonOnModel, array: int) -> None:
    answer = own.wish(array, 0, 1, 2, 3)
    assert (answer.released, answer.kept_back) == ((0, 1, 2), (3,))
    assert answer.note == "quota: lab holds 3 of 3 slices; a replica needs 1"
    own.until_is(lambda: own.slot_states(array), ["running"] * 3 + ["held"])
    assert all(len(slot.ports) == 3 for slot in own.slots(array)[:3])
    assert {slot.node for slot in own.slots(array)[:3]} <= {"gpu01", "gpu02"}
    assert own.wish(array, 1, 2).held == (0,)
    own.until_is(lambda: own.slot_states(array)[0], "held")
    assert own.wish(array, 1, 2, 3).released == (3,)
    own.until_is(lambda: own.slot_states(array), ["held"] + ["running"] * 3)
    own.always(lambda: own.runs("lab").total() == 3, 60)


def test_a_quota_raised_lets_more_start(own: DaemonOnModel, array: int) -> None:
    own.wish(array, 0, 1, 2, 3)
    own.until_is(lambda: own.slot_states(array), ["running"] * 3 + ["held"])
    own.set_quota("lab", 4)
    own.until_is(lambda: own.wish(array, 0, 1, 2, 3).released, (3,))
    own.until_is(lambda: own.slot_states(array), ["running"] * 4)


def test_a_slot_avoids_a_node_and_what_its_user_excludes_stays_excluded(
    own: DaemonOnModel, array: int
) -> None:
    gone = frozenset({"gpu03"})
    own.update(Tasks(array, frozenset({1})), excluded_nodes=gone)

    def excluded() -> list[frozenset[str]]:
        ids = {one.task_index: one.job_id for one in own.site.model.array(array)}
        names = own.site.model.nodes
        found = []
        for index in range(3):
            record = own.site.record(ids.get(index, array))
            assert record is not None
            found.append(frozenset(n.name for i, n in enumerate(names) if record.excluded >> i & 1))
        return found

    # Of two nodes with this type one may be avoided, and Slurm takes the other one, though both
    # are free and it would fill this one first.
    own.wish(array, 0, 1, avoid=("gpu01", "gpu02"))
    own.until_is(lambda: own.slot_states(array)[:2], ["running"] * 2)
    assert [slot.node for slot in own.slots(array)[:2]] == ["gpu02"] * 2
    avoided = frozenset({"gpu01"})
    assert excluded() == [avoided, avoided | gone, frozenset()]
    # The next time it may start where it likes.
    own.wish(array)
    own.until_is(lambda: own.slot_states(array)[:2], ["held"] * 2)
    own.wish(array, 0, 1)
    own.until_is(lambda: own.slot_states(array)[:2], ["running"] * 2)
    assert excluded()[:2] == [frozenset(), gone]


def test_a_replica_that_ends_gives_its_slot_back(own: DaemonOnModel) -> None:
    array = own.apply("lab", 4, run_s=SERVES_S)
    own.wish(array, 0)
    own.wait(SERVES_S / 2)
    own.wish(array, 0, 1)
    own.until_is(lambda: own.slot_states(array)[:2], ["running"] * 2)
    own.until_is(lambda: own.slot_states(array)[:2], ["held", "running"], SERVES_S)
    own.until_is(lambda: own.slots(array)[0].reason, "JobHeldAdmin")
    assert own.wish(array, 0, 1).released == (0,)
    own.until_is(lambda: own.slot_states(array)[:2], ["running"] * 2)


def test_a_slot_released_by_others_is_held_on_sight(own: DaemonOnModel, array: int) -> None:
    own.wish(array, 0, 1, 2)
    own.until_is(lambda: own.slot_states(array), ["running"] * 3 + ["held"])
    # The quota is full, so what an administrator releases here stays pending.
    own.site.model.release(Tasks(array, frozenset({3})))
    (released,) = (one for one in own.site.model.array(array) if one.task_index == 3)
    assert not released.held
    own.until_is(lambda: own.slots(array)[3].reason, "JobHeldAdmin")
    assert own.slot_states(array) == ["running"] * 3 + ["held"]


def test_submitted_again_it_is_a_new_generation_that_replaces_the_old(
    own: DaemonOnModel, array: int
) -> None:
    def arrays() -> list[int]:
        return [one.array_job_id for one in own.daemon.state.view.services]

    def retire(generation: int) -> None:
        own.do(own.daemon.state.retire(generation))

    with pytest.raises(InvalidInputError, match="SW-SERVICE-CHANGED"):
        retire(array)
    newer = own.apply("lab", 4)
    assert arrays() == [array, newer]
    with pytest.raises(InvalidInputError, match="SW-SERVICE-CHANGED"):
        retire(newer)
    retire(array)
    own.until_is(arrays, [newer])


def test_a_daemon_that_is_killed_knows_what_ran_and_what_it_held(
    own: DaemonOnModel, array: int
) -> None:
    own.wish(array, 0, 1)
    own.until_is(lambda: own.slot_states(array)[:2], ["running"] * 2)
    before = [(slot.job_id, slot.node, slot.ports, slot.start_s) for slot in own.slots(array)[:2]]
    own.stop()
    own.start()
    after = [(slot.job_id, slot.node, slot.ports, slot.start_s) for slot in own.slots(array)[:2]]
    assert after == before
    own.always(lambda: own.slot_states(array) == ["running"] * 2 + ["held"] * 2, 60)


def test_a_slot_whose_task_was_cancelled_comes_back(own: DaemonOnModel, array: int) -> None:
    own.wish(array, 0, 1)
    own.until_is(lambda: own.slot_states(array)[:2], ["running"] * 2)
    own.site.model.cancel(Tasks(array, frozenset({0})))
    assert own.runs("lab").total() == 1

    def running() -> list[str]:
        own.wish(array, 0, 1)
        return own.slot_states(array)[:2]

    own.until_is(running, ["running"] * 2)


def test_a_service_that_was_cancelled_as_a_whole_stays_so(own: DaemonOnModel, array: int) -> None:
    own.wish(array, 0, 1)
    own.until_is(lambda: own.slot_states(array)[:2], ["running"] * 2)
    own.site.model.cancel(array)
    own.wait(60)
    own.always(lambda: not own.jobs("lab"), 60)
    assert own.slots(array) == []


LEASE_S = 240


def left_s(site: DaemonOnModel) -> list[float]:
    """How long the replicas that run may still do so."""
    return [(one.end_s or 0) - site.clock.now_s for one in site.jobs("lab") if one.start_s]


@pytest.mark.parametrize("ahead_s", [0.0, 365 * 86_400.0, -7200.0])
def test_a_lease_is_extended_while_the_launcher_is_heard(
    own: DaemonOnModel, ahead_s: float
) -> None:
    """It is never much longer ahead: Slurm plans with it. How the host's clock is set is nothing
    to it.
    """
    array = own.apply("lab", 4, lease_s=LEASE_S)
    own.wish(array, 0)
    own.until_is(lambda: own.slot_states(array)[0], "running")
    start_s = own.slots(array)[0].start_s
    own.clock.ahead_s = ahead_s
    for _ in range(3 * LEASE_S // 60):
        own.wish(array, 0)
        own.always(lambda: 0 < left_s(own)[0] <= LEASE_S + 60, 60)
    assert own.slots(array)[0].start_s == start_s


def test_a_replica_of_which_no_launcher_speaks_any_more_ends_with_its_lease(
    own: DaemonOnModel,
) -> None:
    array = own.apply("lab", 4, lease_s=LEASE_S)
    own.wish(array, 0)
    own.until_is(lambda: own.slot_states(array)[0], "running")
    own.wait(2 * LEASE_S + 60)
    assert left_s(own) == []
    own.until_is(lambda: own.slot_states(array), ["held"] * 4)


def test_idle_quota_is_lent_and_its_lender_has_it_back(site: DaemonOnModel) -> None:
    """What is borrowed runs on as long as there are GPUs; nothing more starts."""
    site.set_quota("lender", 3, lending_limit_millislices=Millislices(3000))
    site.set_quota("lab", 1, borrowing_limit_millislices=Millislices(2000))
    for _ in range(4):
        site.sbatch("lab", qos="slicewise_lab_borrowed")
    site.until_is(lambda: site.runs("lab").total(), 3)
    site.until_is(lambda: site.reasons("lab"), {"QOSGrpBilling"})
    borrowing = {one.job_id for one in site.jobs("lab") if one.start_s}
    for _ in range(3):
        site.sbatch("lender")
    site.until_is(lambda: dict(site.runs("lender")), {"slicewise_lender": 3})
    site.always(lambda: {one.job_id for one in site.jobs("lab") if one.start_s} == borrowing, 60)
    assert site.reasons("lab") == {"QOSGrpBilling"}


def test_of_two_that_wait_for_half_of_what_is_idle_each_starts_in_turn(
    site: DaemonOnModel,
) -> None:
    """By fair shares alone each had 1.75 slices, and neither ever started."""
    site.set_quota("lender", 3.5, lending_limit_millislices=Millislices(3500))
    for name in ("lab", "other"):
        site.set_quota(name, 0, borrowing_limit_millislices=Millislices(3500))
    waiting = {name: site.sbatch(name, {"3g.40gb": 1}) for name in ("lab", "other")}

    def running() -> list[str]:
        return [name for name in waiting if site.runs(name).total()]

    site.until(running)
    site.always(lambda: len(running()) == 1, 60)
    (first,) = running()
    (second,) = waiting.keys() - {first}
    site.site.model.cancel(waiting[first])
    site.until_is(running, [second])


def test_a_job_that_costs_more_than_its_tenants_own_part_has_that_and_a_loan(
    site: DaemonOnModel,
) -> None:
    """Two slices of its own, which no job of its own QOS wants, and 1.5 of another's."""
    site.set_quota("lender", 2, lending_limit_millislices=Millislices(2000))
    site.set_quota("lab", 2, borrowing_limit_millislices=Millislices(2000))
    site.sbatch("lab", {"3g.40gb": 1})
    site.until_is(lambda: dict(site.runs("lab")), {"slicewise_lab_borrowed": 1})


@pytest.fixture(params=["observe", "advise"])
def watched(site: DaemonOnModel, request: pytest.FixtureRequest) -> DaemonOnModel:
    """A site without limits in Slurm, and with no slicewise.lua; lab has three slices."""
    site.stop()
    # The site has no gate yet.
    site.site.database.partition_qos = ""
    site.site.tell()
    site.set_quota("lab", 3)
    daemon = SETTINGS.daemon.model_copy(update={"mode": request.param})
    site.start(SETTINGS.model_copy(update={"daemon": daemon}))
    return site


def test_before_limits_are_enforced_services_run_beside_jobs_that_nothing_touches(
    watched: DaemonOnModel,
) -> None:
    other = watched.sbatch("other", {"3g.40gb": 1}, run_s=10_000.0, minutes=200)
    waits = [watched.sbatch("lab", {"3g.40gb": 4}, minutes=7) for _ in range(2)]
    watched.until(lambda: [one.job_id for one in watched.jobs("other") if one.start_s] == [other])
    before = {one.job_id: one for one in watched.site.model.jobs}
    known = dict(watched.site.database.known)

    array = watched.apply("lab", 4)
    answer = watched.wish(array, 0, 1, 2, 3)
    assert (answer.released, answer.kept_back) == ((0, 1, 2), (3,))
    watched.until_is(lambda: watched.slot_states(array), ["running"] * 3 + ["held"])
    assert {one.qos for one in watched.jobs("lab")} == {"normal"}
    assert watched.wish(array, 1).held == (0, 2)
    watched.until_is(lambda: watched.slot_states(array), ["held", "running", "held", "held"])
    # It is extended as long as it is wanted, and what it took is booked.
    watched.always(
        lambda: watched.wish(array, 1) and watched.slot_states(array)[1] == "running", 1800
    )
    watched.do(watched.daemon.state.delete(array))
    watched.until_is(lambda: watched.slots(array), [])
    watched.until(lambda: any(row.end_s for row in watched.statement("lab")))

    after = {one.job_id: one for one in watched.site.model.jobs}
    for job in (other, *waits):
        assert after[job] == before[job]
    assert dict(watched.site.database.known) == known


def test_the_other_modes_service_goes_on_in_enforce(watched: DaemonOnModel) -> None:
    array = watched.apply("lab", 2)
    watched.wish(array, 0)
    watched.until_is(lambda: watched.slot_states(array), ["running", "held"])
    watched.stop()
    watched.start(SETTINGS)
    watched.until(lambda: watched.ledger.compiled_id == watched.ledger.newest)
    watched.wish(array, 0, 1)
    watched.until_is(lambda: watched.slot_states(array), ["running", "running"])
    assert all(job.state is JobState.RUNNING for job in watched.jobs("lab"))
