"""Tests that what stays classified from one look to the next changes no decision."""

from dataclasses import replace
from random import Random

from builders.ledger_parts import ledger_view_of
from builders.nodes import a_node
from builders.tenants import free_tenant, policy_of
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall
from slicewise.slurm_plugin.rules.round.round import plan
from slicewise.slurm_plugin.rules.round.world import QuotaRules, SlurmView, world

COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3000)}
RULES = QuotaRules(frozenset({"gpu"}), COSTS, {}, {}, grace_s=30, term_s=600, turn_s=1800)
STATES = (*(JobState.PENDING,) * 4, *(JobState.RUNNING,) * 3, JobState.COMPLETING, JobState.ENDED)
REASONS = (
    *("QOSGrpBilling", "Resources", "Priority", "QOSGrpGRES", "QOSGrpBillingRunMinutes"),
    *("BeginTime", "ReqNodeNotAvail", "JobHeldAdmin", "None"),
)


def drawn_job(draw: Random, number: int, now_s: int) -> JobView:
    """A plain job, an array's untouched tasks, or a component, in any state of its life."""
    account = draw.choice("abc")
    state = draw.choice(STATES)
    waits = state is JobState.PENDING
    return replace(
        job(number, account=account, tres={f"gres/gpu:{draw.choice([*COSTS])}": "1"}),
        job_id=number,
        array_job_id=number if number % 3 == 0 else None,
        untouched=frozenset(range(draw.randrange(1, 5)))
        if waits and number % 3 == 0
        else frozenset(),
        het_job_id=number - number % 2 if number % 5 == 0 else 0,
        qos=f"slicewise_{account}{draw.choice(('', '', '_borrowed'))}",
        state=state,
        reason=draw.choice(REASONS) if waits else "None",
        held=waits and draw.random() < 0.1,
        priority=draw.randrange(4),
        nodes=() if waits else (f"n{draw.randrange(3)}",),
        submit_s=now_s - 90,
        eligible_s=now_s - draw.randrange(90),
        start_s=None if waits else now_s - draw.randrange(90),
        time_limit_s=draw.choice((None, 600)),
        restarts=draw.randrange(2),
    )


def test_decisions_are_the_same_as_if_all_jobs_were_classified_anew() -> None:
    """While jobs, quotas, nodes, loans and the time change, together or alone."""
    draw = Random(11)  # noqa: S311 -- jobs, no secret
    now_s, jobs = 1_000_000, dict[int, JobView]()
    known = jobs_by_holder((), RULES.partitions, COSTS, {})
    nodes = (a_node("n0"),)
    policy: Policy = {}
    loans, recalls = tuple[Loan, ...](), tuple[Recall, ...]()
    lent = recalled = 0
    for _ in range(600):
        for number in draw.sample(range(1, 14), draw.randrange(3)):
            jobs[number] = drawn_job(draw, number, now_s)
        if draw.random() < 0.2 or not policy:
            policy = policy_of(*(free_tenant(name, 1000 * draw.randrange(12)) for name in "abc"))
        if draw.random() < 0.3:
            nodes = tuple(
                a_node(f"n{nth}", held=draw.randrange(3), gpus={"1g.10gb": 7, "3g.40gb": 1})
                for nth in range(draw.randrange(2, 5))
            )
        now_s += draw.randrange(90)
        seen = tuple(jobs.values())
        known = known.at_look(seen, RULES.partitions)
        ledger_view = ledger_view_of(
            moment(now_s, "UTC"), tenants=policy, loans=loans, recalls=recalls
        )
        borrow = (job for job in seen if job.state is JobState.RUNNING and is_borrowed(job.qos))
        view = SlurmView(
            seen, nodes, (), may_requeue=frozenset((job.job_id, job.start_s) for job in borrow)
        )
        views = view, replace(view, by_holder=known)
        anew, again = (world(ledger_view, view, RULES) for view in views)
        assert again == anew
        decided = plan(again)
        assert decided == plan(anew)
        loans, recalls = decided.loans, decided.recalls
        lent, recalled = lent + bool(decided.loans), recalled + bool(decided.recalls)
        assert again.allowed() == anew.allowed()
    assert lent > 100
    assert recalled > 0
