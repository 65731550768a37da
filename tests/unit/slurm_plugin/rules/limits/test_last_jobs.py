"""Taking Slicewise out while jobs are in its QOS: none waits for ever that could start, or it is
said what lets it.
"""

from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_job
from stand_ins.slurm_database import KilledError, LimitLedger, Row, SlurmDatabase, Steps, settings

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.quota_cycle.compile import compile_limits
from slicewise.slurm_plugin.quota_cycle.uninstall import (
    Undone,
    WayBack,
    finish,
    plan,
    uninstall,
    want_again,
)
from slicewise.slurm_plugin.rules.common.qos_names import tenant_of
from slicewise.slurm_plugin.rules.limits.last_jobs import Jobs
from slicewise.slurm_plugin.rules.quota.types import (
    Budget,
    KnownLimit,
    LimitKey,
    Loan,
    TenantUpdate,
)

pytestmark = pytest.mark.usefixtures("clock")

OWN, BORROWED = "slicewise_vision", "slicewise_vision_borrowed"
NLP = "slicewise_nlp"


class World:
    """Vision has 3 slices, nlp has 6; what vision lends nlp, and the other way round."""

    def __init__(
        self, *jobs: JobView, vision: int = 3000, lent: int = 0, borrowed: int = 0
    ) -> None:
        self.steps = Steps()
        accounts = [Row(name, parent="root") for name in ("vision", "nlp")]
        self.slurm = SlurmDatabase([*accounts, Row("vision", "alice")], steps=self.steps)
        self.ledger = LimitLedger(self.steps)
        for name, amount in (("vision", vision), ("nlp", 6000)):
            self.quota(name, nominal_millislices=Millislices(amount))
        loans = (("vision", "nlp", lent), ("nlp", "vision", borrowed))
        self.ledger.lent = tuple(Loan(a, b, Millislices(many)) for a, b, many in loans if many)
        self.jobs = jobs

    def quota(self, name: str, **changes: Any) -> None:
        all_of_it = dict.fromkeys(
            ("borrowing_limit_millislices", "lending_limit_millislices"), Millislices(9000)
        )
        self.ledger.change(TenantUpdate(name, **{**all_of_it, **changes}), "op", "")

    async def installed(self) -> "World":
        """Limits are as if no job were there: no tenant lends what is waited for."""
        await compile_limits(self.slurm, self.ledger, settings())  # type: ignore[arg-type]
        self.slurm.running, self.slurm.partition_qos = self.jobs, ""
        self.slurm.commands.clear()
        return self

    async def plan(self) -> WayBack:
        return await plan(self.slurm, self.ledger, settings())  # type: ignore[arg-type]

    async def uninstall(self, *, with_ledger: bool = True) -> Undone:
        ledger = self.ledger if with_ledger else None
        return await uninstall(self.slurm, ledger, settings())  # type: ignore[arg-type]

    async def finish(self) -> Undone:
        done = await finish(self.slurm, self.ledger, settings())  # type: ignore[arg-type]
        assert done is not None
        return done

    def qos(self) -> dict[int, str]:
        return {job.job_id: job.qos for job in self.slurm.running}

    def limit(self, qos: str) -> int | None:
        return self.slurm.known[qos].grp_tres.get("billing")


def job(job_id: int, qos: str, state: JobState = JobState.PENDING, **changes: Any) -> JobView:
    account = tenant_of(qos) or ""
    fields: dict[str, Any] = {"qos": qos, "state": state, "account": account}
    return a_job(job_id, **({"priority": 0, "time_limit_s": 600} | fields | changes))


def array(job_id: int, count: int, qos: str) -> JobView:
    return job(job_id, qos, array_job_id=job_id, untouched=frozenset(range(count)))


BIG = {"tres": {"gres/gpu:3g.40gb": "1"}}
"""3.5 slices."""


async def test_what_waits_on_borrowed_quota_goes_on_in_its_tenants_own_qos():
    held = job(3, BORROWED, held=True, reason="JobHeldAdmin")
    world = await World(
        job(1, BORROWED), array(2, 40, BORROWED), held, job(4, BORROWED, JobState.RUNNING)
    ).installed()
    assert world.limit(BORROWED) == 0
    done = await world.uninstall()
    assert world.qos() == {1: OWN, 2: OWN, 3: OWN, 4: BORROWED}
    assert done.moved == {"1": OWN, "2_[0-39]": OWN, "3": OWN}
    assert done.in_use == {
        OWN: Jobs(("1", "2_[0-39]", "3"), running=0, waiting=41, held=1),
        BORROWED: Jobs(("4",), running=1, waiting=0, held=0),
    }
    assert world.limit(OWN) == 3000
    assert not [one for one in done.waits if "for ever" in one]


async def test_an_emptied_borrowed_qos_goes_at_once():
    world = await World(job(1, BORROWED)).installed()
    await world.uninstall()
    assert world.slurm.known.keys() == {"normal", OWN}
    row = world.slurm.rows["vision", ""]
    assert world.slurm._list(row) == {"normal", OWN}


async def test_an_own_qos_that_had_lent_all_gets_its_own_part_back():
    world = await World(job(1, OWN), vision=3000, lent=3000).installed()
    assert world.limit(OWN) == 0
    done = await world.uninstall()
    assert world.limit(OWN) == 3000
    assert world.qos() == {1: OWN}
    (told,) = done.waits
    assert told.startswith("QOS slicewise_vision stays as long as jobs are in it, 1 waits: 1.")


async def test_with_its_own_part_comes_what_the_budget_has_left():
    """The part of a QOS that could start nothing is 0, too."""
    world = World(job(1, OWN), lent=3000)
    world.quota("vision", budget=Budget(Period.NONE, MillisliceSeconds(36_000_000)))
    world.ledger.left = {"vision": 36_000_000}
    await world.installed()
    assert world.slurm.known[OWN].grp_tres_run_mins == {"billing": 0}
    done = await world.uninstall()
    assert world.slurm.known[OWN].grp_tres_run_mins == {"billing": 600_000}
    assert len(done.waits) == 1


async def test_what_somebody_has_set_higher_stays():
    world = await World(job(1, OWN)).installed()
    for higher in ({"billing": 5000}, {}):
        world.slurm.known[OWN] = replace(world.slurm.known[OWN], grp_tres=higher)
        await world.uninstall()
        assert world.slurm.known[OWN].grp_tres == higher


async def test_what_its_own_part_has_no_room_for_stays_and_it_is_said_what_lets_it_start():
    world = await World(job(1, BORROWED, **BIG), job(2, BORROWED)).installed()
    done = await world.uninstall()
    assert world.qos() == {1: BORROWED, 2: OWN}
    (told,) = [one for one in done.waits if "for ever" in one]
    command = f"sacctmgr modify qos where name={BORROWED} set grptres=billing=3500"
    assert told.endswith(f"for ever: 1. To let them start: {command}")
    await world.slurm.sacctmgr((tuple(command.split()[1:]),))
    assert not [one for one in (await world.finish()).waits if "for ever" in one]
    assert world.limit(BORROWED) == 3500


async def test_what_can_start_where_it_is_is_no_matter():
    world = await World(job(1, BORROWED, **BIG), borrowed=4000).installed()
    done = await world.uninstall()
    assert world.qos() == {1: BORROWED}
    assert [one.partition(",")[0] for one in done.waits] == [
        f"QOS {BORROWED} stays as long as jobs are in it"
    ]


def task(job_id: int, index: int, qos: str, **changes: Any) -> JobView:
    return job(job_id, qos, array_job_id=1, task_index=index, **changes)


async def test_a_requeued_task_goes_to_where_its_array_waits():
    """Where it was it has room, and Slurm would come to it once all others have started."""
    world = await World(array(1, 40, OWN), task(7, 50, BORROWED), borrowed=4000).installed()
    done = await world.uninstall()
    assert world.qos() == {1: OWN, 7: OWN}
    assert done.moved == {"1_[50]": OWN}


@pytest.mark.parametrize(
    "waits", [{"held": True, "reason": "JobHeldUser"}, {"reason": "BeginTime"}]
)
async def test_tasks_that_may_not_start_keep_none_of_their_array_from_it(waits: dict[str, Any]):
    world = await World(task(6, 3, OWN, **waits), task(7, 50, BORROWED), borrowed=4000).installed()
    await world.uninstall()
    assert world.qos() == {6: OWN, 7: BORROWED}


async def test_who_borrows_all_that_he_has_is_told():
    world = await World(job(1, BORROWED), vision=0).installed()
    done = await world.uninstall()
    assert world.qos() == {1: BORROWED}
    assert done.waits[-1].endswith(f"name={BORROWED} set grptres=billing=1000")


@pytest.mark.parametrize(("limit_s", "minutes"), [(7200, 120_000), (None, -1)])
async def test_what_the_budget_does_not_last_for_is_told(limit_s: int | None, minutes: int):
    world = World(job(1, OWN, time_limit_s=limit_s))
    world.quota("vision", budget=Budget(Period.NONE, MillisliceSeconds(3_600_000)))
    world.ledger.left = {"vision": 3_600_000}
    await world.installed()
    done = await world.uninstall()
    assert done.waits[-1].endswith(f"name={OWN} set grptresrunmins=billing={minutes}")


async def test_tasks_of_arrays_are_named_as_squeue_shows_them():
    task = {"array_job_id": 19, "task_index": 12}
    world = await World(
        job(20, OWN, JobState.RUNNING, **task), array(19, 2, OWN), job(21, BORROWED, **task, **BIG)
    ).installed()
    told = "\n".join((await world.uninstall()).waits)
    assert f"QOS {OWN} stays as long as jobs are in it, 1 runs, 2 wait: 19_[0-1], 19_12." in told
    assert "wait for ever: 19_12. To let them start" in told


async def test_without_the_ledger_what_stands_in_slurm_must_do():
    world = await World(job(1, BORROWED), job(2, NLP), lent=1000).installed()
    world.slurm.known[NLP] = replace(world.slurm.known[NLP], grp_tres={"billing": 0})
    world.ledger.know({LimitKey("qos", NLP, "grptres=billing"): KnownLimit("", "0")})
    done = await world.uninstall(with_ledger=False)
    assert world.qos() == {1: OWN, 2: NLP}
    assert (world.limit(OWN), world.limit(NLP)) == (2000, 0)
    (told,) = [one for one in done.waits if "for ever" in one]
    assert told.endswith(
        f": 2. To let them start: sacctmgr modify qos where name={NLP} set grptres=billing=1000"
    )
    # With the ledger no operator has to do that.
    done = await world.finish()
    assert world.limit(NLP) == 6000
    assert not [one for one in done.waits if "for ever" in one]


async def test_where_slurm_refuses_a_move_the_rest_goes_on():
    world = await World(job(1, BORROWED), job(2, BORROWED)).installed()
    world.slurm.refuses = ("update 1 ",)
    done = await world.uninstall()
    assert world.qos() == {1: BORROWED, 2: OWN}
    assert done.moved == {"2": OWN}
    (told,) = [one for one in done.waits if "does not move" in one]
    assert "Invalid qos specification" in told
    assert told.endswith(f"scontrol update JobId=1 QOS={OWN}")
    assert sum(one.startswith("update 1 ") for one in world.slurm.commands) == 1
    assert {OWN, BORROWED} == world.slurm.known.keys() - {"normal"}
    world.slurm.refuses = ()
    assert (await world.finish()).moved == {"1": OWN}


async def test_where_slurm_makes_no_move_of_it_it_is_tried_once():
    world = await World(job(1, BORROWED)).installed()
    world.slurm.ignores = ("update 1 ",)
    done = await world.uninstall()
    assert [one for one in done.waits if "it shows it as before" in one]
    assert sum(one.startswith("update 1 ") for one in world.slurm.commands) == 1


async def test_an_array_whose_tasks_start_while_slurm_refuses_to_move_it_is_tried_once():
    """Its waiting tasks are others at each look."""
    world = await World(array(2, 40, BORROWED), job(1, BORROWED)).installed()
    world.slurm.refuses = ("update 2_",)
    jobs = world.slurm.jobs

    async def one_starts() -> tuple[JobView, ...]:
        shown = await jobs()
        world.slurm.running = tuple(
            replace(one, untouched=one.untouched - {min(one.untouched)}) if one.untouched else one
            for one in shown
        )
        return shown

    world.slurm.jobs = one_starts  # type: ignore[method-assign]
    done = await world.uninstall()
    assert world.qos() == {1: OWN, 2: BORROWED}
    assert sum(one.startswith("update 2_") for one in world.slurm.commands) == 1
    (told,) = [one for one in done.waits if "does not move" in one]
    assert "Invalid qos specification" in told
    assert (await world.finish()).moved == {}


async def test_what_slurm_never_shows_ends_with_what_is_still_due():
    world = await World(job(1, OWN), lent=3000).installed()
    world.slurm.ignores = ("grptres=billing=3000",)
    with pytest.raises(OutsideError, match="SW-LIMITS-UNSETTLED") as failed:
        await world.uninstall()
    assert f"sacctmgr modify qos where name={OWN} set grptres=billing=3000." in str(failed.value)


async def test_a_long_backlog_moves_in_several_calls():
    calls: list[int] = []
    world = await World(*(job(number, BORROWED) for number in range(1, 501))).installed()
    update = world.slurm.update

    async def counted(changes: Any) -> Any:
        calls.append(len(changes))
        return await update(changes)

    world.slurm.update = counted  # type: ignore[method-assign]
    done = await world.uninstall()
    assert calls == [200, 200, 100]
    assert set(world.qos().values()) == {OWN}
    assert len(done.moved) == 500


async def test_what_slurm_does_not_move_is_told_by_its_words():
    world = await World(*(job(number, BORROWED) for number in range(1, 16))).installed()
    world.slurm.refuses = ("update ",)
    done = await world.uninstall()
    (told,) = [one for one in done.waits if "does not move" in one]
    assert "1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 5 more (15 jobs or arrays)" in told
    assert told.count("scontrol update") == 10
    assert done.unmoved.keys() == set(range(1, 16))
    assert world.qos() == dict.fromkeys(range(1, 16), BORROWED)


async def test_what_is_told_of_an_array_works_on_any_slurm():
    """From 24.11 on QOS of listed tasks changes in their first record only."""
    requeued = job(30, BORROWED, array_job_id=2, task_index=7)
    array_left = job(2, BORROWED, array_job_id=2, untouched=frozenset({1, 2, 3}))
    world = await World(array_left, requeued).installed()
    told: list[str] = []
    assert (await world.plan()).moves == {"2_[1-3,7]": OWN}
    await uninstall(world.slurm, world.ledger, settings(), told.append)  # type: ignore[arg-type]
    assert [one for one in told if "JobId" in one] == [
        f"scontrol update JobId=2_[1-3] QOS={OWN}",
        f"scontrol update JobId=2_7 QOS={OWN}",
    ]


async def test_what_slurm_took_and_did_not_move_is_not_among_the_moved():
    world = await World(job(1, BORROWED), array(2, 40, BORROWED)).installed()
    world.slurm.ignores = ("update 1 ",)
    done = await world.uninstall()
    assert (done.moved, done.moved_jobs) == ({"2_[0-39]": OWN}, 40)
    assert done.unmoved == {1: "it shows it as before"}


async def test_what_somebody_has_lowered_since_stays_until_it_is_uninstalled_again():
    world = await World(job(1, OWN), lent=3000).installed()
    await world.uninstall()
    assert world.limit(OWN) == 3000
    for lower in (0, 2000):
        world.slurm.known[OWN] = replace(world.slurm.known[OWN], grp_tres={"billing": lower})
        await world.finish()
        assert world.limit(OWN) == lower
    planned = await plan(world.slurm, world.ledger, settings(), finishes=True)  # type: ignore[arg-type]
    assert planned.all == ()
    await world.uninstall()
    assert world.limit(OWN) == 3000


async def test_a_finish_goes_on_where_an_uninstall_was_killed():
    world = await World(job(1, OWN), lent=3000).installed()
    world.ledger.mark_uninstalled()
    await world.finish()
    assert world.limit(OWN) == 3000


@pytest.mark.parametrize("count", [2, 3])
async def test_the_parts_of_a_budget_above_are_together_no_more_than_it_has(count: int):
    names = ["vision", "nlp", "bio"][:count]
    own = [f"slicewise_{name}" for name in names]
    world = World(*(job(number, qos) for number, qos in enumerate(own, 1)), lent=3000)
    world.slurm.rows["lab", ""] = Row("lab", parent="root")
    world.quota("lab", budget=Budget(Period.NONE, MillisliceSeconds(36_000_000)))
    if count > 2:
        world.slurm.rows["bio", ""] = Row("bio", parent="root")
        world.quota("bio", nominal_millislices=Millislices(1000))
    for name in names:
        world.quota(name, parent="lab")
    world.ledger.left = {"lab": 36_000_000}
    await world.installed()
    await world.uninstall()
    parts = [world.slurm.known[qos].grp_tres_run_mins["billing"] for qos in own]
    assert sum(parts) == 600_000
    assert all(parts)
    world.slurm.running = world.slurm.running[:1]
    await world.finish()
    assert world.slurm.known[OWN].grp_tres_run_mins == {"billing": 600_000}


async def test_of_a_budget_each_waiting_job_gets_what_it_needs_first():
    long_job = job(1, OWN, time_limit_s=30_000)
    world = World(long_job, job(2, NLP), lent=3000)
    world.slurm.rows["lab", ""] = Row("lab", parent="root")
    world.quota("lab", budget=Budget(Period.NONE, MillisliceSeconds(36_000_000)))
    for name in ("vision", "nlp"):
        world.quota(name, parent="lab")
    world.ledger.left = {"lab": 36_000_000}
    await world.installed()
    for qos in (OWN, NLP):
        key = LimitKey("qos", qos, "grptresrunmins=billing")
        world.slurm.known[qos] = replace(world.slurm.known[qos], grp_tres_run_mins={"billing": 0})
        world.ledger.know({key: KnownLimit("", "0")})
    done = await world.uninstall()
    parts = [world.slurm.known[qos].grp_tres_run_mins["billing"] for qos in (OWN, NLP)]
    assert parts == [545_000, 55_000]
    assert not [one for one in done.waits if "for ever" in one]


async def test_what_jobs_in_other_qos_may_take_of_a_budget_is_not_given_away():
    other = job(2, "normal", JobState.RUNNING, account="vision", end_s=10**10)
    world = World(job(1, OWN), other, lent=3000)
    world.quota("vision", budget=Budget(Period.NONE, MillisliceSeconds(36_000_000)))
    world.ledger.left = {"vision": 36_000_000}
    await world.installed()
    await world.uninstall()
    assert world.slurm.known[OWN].grp_tres_run_mins == {"billing": 0}


async def test_what_the_borrowed_qos_lets_start_stays_there():
    """Its own one may be full of others."""
    world = await World(
        job(1, BORROWED, JobState.RUNNING),
        job(2, BORROWED, priority=5),
        job(3, BORROWED, priority=9),
        array(4, 9, BORROWED),
        job(5, BORROWED, held=True, priority=0),
        borrowed=3000,
    ).installed()
    done = await world.uninstall()
    assert world.qos() == {1: BORROWED, 2: BORROWED, 3: BORROWED, 4: OWN, 5: OWN}
    assert done.moved.keys() == {"4_[0-8]", "5"}


async def test_what_waits_in_a_qos_that_is_gone_goes_on_in_its_own_one():
    world = await World(job(1, BORROWED)).installed()
    del world.slurm.known[BORROWED]
    await world.uninstall()
    assert world.qos() == {1: OWN}


async def test_an_array_stays_where_its_next_task_can_start():
    world = await World(array(1, 9, BORROWED), job(2, BORROWED), borrowed=2000).installed()
    await world.uninstall()
    assert world.qos() == {1: BORROWED, 2: OWN}


async def test_a_waiting_job_that_can_not_be_read_is_none_that_runs():
    odd = job(1, OWN, unread=frozenset({"tres"}))
    world = await World(odd).installed()
    assert (await world.uninstall()).in_use == {OWN: Jobs(("1",), running=0, waiting=1, held=0)}


async def test_a_run_on_borrowed_quota_that_is_requeued_finds_its_own_qos_again():
    world = await World(job(1, BORROWED, JobState.RUNNING)).installed()
    await world.uninstall()
    assert world.slurm.known.keys() == {"normal", OWN, BORROWED}
    world.slurm.running = (job(1, BORROWED),)
    await world.finish()
    assert world.qos() == {1: OWN}
    world.slurm.running = ()
    assert (await world.finish()).waits == ()
    assert world.slurm.known.keys() == {"normal"}


async def test_of_another_cluster_no_limit_changes():
    world = await World(job(1, OWN), job(2, BORROWED), lent=3000).installed()
    world.slurm.elsewhere = frozenset({OWN})
    done = await world.uninstall()
    assert world.limit(OWN) == 0
    assert world.qos() == {1: OWN, 2: BORROWED}
    assert [one.partition(" jobs")[0] for one in done.waits if "for ever" in one] == [
        f"In QOS {OWN}",
        f"In QOS {BORROWED}",
    ]


async def test_what_is_no_job_of_ours_is_left_alone():
    theirs = job(1, "normal", account="vision")
    odd = job(2, BORROWED, JobState.OTHER, unread=frozenset({"state"}))
    world = await World(theirs, odd).installed()
    await world.uninstall()
    assert world.qos() == {1: "normal", 2: BORROWED}


async def test_whatever_is_done_is_told_before():
    world = await World(job(1, BORROWED), lent=3000).installed()
    world.slurm.weight = 1_000_072
    told: list[str] = []
    due = await world.plan()
    assert due.moves == {"1": OWN}
    assert [one.text for one in due.jobs.limits] == [f"qos {OWN} grptres=billing: 0 to 3000"]
    assert world.slurm.commands == []

    def tell(command: str) -> None:
        assert command.removeprefix("sacctmgr ") not in world.slurm.commands
        assert world.qos() == {1: BORROWED} or "JobId" not in command
        told.append(command)

    done = await uninstall(world.slurm, world.ledger, settings(), tell)  # type: ignore[arg-type]
    assert told[0] == "scontrol update NodeName=n1 Weight=7"
    limit = f"sacctmgr modify qos where name={OWN} set grptres=billing=3000"
    assert told.index(limit) < told.index(f"scontrol update JobId=1 QOS={OWN}")
    assert [one for one in told if one.startswith("sacctmgr")] == [
        f"sacctmgr {' '.join(change)}" for change in done.changes
    ]


@pytest.mark.parametrize("with_ledger", [True, False])
async def test_killed_at_any_step_it_ends_the_same(with_ledger: bool):
    ends = []
    for kill in (*range(14), None):
        world = await World(
            job(1, BORROWED), job(2, OWN), array(3, 4, BORROWED), lent=2000
        ).installed()
        world.steps.left = kill
        try:
            await world.uninstall(with_ledger=with_ledger)
        except KilledError:
            world.steps.left = None
            await world.uninstall(with_ledger=with_ledger)
        world.steps.left = None
        ends.append((world.qos(), world.slurm.state(), dict(world.ledger.remembered).keys()))
        await want_again(world.slurm, world.ledger, settings())  # type: ignore[arg-type]
        compiled = await compile_limits(world.slurm, world.ledger, settings())  # type: ignore[arg-type]
        assert compiled.out_of_band == ()
    assert all(end == ends[-1] for end in ends)
    assert ends[-1][0] == {1: OWN, 2: OWN, 3: OWN}


# -- Nodes that slots of services avoid

AVOIDS = "slicewise:1 token=ab12 tenant=vision service=bert avoids=gpu01"
AVOIDS_NONE = AVOIDS.removesuffix(" avoids=gpu01")


async def avoiding() -> World:
    """Two slots at rest and one that runs avoid gpu01; alice herself excludes gpu02 for one."""
    shared = {"admin_comment": AVOIDS, "held": True, "reason": "JobHeldAdmin"}
    rest = array(814, 2, OWN)
    slots = (
        replace(rest, untouched=frozenset({1, 2}), **shared),
        job(815, OWN, array_job_id=814, task_index=0, **shared),
        job(816, OWN, JobState.RUNNING, array_job_id=814, task_index=3, admin_comment=AVOIDS),
    )
    world = await World(*slots, job(9, OWN)).installed()
    world.slurm.excluded = {814: frozenset({"gpu01"}), 815: frozenset({"gpu01", "gpu02"})}
    return world


@pytest.mark.parametrize("with_ledger", [True, False])
async def test_waiting_slots_are_let_back_onto_the_nodes_that_they_avoid(*, with_ledger: bool):
    world = await avoiding()
    planned = (await world.plan()).avoid_commands
    assert planned == (
        f"scontrol update 'JobId=814_[1-2]' 'AdminComment={AVOIDS_NONE}' ExcNodeList=",
        f"scontrol update 'JobId=814_[0]' 'AdminComment={AVOIDS_NONE}' ExcNodeList=gpu02",
    )
    assert world.slurm.commands == []
    done = await world.uninstall(with_ledger=with_ledger)
    assert done.given_back == planned
    assert world.slurm.excluded == {814: frozenset(), 815: frozenset({"gpu02"})}
    tags = {job.job_id: job.admin_comment for job in world.slurm.running}
    assert (tags[814], tags[815], tags[816]) == (AVOIDS_NONE, AVOIDS_NONE, AVOIDS)
    assert (await world.finish()).given_back == ()


async def test_a_slot_that_slurm_does_not_let_back_is_named_and_tried_at_the_next_finish():
    world = await avoiding()
    world.slurm.refuses = ("814_[0] excluded",)
    done = await world.uninstall()
    (told,) = [one for one in done.waits if "avoids" in one]
    assert told.startswith("Slurm does not let 814_[0] back onto the nodes that it avoids (Job is")
    assert "scontrol update 'JobId=814_[0]'" in told
    assert sum("814_[0] excluded" in one for one in world.slurm.commands) == 1
    world.slurm.refuses = ()
    done = await world.finish()
    assert len(done.given_back) == 1
    assert not [one for one in done.waits if "avoids" in one]


async def test_a_guarantee_of_a_type_keeps_no_job_of_its_tenant_waiting_for_ever():
    """None of the type was guaranteed: all ran on loan."""
    world = World(job(1, BORROWED))
    world.quota("vision", type_nominals={"1g.10gb": 0})
    await world.installed()
    tres = world.slurm.known[OWN].grp_tres
    assert tres["gres/gpu:1g.10gb"] == 0
    await world.uninstall()
    assert world.qos() == {1: OWN}
    assert "gres/gpu:1g.10gb" not in world.slurm.known[OWN].grp_tres
    assert world.limit(OWN) == 3000
