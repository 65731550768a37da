"""What must hold in a world: always, once the faults are over, and at the end."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from model_slurm import PARTITION
from stand_ins.memory_ledger import balance
from stand_ins.slurm_database import COSTS

from fault_world.bounds import LATE_S
from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobTag, JobView
from slicewise.slurm_plugin.rules.accounting.types import Account, RunKey
from slicewise.slurm_plugin.rules.common.costs import run_cost
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos

if TYPE_CHECKING:
    from fault_world.launcher import AppliedService
    from fault_world.site_plan import Submitted
    from fault_world.world import World


def always(world: "World") -> list[str]:
    """What does not hold that must at any moment."""
    return [
        *world.trace.odd,
        # A change that slurmdbd makes long after another one was asked looks like somebody's hand.
        *(world.trace.by_hand if world.site.changed_late_s < 0 else ()),
        *(f"changed though not Slicewise's: {one}" for one in world.site.foreign),
        *_beyond_quota(world),
        *_too_high_limits(world),
        *(f"limits grow without a look at jobs: {one}" for one in world.site.blind),
        *_beyond_a_lease(world),
    ]


def _beyond_quota(world: "World") -> Iterator[str]:
    """Nobody holds more than its quota and all that it may ever borrow."""
    held: Counter[str] = Counter()
    for job in world.site.model.jobs:
        if job.state is JobState.RUNNING:
            held[job.account] += run_cost(job.gpus, COSTS)
    for name, tenant in world.plan.policy.items():
        quota = tenant.quota
        most = world.highest[name] + quota.borrowing_limit_millislices
        if held[name] > most:
            yield f"{name} holds {held[name]} of {most}"


def _too_high_limits(world: "World") -> Iterator[str]:
    """All limits together are no more than all quotas.

    But for a round after slurmdbd has made a change of limits long after it was asked: others may
    have grown meanwhile, since it did not show.
    """
    if world.clock.passed_s < world.site.changed_late_s + LATE_S:
        return
    total = sum(world.site.limits().values())
    most = sum(one.quota.nominal_millislices for one in world.plan.policy.values())
    if total > most:
        yield f"limits together are {total}, quotas {most}: {world.site.limits()}"


def _beyond_a_lease(world: "World") -> Iterator[str]:
    """No replica may run for longer than a lease from now, by Slurm's clock: limits are minutes.

    But for one that somebody released by hand: until it is put back it has its last run's limit.
    """
    now_s = world.site.model.now_s
    for one in world.services:
        for job in world.site.records(one.array):
            by_hand = (one.array, job.task_index) in world.exercises.by_hand
            if job.state is JobState.RUNNING and job.start_s is not None and not by_hand:
                left_s, lease_s = job.start_s + job.limit_s - now_s, one.service.spec.lease_s
                if left_s > lease_s + 60:
                    yield f"job {job.job_id} has {left_s:.0f} s left, and a lease of {lease_s} s"


def served(world: "World") -> list[str]:
    """What services still lack, once nothing fails any more: the slots that the launcher wants run,
    but for those that quota keeps back, and all others rest.

    A slot is gone for good where Slurm has forgotten its run before anybody brought it back.
    """
    gone = world.exercises.cancelled
    those = (one for one in world.services if one.array not in gone)
    return [words for one in those for words in _unserved(world, one)]


def _unserved(world: "World", one: "AppliedService") -> Iterator[str]:
    daemon, launcher, view = world.daemon, world.launcher, one.look(world.site)
    if view is None or daemon is None or launcher is None or not daemon.is_ready:
        yield from () if view is None else (f"service {one.array}: nobody is there",)
        return
    gone = sum(slot.state == "gone" and slot.job_id is None for slot in view.slots)
    running = {slot.index for slot in view.slots if slot.state == "running"}
    held = sum(slot.state == "held" for slot in view.slots)
    desired = launcher.desired(one.array)
    wanted = daemon.state.desired_slots.get(one.array, frozenset())
    asked = wanted if desired is None else desired.run
    kept = daemon.state.kept_back.get(one.array, frozenset())
    least = min(one.service.spec.min_replicas, one.service.spec.max_replicas - gone)
    is_idle = not one.gateway.requests.queue
    is_served = wanted == asked and running == wanted - kept
    if not is_served or len(running) + held + gone < len(view.slots):
        slots = [(slot.index, str(slot.state), slot.reason) for slot in view.slots]
        yield (
            f"service {one.array}: launcher wants {sorted(asked)}, daemon {sorted(wanted)} without"
            f" {sorted(kept)}: {slots}"
        )
    elif is_idle and len(running) != least:
        yield f"service {one.array} has {len(running)} replicas, needs {least}"


def is_due(world: "World", probe: "Submitted", lasting: Collection[int]) -> bool:
    """Whether a job of the tenant must start within the grace, if it comes now.

    So it is if the tenant holds and waits for no more than its quota with it, and if there is an
    instance that is free or that another one has only borrowed. ``lasting``: ids of jobs that run
    on until the grace is over; others may end, and make room for jobs that came before.
    """
    ((kind, count),) = probe.gpus.items()
    model = world.site.model
    held = 0
    taken: Counter[str] = Counter()
    for job in model.jobs:
        is_waiting = job.state is JobState.PENDING and not job.held
        if job.account == probe.account and (is_waiting or job.state in ALLOTTED):
            held += run_cost(job.gpus, COSTS)
        if job.state in ALLOTTED and job.qos != borrowed_qos(job.account):
            taken.update(dict.fromkeys(job.nodes, job.gpus.get(kind, 0)))
    if any(_comes_first(world, job, kind, lasting) for job in model.jobs):
        return False
    quota = world.plan.policy[probe.account].quota.nominal_millislices
    room = max(node.gpus.get(kind, 0) - taken[node.name] for node in model.nodes)
    return held + run_cost(probe.gpus, COSTS) <= quota and room >= count


def _comes_first(world: "World", job: JobView, kind: str, lasting: Collection[int]) -> bool:
    """Whether a job waits for such an instance by right of its own tenant, or will soon."""
    if job.state is not JobState.PENDING or job.held or kind not in job.gpus:
        return False
    held = sum(
        run_cost(one.gpus, COSTS)
        for one in world.site.model.jobs
        if one.account == job.account and one.state in ALLOTTED and one.job_id in lasting
    )
    quota = world.plan.policy[job.account].quota.nominal_millislices
    return held + run_cost(job.gpus, COSTS) <= quota


def has_started(world: "World", job_id: int) -> bool:
    ended = any(one.run.job_id == job_id for one in world.site.runs if one.run.start_s is not None)
    return ended or any(
        job.job_id == job_id and job.state is not JobState.PENDING for job in world.site.model.jobs
    )


def settled(world: "World") -> list[str]:
    """What is still to come, once services are cancelled, too."""
    daemon = world.daemon
    refused = daemon.state.refusals if daemon is not None and daemon.is_ready else {}
    jobs = [job for job in world.site.model.jobs if job.state is not JobState.ENDED]
    waits = (job for job in jobs if job.job_id not in refused and not _waits_for_more(world, job))
    return [_shown(job) for job in waits] or list(_books(world))


def _waits_for_more(world: "World", job: JobView) -> bool:
    """Whether the job stays in its tenant's own QOS, whose quota has become too small for it."""
    tag = JobTag.find(job.admin_comment)
    is_fixed = tag is not None and not tag.is_flexible and not tag.is_undecided
    waits = job.state is JobState.PENDING and is_fixed
    nominal = world.plan.policy[job.account].quota.nominal_millislices
    return waits and run_cost(job.gpus, COSTS) > nominal


def _shown(job: JobView) -> str:
    return f"job {job.task} of {job.account} in {job.qos} is {job.state} ({job.reason})"


def _books(world: "World") -> Iterator[str]:
    """The books say of each run what it held, from its start to its end, to the second."""
    booked = world.ledger.booked
    for one in world.site.runs:
        if one.run.start_s is None or one.run.partition != PARTITION:
            continue
        key = RunKey(world.plan.cluster.name, one.run.job_id, int(one.run.start_s))
        cost = run_cost(one.run.gpus, COSTS)
        due = cost * (int(one.run.end_s) - int(one.run.start_s))
        transfers = booked[key].transfers if key in booked else ()
        used = balance(transfers, Account.USED)
        open_ = balance(transfers, Account.RESERVED)
        if (used, open_) != (due, 0):
            yield f"run {key.job_id} of {key.start_s} used {due}, booked {used}, open {open_}"


def at_the_end(world: "World") -> list[str]:
    """What does not hold once all is settled."""
    runs = {
        RunKey(world.plan.cluster.name, one.run.job_id, int(one.run.start_s))
        for one in world.site.runs
        if one.run.start_s is not None
    }
    verified = world.ledger.verify()
    return [
        *(f"{key} is booked and never ran" for key in world.ledger.booked.keys() - runs),
        *([f"the books are off by {off}"] if (off := verified.imbalance) else []),
    ]
