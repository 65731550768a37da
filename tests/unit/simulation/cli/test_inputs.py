"""Tests what is simulated: which plan a site has now, which of its jobs matter, what is said."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders.small_site import HOUR_S, JOBS, SETTINGS, START_S, TENANTS, site

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.simulation.cli.inputs import (
    SiteInputs,
    demand,
    present_plan,
    read_site,
    slicewise_plan,
    without_repartitions,
)
from slicewise.simulation.rules.history.jobs import JobHistory
from slicewise.simulation.rules.site.plans import SlicewisePlan, SlurmPlan
from slicewise.slurm_plugin.rules.accounting.ledger_view import UNINSTALLED_ID

QOS = Qos("normal", {"billing": 8000}, frozenset(), priority=7, preempt_mode="cancel")
ROWS = (
    Association("lab", "root", "", "", frozenset(), "", {}),
    Association("lab", "nlp", "", "root", frozenset(), "", {"gres/gpu": 4}, share=None),
    Association("lab", "nlp", "alice", "", frozenset(), "", {"gres/gpu": 1}),
)


def taken(mode: str, compiled_id: int = 1) -> SiteInputs:
    """A snapshot of the site in that mode."""
    of = site()
    daemon = SETTINGS.daemon.model_copy(update={"mode": mode})
    now = replace(
        of.now,
        taken_s=START_S,
        settings=SETTINGS.model_copy(update={"daemon": daemon}),
        ledger=replace(of.now.ledger, compiled_id=compiled_id),
        qos=(QOS,),
        associations=ROWS,
    )
    return replace(of, now=now)


def test_a_cluster_file_with_tenants_means_slicewise():
    plan = present_plan(site())
    assert isinstance(plan, SlicewisePlan)
    assert plan.tenants.keys() == {"vision", "nlp"}


def test_a_site_in_mode_enforce_decides_by_slicewise():
    assert isinstance(present_plan(taken("enforce")), SlicewisePlan)


@pytest.mark.parametrize(
    "of", [taken("observe"), taken("advise"), taken("enforce", UNINSTALLED_ID)]
)
def test_a_site_that_sets_no_limits_has_those_of_its_slurm(of: SiteInputs):
    plan = present_plan(of)
    assert isinstance(plan, SlurmPlan)
    normal = plan.qos["normal"]
    assert (normal.grp_tres, normal.priority) == ({"billing": 8000}, 7)
    assert not normal.preempt_requeues
    assert plan.accounts["nlp"].grp_tres == {"gres/gpu": 4}
    assert (plan.accounts["nlp"].parent, plan.accounts["nlp"].share) == ("root", 1)


@pytest.mark.parametrize("of", [taken("enforce"), taken("observe")])
def test_a_slicewise_plan_has_the_site_s_own_limits(of: SiteInputs):
    plan = slicewise_plan("changed", of, of.tenants)
    assert (plan.qos["normal"].grp_tres, plan.qos["normal"].priority) == ({"billing": 8000}, 7)
    assert plan.accounts["nlp"].grp_tres == {"gres/gpu": 4}


@pytest.mark.parametrize(("mode", "left"), [("enforce", {}), ("observe", {"gres/gpu:a100": 2})])
def test_limits_on_types_are_the_site_s_where_slicewise_sets_none(mode: str, left: object):
    of = taken(mode)
    nlp = replace(TENANTS["nlp"], quota=replace(TENANTS["nlp"].quota, type_limits={"a100": 2}))
    row = Association("lab", "nlp", "", "root", frozenset(), "", {"gres/gpu:a100": 2})
    now = replace(
        of.now,
        ledger=replace(of.now.ledger, tenants={"nlp": nlp}),
        associations=(row,),
    )
    plan = slicewise_plan("changed", replace(of, now=now), TENANTS)
    assert plan.accounts["nlp"].grp_tres == left


def test_only_preempt_qos_preempts_by_the_lists_of_qos():
    of = taken("observe")
    high = Qos("high", {}, frozenset({"normal"}))
    low = Qos("normal", {}, frozenset(), preempt_mode="requeue")
    for by_qos, preempts in ((True, {"normal"}), (False, set())):
        there = replace(of, now=replace(of.now, qos=(high, low), preempts_by_qos=by_qos))
        assert present_plan(there).qos["high"].preempts == preempts
        assert slicewise_plan("changed", there, TENANTS).qos["high"].preempts == preempts


@pytest.mark.parametrize(
    ("own", "of_cluster", "preempts", "requeues"),
    [
        ("cluster", "requeue", {"normal"}, True),
        ("cluster", "cancel", {"normal"}, False),
        ("cluster", "off", set(), False),
        ("cluster", "suspend,gang", set(), False),
        ("requeue", "cancel", {"normal"}, True),
        ("cancel", "requeue", {"normal"}, False),
    ],
)
def test_what_a_preemption_does_is_said_by_the_qos_or_else_by_slurm_conf(
    own: str, of_cluster: str, preempts: set[str], requeues: bool
):
    of = taken("observe")
    low = Qos("normal", {}, frozenset(), preempt_mode=own)
    now = replace(
        of.now, qos=(Qos("high", {}, frozenset({"normal"})), low), preempt_mode=of_cluster
    )
    found = present_plan(replace(of, now=now)).qos
    assert (found["high"].preempts, found["normal"].preempt_requeues) == (preempts, requeues)


def test_without_tenants_slurm_decides_alone():
    of = site()
    bare = replace(of.now, ledger=replace(of.now.ledger, tenants={}))
    assert isinstance(present_plan(replace(of, now=bare)), SlurmPlan)


def submitted(start_s: float | None, days: int | None, *jobs: object) -> set[int]:
    found = demand(
        site(JobHistory(jobs or JOBS)),  # type: ignore[arg-type]
        None,
        start_s=start_s,
        days=days,
        seed=1,
    )
    return {job.job_id for job in found.jobs}


def test_jobs_of_the_day_before_the_beginning_and_those_soon_after_the_end_are_there():
    unknown = (replace(job, started_s=None) for job in JOBS)
    found = submitted(START_S + 48 * HOUR_S, 1, *unknown)
    # One each 90 minutes: 32 came before, half of them in the day before, where those of the ten
    # hours before that may still have run.
    assert (min(found), max(found)) == (10, 63)


def test_what_ran_at_any_time_before_has_been_used():
    assert min(submitted(START_S + 48 * HOUR_S, 1)) == 0


def test_no_more_of_the_day_before_is_taken_than_the_history_has_whole():
    whole_s = START_S + 40 * HOUR_S
    past = JobHistory(JOBS, whole_from_s=whole_s)
    for start_s, known_s in ((START_S + 48 * HOUR_S, whole_s), (START_S + 90 * HOUR_S, whole_s)):
        found = demand(site(past), None, start_s=start_s, days=1, seed=1)
        assert (found.start_s, found.known_from_s) == (start_s, known_s)


def test_a_job_that_still_waited_at_the_beginning_is_there():
    late = replace(JOBS[1], started_s=START_S + 200 * HOUR_S)
    assert 1 in submitted(START_S + 48 * HOUR_S, 1, late, *JOBS[2:])


def test_all_jobs_count_unless_told():
    found = demand(site(), None, start_s=None, days=None, seed=1)
    assert (found.start_s, found.end_s) == (START_S, JOBS[-1].submit_s + 1)
    assert len(found.jobs) == len(JOBS)
    assert found.notes == ()


def test_jobs_count_once_the_history_has_all_that_came():
    since_s = START_S + 48 * HOUR_S
    for whole_s, begin_s in (
        (since_s, since_s),
        (START_S - 9.0, START_S),
        # All came together, and ended later.
        (JOBS[-1].submit_s + 1, START_S),
    ):
        history = JobHistory(JOBS, whole_from_s=whole_s)
        found = demand(site(history), None, start_s=None, days=None, seed=1)
        assert (found.start_s, found.end_s) == (begin_s, JOBS[-1].submit_s + 1)
    asked = demand(
        site(JobHistory(JOBS, whole_from_s=since_s)), None, start_s=START_S, days=1, seed=1
    )
    assert asked.start_s == START_S


def test_what_was_not_read_is_said():
    lines = {"they are twice there": 1, "they have steps": 5}
    history = JobHistory(JOBS, 3, "jobs.txt, line 7: no column 'End'", 2, lines, ("Taken for X.",))
    notes = demand(site(history), None, start_s=None, days=None, seed=1).notes
    assert notes[0].endswith("the first is jobs.txt, line 7: no column 'End'.")
    assert [note.split()[0] for note in notes] == ["3", "2", "1", "5", "Taken"]
    assert notes[2:4] == (
        "1 line of the history left out: they are twice there.",
        "5 lines of the history left out: they have steps.",
    )


CPU_JOBS = tuple(
    replace(job, gpus={}, cpus=cpus) for job, cpus in zip(JOBS, (96, 16, 3), strict=False)
)


def test_a_history_without_gpus_is_said_first_and_its_cpus_may_be_taken_for_gpus():
    history = JobHistory(CPU_JOBS, 3, "jobs.txt, line 7: bad")
    plain = demand(site(history), None, start_s=None, days=None, seed=1)
    assert plain.without_gpus == plain.notes[0]
    assert plain.notes[0].startswith("No job of the history asks for GPUs: quotas and lending")
    mapped = demand(site(history), None, start_s=None, days=None, seed=1, cpus_per_gpu=16)
    assert mapped.notes[0].endswith(
        "to ask for one for 16 CPUs that it had, and for no CPUs or memory."
    )
    # Two nodes of four GPUs.
    assert [(job.gpus, job.nodes, job.cpus) for job in mapped.jobs] == [
        ({"": 6}, 2, 0),
        ({"": 1}, 1, 0),
        ({"": 1}, 1, 0),
    ]


def test_that_no_job_that_counts_asks_for_gpus_is_said_too():
    jobs = (*CPU_JOBS, *JOBS[40:])
    found = demand(site(JobHistory(jobs)), None, start_s=START_S, days=1, seed=1)
    assert found.notes[0].startswith("No job that counts asks for GPUs")
    found = demand(site(JobHistory(jobs)), None, start_s=None, days=None, seed=1)
    assert (found.without_gpus, found.notes) == ("", ())


def test_cpus_are_taken_for_gpus_only_where_there_are_no_gpus_and_cpus():
    for jobs in ((*CPU_JOBS, JOBS[5]), tuple(replace(job, cpus=0) for job in CPU_JOBS)):
        with pytest.raises(InvalidInputError, match="SW-USAGE"):
            demand(site(JobHistory(jobs)), None, start_s=None, days=None, seed=1, cpus_per_gpu=8)


def test_a_cluster_file_is_read(tmp_path: Path):
    file = tmp_path / "cluster.toml"
    file.write_text(
        'name = "lab"\n[partitions.gpu]\n[[nodes]]\nnames = "gpu[1-2]"\ngpus = { a100 = 4 }\n'
        '[gpus."A100-80GB"]\nwhole = ["a100"]\n[tenants.vision]\nnominal = 28\n'
    )
    found = read_site(file)
    assert (len(found.cluster.nodes), found.history, found.zone) == (2, None, "UTC")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(InvalidInputError, match="SW-INPUT-FILE"):
        read_site(tmp_path / "none.zip")


def test_a_site_without_gpus_is_refused():
    of = site()
    nodes = tuple(replace(one, gpus={}) for one in of.cluster.nodes)
    none = replace(of, now=replace(of.now, cluster=replace(of.cluster, nodes=nodes)))
    with pytest.raises(InvalidInputError, match="The site has no GPUs"):
        demand(none, None, start_s=None, days=None, seed=1)


def test_gpus_may_stay_as_they_are_cut(tmp_path: Path):
    text = (Path(__file__).parents[4] / "etc" / "simulated-cluster.toml").read_text()
    file = tmp_path / "cluster.toml"
    file.write_text(f"{text}\n[repartition]\nallowed = true\n")
    of = read_site(file)
    assert any(node.boards for node in of.cluster.nodes)
    assert not any(node.boards for node in without_repartitions(of).cluster.nodes)
