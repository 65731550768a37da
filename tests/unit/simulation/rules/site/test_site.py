"""A simulated site: jobs of the past on the model, by Slurm alone and by Slicewise."""

from dataclasses import replace

from builders.settings import site_settings
from builders.site_world import (
    ALONE,
    BEGIN_S,
    COSTS,
    DAY_S,
    GPU,
    cluster,
    past,
    simulated,
    slicewise,
    starts,
    tenants,
)
from builders.tenants import tenant

from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.cluster import SimulatedCluster, SimulatedNode
from slicewise.simulation.rules.site.past_requests import Replayable, replays
from slicewise.simulation.rules.site.plans import SlurmPlan
from slicewise.simulation.rules.site.simulated_site import Site, SiteTimes
from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowKind

SOON_S = 20
"""Within so many seconds a round has come, and Slurm has started what it may."""


def test_by_slurm_alone_jobs_start_when_gpus_are_free() -> None:
    record = simulated(ALONE, past("a", 4), past("a", 4, 10), past("a", 4, 20))
    assert starts(record) == {0: 0, 1: 10, 2: 600}
    assert record.rounds == 0


def test_the_site_s_own_limits_count_by_slurm_alone() -> None:
    limited = SlurmPlan(
        "present",
        {"normal": QosLimits(grp_tres={"billing": 4 * GPU})},
        {"b": AccountLimits(grp_tres={"billing": GPU})},
    )
    jobs = past("a", 4), past("a", 1, 10), past("b", 1, 20, qos="other"), past("b", 1, 30, qos="x")
    found = starts(simulated(limited, *jobs))
    assert found[1] == 600
    assert found[2] == 20
    assert found[3] is not None
    assert found[3] >= 600


def test_the_site_s_own_limits_count_beside_slicewise_s() -> None:
    limited = replace(
        slicewise(tenants(a=8)),
        qos={"normal": QosLimits(grp_tres={"cpu": 4})},
        accounts={"a": AccountLimits(grp_tres={"gres/gpu:a100": 4})},
    )
    jobs = past("a", 4), past("a", 4, 10), past("c", 0, 20, cpus=4), past("c", 0, 30, cpus=1)
    found = starts(simulated(limited, *jobs))
    assert (found[0], found[1], found[2], found[3]) == (0, 600, 20, 620)


def test_a_tenant_within_its_guarantee_starts_at_once() -> None:
    record = simulated(slicewise(tenants(a=4, b=4)), past("a", 4), past("b", 4, 10))
    assert starts(record) == {0: 0, 1: 10}
    assert not any(run.is_on_loan for job in record.jobs for run in job.runs)


def test_what_others_leave_idle_is_lent_as_soon_as_a_job_waits_for_it() -> None:
    record = simulated(slicewise(tenants(a=4, b=4)), past("a", 4), past("a", 4, 5))
    found = starts(record)
    assert found[0] == 0
    assert found[1] is not None
    # The regular round would come 15 s after the first one.
    assert 5 < found[1] <= 7
    assert record.jobs[1].runs[0].is_on_loan


def test_nothing_is_lent_that_its_lender_does_not_lend() -> None:
    keeps = tenant("b", 4 * GPU)
    policy = {**tenants(a=4), "b": keeps}
    found = starts(simulated(slicewise(policy), past("a", 4), past("a", 4, 1)))
    assert found[1] is not None
    assert 600 <= found[1] <= 600 + SOON_S


def test_a_lender_that_comes_back_has_its_gpus_and_the_borrower_runs_again() -> None:
    jobs = past("a", 4, 0, 9000.0), past("a", 4, 1, 3000.0), past("b", 4, 1000)
    borrower, lender = simulated(slicewise(tenants(a=4, b=4)), *jobs).jobs[1:]
    assert lender.runs[0].start_s - BEGIN_S <= 1000 + 2 * SOON_S
    assert len(borrower.runs) == 2
    first, second = borrower.runs
    assert first.end_s is not None
    assert first.end_s <= lender.runs[0].start_s
    assert second.end_s == second.start_s + 3000


def test_for_a_lender_the_fewest_gpus_go_where_slurm_would_take_who_came_first() -> None:
    jobs = past("a", 4, 0, 9000.0), past("a", 3, 1, 8000.0), past("a", 1, 40, 8000.0)
    found = simulated(slicewise(tenants(a=4, b=4)), *jobs, past("b", 1, 1000)).jobs
    assert [len(job.runs) for job in found] == [1, 1, 2, 1]
    assert found[3].runs[0].start_s - BEGIN_S <= 1000 + 2 * SOON_S


def test_a_grace_no_longer_than_kill_wait_leaves_the_choice_to_slurm() -> None:
    jobs = past("a", 4, 0, 9000.0), past("a", 3, 1, 8000.0), past("a", 1, 40, 8000.0)
    plan = slicewise(tenants(a=4, b=4))
    lending = plan.settings.lending.model_copy(update={"grace_s": 30})
    short = replace(plan, settings=plan.settings.model_copy(update={"lending": lending}))
    found = simulated(short, *jobs, past("b", 1, 1000)).jobs
    assert len(found[1].runs) == 2


def test_a_window_of_the_calendar_changes_what_a_tenant_may_have() -> None:
    begin_s = int(BEGIN_S) + 300
    window = Window(
        1, "a", WindowKind.NOMINAL, Millislices(0), first_s=begin_s, last_s=begin_s + 3600
    )
    alone = {"a": tenant("a", 8 * GPU)}
    record = simulated(slicewise(alone, window), past("a", 4, 0, 100.0), past("a", 4, 400, 100.0))
    found = starts(record)
    assert found[0] == 0
    assert found[1] is not None
    assert 3900 <= found[1] <= 3900 + SOON_S


def test_a_job_that_nobody_could_ever_start_is_refused_with_its_code() -> None:
    record = simulated(slicewise(tenants(a=4)), past("a", 4), past("stranger", 1, 5))
    assert record.refused == ((1, "SW-QUOTA-NONE"),)
    assert [job.number for job in record.jobs] == [0]


def test_a_job_without_gpus_passes_and_keeps_its_qos() -> None:
    record = simulated(slicewise(tenants(a=4)), past("nobody", gpus={}))
    assert starts(record) == {0: 0}


def test_gpus_without_a_type_get_one_from_slicewise_even_where_a_site_refuses_them() -> None:
    record = simulated(slicewise(tenants(a=4)), past("a", gpus={"": 2}))
    assert record.refused == ()
    assert (record.jobs[0].cost_millislices, starts(record)) == (2 * GPU, {0: 0})


def test_a_job_whose_user_gave_up_is_cancelled_only_while_it_waits() -> None:
    first = past("a", 4), past("a", 4, 1), past("a", 4, 2, 100.0, is_cancelled_waiting=True)
    record = simulated(ALONE, *first)
    assert record.jobs[2].given_up_s == BEGIN_S + 102
    assert record.jobs[2].runs == ()
    alone = simulated(ALONE, past("a", 4, 2, 100.0, is_cancelled_waiting=True))
    assert alone.jobs[0].given_up_s is None
    assert len(alone.jobs[0].runs) == 1


def test_what_ran_or_waited_at_the_beginning_is_there() -> None:
    on = cluster(1)
    jobs = (
        past("a", 4, 0, 5000.0, started_s=BEGIN_S),
        past("a", 4, 100, 700.0, started_s=BEGIN_S + 5000),
        past("a", 1, 0, 900.0, started_s=BEGIN_S),
        past("a", 4, 1500, 60.0, started_s=BEGIN_S + 5700),
    )
    record = simulated(ALONE, *jobs, on=on, begin_s=1000.0)
    assert [job.number for job in record.jobs] == [-1, -1, 3]
    # The first runs for the rest of its time; the third was over.
    assert [round(job.runs[0].start_s - BEGIN_S) for job in record.jobs] == [1000, 5000, 5700]
    assert record.jobs[0].run_s == 4000


def test_a_history_without_starts_begins_with_an_empty_site() -> None:
    record = simulated(ALONE, past("a", 4, 0, 5000.0), past("a", 4, 1500), begin_s=1000.0)
    assert [job.number for job in record.jobs] == [1]


def test_a_run_that_ended_while_nobody_waited_counts_as_past_use() -> None:
    plan = slicewise(tenants(a=1, b=7))
    on, last_s = cluster(), BEGIN_S + 10 * DAY_S
    times = SiteTimes(BEGIN_S, last_s, last_s)
    jobs = [past("a", 8, 0, 9 * DAY_S, nodes=2), past("b", 4, 9 * DAY_S + 900)]
    found = replays(enumerate(jobs), Replayable(on, COSTS), begin_s=BEGIN_S, end_s=last_s)
    site = Site(on, plan, COSTS, found, times)
    site.run()
    assert site.shares["a"] < site.shares["b"]


def test_progress_is_told_and_comes_to_an_end() -> None:
    told: list[float] = []
    on, times = cluster(), SiteTimes(BEGIN_S, BEGIN_S + 5000, BEGIN_S + 5000)
    jobs = [past("a", 1, at_s) for at_s in range(0, 5000, 100)]
    found = replays(enumerate(jobs), Replayable(on, COSTS), begin_s=BEGIN_S, end_s=times.last_s)
    Site(on, ALONE, COSTS, found, times).run(told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_what_once_ran_for_longer_than_max_time_runs_again():
    long = past("a", 1, 0.0, 7000.0, time_limit_s=7200)
    record = simulated(ALONE, long, on=cluster(max_time_s={"gpu": 3600}))
    (run,) = record.jobs[0].runs
    assert run.end_s is not None
    assert run.end_s - run.start_s == 7000.0


def test_a_job_whose_gpu_is_free_is_not_kept_waiting_by_jobs_of_another_type() -> None:
    """Backfill reserves whole nodes: for small jobs it would keep the whole GPUs beside idle."""
    by = site_settings(whole=["a100"], name="test")
    gpus = {"1g.10gb": 7, "a100": 1}
    nodes = tuple(SimulatedNode(f"n{nth}", frozenset({"gpu"}), gpus) for nth in range(2))
    small = [past("a", {"1g.10gb": 1}, 0.0, 3000.0 + 100 * nth) for nth in range(34)]
    record = simulated(
        slicewise(tenants(a=1, b=3), settings=by),
        *small,
        past("a", 1, 400.0, 8000.0),
        on=SimulatedCluster(name="test", nodes=nodes),
        last_s=3600.0,
        costs=by.costs,
    )
    found = starts(record)[34]
    assert found is not None
    assert found <= 400 + 90
