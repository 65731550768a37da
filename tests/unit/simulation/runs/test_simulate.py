"""Whole experiments: parts, processes, the self-check, notes."""

from dataclasses import replace

import pytest
from builders.simulated_services import a_service
from builders.site_world import (
    ALONE,
    BEGIN_S,
    DAY_S,
    GPU,
    experiment,
    past,
    slicewise,
    tenants,
)

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import Millislices
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.runs.parts import Part, parts_of
from slicewise.simulation.rules.runs.run_figures import ESTIMATED
from slicewise.simulation.runs.part_run import guarantees
from slicewise.simulation.runs.simulate import simulate
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowKind

pytestmark = pytest.mark.usefixtures("clock")

FOUR_DAYS = [
    past("ab"[n % 3 == 0], 1 + n % 4, n * 9000.0, 2000.0 + 997 * (n % 13), job_id=n)
    for n in range(40)
]


SPEC = {"tenant": "a", "profile": "a100", "min_replicas": 2, "max_queue_s": None}


def real(jobs: list[HistoryJob], wait_s: float = 30.0) -> tuple[HistoryJob, ...]:
    """The same jobs as if each had waited so long."""
    return tuple(replace(job, started_s=job.submit_s + wait_s) for job in jobs)


def test_parts_follow_one_another_and_have_their_own_warm_up() -> None:
    def parts(known_from_s: float) -> tuple[Part, ...]:
        return parts_of(
            *(0.0, 8 * DAY_S),
            known_from_s=known_from_s,
            offsets=2,
            warm_up_s=DAY_S,
            tail_s=100.0,
        )

    found = parts(0.0)
    assert [part.start_s for part in found] == [0.0, 4 * DAY_S]
    assert [part.times.begin_s for part in found] == [0.0, 3 * DAY_S]
    assert [part.times.end_s for part in found] == [4 * DAY_S, 8 * DAY_S]
    assert [part.times.last_s - part.times.end_s for part in found] == [100.0, 100.0]
    # The first one as far as the history goes.
    assert parts(-3 * DAY_S)[0].times.begin_s == -DAY_S
    assert parts(-0.5 * DAY_S)[0].times.begin_s == -0.5 * DAY_S
    assert parts(DAY_S)[0].times.begin_s == 0.0


@pytest.mark.parametrize(("days", "count"), [(1.0, 1), (3.9, 1), (4.0, 2), (100.0, 5)])
def test_no_part_is_shorter_than_two_days(days: float, count: int) -> None:
    found = parts_of(0.0, days * DAY_S, known_from_s=0.0, offsets=5, warm_up_s=0.0, tail_s=0.0)
    assert len(found) == count


def test_services_are_in_use_and_not_compared_with_the_past() -> None:
    service = a_service([10.0, 70.0], spec=SPEC)
    plan = slicewise(tenants(a=4, b=4))
    jobs = real(FOUR_DAYS[:1], 0.0)
    alone, beside = (
        simulate(experiment(*jobs, present=one, end_s=BEGIN_S + 7200), processes=1)
        for one in (plan, replace(plan, services=(service,), turn_s=60.0, calm_s=300.0))
    )
    assert alone.self_check is not None
    assert beside.self_check is not None
    assert beside.self_check.utilisation == pytest.approx(alone.self_check.utilisation, abs=0.02)
    assert beside.present.utilisation - beside.self_check.utilisation == pytest.approx(
        2 / 8, abs=0.02
    )
    (found,) = beside.present.services
    assert (found.requests, found.attainment, found.lost) == (2, 1.0, 0)
    assert found.slice_s == pytest.approx(2 * 7 * 7200, rel=0.02)


def test_every_job_counts_once_whatever_the_parts() -> None:
    whole = experiment(*FOUR_DAYS, warm_up_s=DAY_S, offsets=1)
    cut = replace(whole, offsets=2)
    for one in (whole, cut):
        found = simulate(one, processes=1)
        assert (found.present.jobs, found.offsets) == (len(FOUR_DAYS), one.offsets)
        assert found.estimates.keys() == {*ESTIMATED}
        assert sum(tenant.jobs for tenant in found.present.tenants) == found.present.jobs


def test_both_plans_are_measured_by_what_the_changed_one_guarantees() -> None:
    found = simulate(experiment(*FOUR_DAYS, changed=slicewise(tenants(a=6, b=2))), processes=1)
    assert found.changed is not None
    for figures in (found.present, found.changed):
        owed = {one.tenant: one.guaranteed_millislices for one in figures.tenants}
        assert owed == {"a": 6 * GPU, "b": 2 * GPU}
    assert (found.present.name, found.changed.name) == ("Slurm alone", "Slicewise")
    assert found.changed_estimates.keys() == found.estimates.keys()


def test_a_history_that_went_as_the_model_has_it_passes_the_self_check() -> None:
    quiet = [replace(job, run_s=100.0 + n) for n, job in enumerate(FOUR_DAYS)]
    first = simulate(experiment(*real(quiet, 0.0)), processes=1).self_check
    assert first is not None
    assert first.jobs == len(quiet)
    assert first.wait_error_s <= 1.0
    assert first.start_order > 0.9
    assert first.utilisation_of_history == pytest.approx(first.utilisation, abs=0.02)


def test_past_and_replay_count_the_same_jobs_at_the_same_cost() -> None:
    untyped = real([past("a", gpus={"": 4}, run_s=1000.0)], 0.0)
    elsewhere = real([past("a", 4, run_s=1000.0, partition="old")], 0.0)
    found = simulate(experiment(*untyped, *elsewhere, end_s=BEGIN_S + 2000), processes=1)
    assert found.self_check is not None
    assert found.self_check.utilisation_of_history == pytest.approx(0.25)
    assert found.self_check.utilisation == pytest.approx(0.25, abs=0.001)


def test_jobs_that_never_start_in_the_replay_are_counted() -> None:
    def really(*job: object, **more: object) -> HistoryJob:
        one = past(*job, **more)  # type: ignore[arg-type]
        return replace(one, started_s=one.submit_s)

    jobs = (
        really("a", 4, 0, 9e6),
        really("a", 4, 10, 9e6),
        really("a", 4, 20),  # No room is left for this one.
        past("a", 4, 30),  # Nor for this one, which did not start in the past either.
        really("b", 1, 40),  # Has no quota: with Slicewise it is refused.
    )
    alone = simulate(experiment(*jobs, tail_s=600.0), processes=1).self_check
    assert alone is not None
    assert (alone.jobs, alone.never_started) == (2, 2)
    with_us = experiment(*jobs, present=slicewise(tenants(a=8)), tail_s=600.0)
    found = simulate(with_us, processes=1).self_check
    assert found is not None
    assert (found.jobs, found.never_started) == (2, 2)


def test_a_history_without_starts_has_no_self_check() -> None:
    found = simulate(experiment(*FOUR_DAYS), processes=1)
    assert found.self_check is None
    assert found.unchecked == "This history does not say when its jobs really started"


def test_without_a_job_to_compare_it_is_said_why() -> None:
    started = past("a", 4, 20)
    full = (past("a", 4, 0, 9e6), past("a", 4, 10, 9e6), *real([started]))
    found = simulate(experiment(*full, tail_s=600.0), processes=1)
    assert found.self_check is None
    assert found.unchecked.startswith("None of the jobs that really started")
    only = (past("a", 1, 0), *real([past("a", 999, 20)]))
    found = simulate(experiment(*only), processes=1)
    assert found.unchecked.startswith("No job that came in this time really started")
    checked = simulate(experiment(*real(FOUR_DAYS)), processes=1)
    assert (checked.self_check is None, checked.unchecked) == (False, "")


def test_jobs_of_which_none_can_be_replayed_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="1 job was left out: no nodes") as error:
        simulate(experiment(past("a", 999, 0)), processes=1)
    assert error.value.refusal.code == "SW-USAGE"


def test_only_jobs_between_start_and_end_count() -> None:
    found = simulate(
        experiment(*FOUR_DAYS, start_s=BEGIN_S + 9000, end_s=BEGIN_S + 27_000), processes=1
    )
    assert found.present.jobs == 2


def test_an_empty_history_gives_empty_figures() -> None:
    found = simulate(experiment(), processes=1).present
    assert (found.jobs, found.utilisation, found.wait_mean_s, found.jain) == (0, 0.0, 0.0, 1.0)


def test_notes_say_what_was_left_out_and_refused() -> None:
    jobs = (past("a"), past("a", 9), past("b", 1, 5), past("a", partition="old"))
    found = simulate(experiment(*jobs, changed=slicewise(tenants(a=4))), processes=1)
    assert found.changed is not None
    assert (found.present.refused, found.changed.refused) == (0, 1)
    assert (found.present.jobs, found.changed.jobs) == (2, 1)
    text = "\n".join(found.notes)
    assert "1 job was left out: their partition is not in the cluster." in text
    assert "1 job was left out: no nodes of their partition" in text
    assert "Slicewise: 1 job was refused (SW-QUOTA-NONE), of b." in text


def test_notes_say_by_how_much_quotas_exceed_the_cluster() -> None:
    gpus = sum(node.gpus["a100"] for node in experiment().cluster.nodes)
    plans = [slicewise(tenants(a=gpus + more)) for more in (0, 2)]
    fitting, over = (simulate(experiment(past("a"), changed=one), processes=1) for one in plans)
    assert "guarantee" not in "\n".join(fitting.notes)
    words = f"quotas guarantee {7 * gpus + 14} slices, 14 slices more than there are"
    assert f"Slicewise: {words} (SW-QUOTA-CAPACITY)" in "\n".join(over.notes)


def test_the_first_part_is_warmed_up_by_what_came_before() -> None:
    """It is as full as it was, and knows what was used; without earlier jobs that is said."""
    before = replace(past("a", 4, -9000.0, 7000.0), started_s=BEGIN_S - 9000.0)
    blocking = past("b", 4, -600.0, 3600.0), past("b", 4, -600.0, 3600.0)
    one = experiment(
        *(before, *blocking, past("a", 4)),
        start_s=BEGIN_S,
        end_s=BEGIN_S + 600,
        warm_up_s=1000.0,
    )
    cold = simulate(one, processes=1)
    warm = simulate(replace(one, known_from_s=BEGIN_S - 2000), processes=1)
    assert (cold.present.jobs, warm.present.jobs) == (1, 1)
    assert cold.present.wait_mean_s < 60 < warm.present.wait_mean_s
    no_warm_up, no_use = "it has no warm-up", "no runs from before"
    assert [no_warm_up in "".join(found.notes) for found in (cold, warm)] == [True, False]
    assert not [note for note in (*cold.notes, *warm.notes) if no_use in note]
    unused = replace(one, jobs=one.jobs[1:], known_from_s=BEGIN_S - 360)
    assert "it has 0.1 h of warm-up" in "".join(simulate(unused, processes=1).notes)
    # By Slurm alone nothing follows past use here.
    for plan, is_said in ((ALONE, False), (slicewise(tenants(a=4, b=4)), True)):
        text = "".join(simulate(replace(unused, present=plan), processes=1).notes)
        assert (no_use in text) is is_said


def test_guarantees_follow_the_calendar() -> None:
    policy = tenants(a=4)
    window = Window(1, "a", WindowKind.NOMINAL, Millislices(GPU), first_s=1000, last_s=2000)
    found = guarantees(slicewise(policy, window), 0.0, 5000.0)
    assert [(one.since_s, one.millislices["a"]) for one in found] == [
        (0.0, 4 * GPU),
        (1000.0, GPU),
        (2000.0, 4 * GPU),
    ]
    assert guarantees(None, 0.0, 1.0) == ()


def test_a_limit_on_a_model_bounds_what_is_owed_of_a_type() -> None:
    plan = slicewise(tenants(a=4))
    (kind, model), *_ = plan.settings.models.items()
    quota = replace(plan.tenants["a"].quota, type_nominals={kind: 3}, model_limits={model: GPU})
    limited = replace(plan, tenants={"a": replace(plan.tenants["a"], quota=quota)})
    (one,) = guarantees(limited, 0.0, 5000.0)
    assert one.types == {"a": {kind: GPU // plan.settings.costs[kind]}}
