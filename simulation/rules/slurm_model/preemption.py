"""Preemption by QOS: which running jobs end so that a waiting one can start.

As select/cons_tres does: candidates are removed one after another until the job would fit, those of
the lowest QOS priority and of the fewest nodes first, or with preempt_youngest_first those that
started last. Then the last of them is tried first, and after it those that hold most of the nodes
that the job would get; and so once more (preempt_reorder_count is 1). Of those that are removed in
the end only such go as hold the job's nodes. Left out are GraceTime, which keeps every other job
that preempts waiting for the same victim, suspending, preempt_strict_order and other counts.
"""

from collections.abc import Iterable
from math import inf

from slicewise.simulation.rules.slurm_model.job_records import JobRecord
from slicewise.simulation.rules.slurm_model.model_state import ModelState
from slicewise.simulation.rules.slurm_model.nodes import as_mask, bits

MESSAGE_TIMEOUT_S = 10.0
"""MessageTimeout: for KillWait and that after a preemption, the job makes no others end."""
_REORDERS = 2
"""How often candidates get another order: as long as that was done no more often than
preempt_reorder_count."""


def preempt(state: ModelState, record: JobRecord, mask: int) -> bool:
    """End what must end on these nodes so that the job can start; return whether anything does.

    The job starts in a later run, once they have completed.
    """
    if not state.limits.of_qos(record.qos).preempts:
        return False
    patience_s = state.scheduling.kill_wait_s + MESSAGE_TIMEOUT_S
    again_s = -inf if record.preempting_s is None else record.preempting_s + patience_s
    if state.now_s < again_s:
        state.wake_s = min(state.wake_s, again_s)
        return False
    job_records = victims(state, record, mask) if may_preempt(state, record, mask) else ()
    if not job_records:
        state.wake_s = min(state.wake_s, _next_exemption_s(state, record))
        return False
    record.preempting_s = state.now_s
    for job_record in job_records:
        requeues = (
            state.limits.of_qos(job_record.qos).preempt_requeues and job_record.request.requeues
        )
        state.stop(job_record, "PREEMPTED", returns=requeues)
    return True


def may_preempt(state: ModelState, record: JobRecord, mask: int) -> bool:
    """Whether enough of these nodes might have room if all that may be preempted were gone.

    It is wrong where the types of GPUs, CPUs or memory forbid that, and counts who is exempt.
    """
    others = state.limits.of_qos(record.qos).preempts
    if not others:
        return False
    found = state.nodes.free_without(record.shape, others) & mask
    return found.bit_count() >= record.request.nodes


def victims(state: ModelState, record: JobRecord, mask: int) -> tuple[JobRecord, ...]:
    """The jobs that would end for this one; () if even all of them would not make room."""
    candidates = _candidates(state, record, mask)
    room = _would_fit(state, record, mask, candidates)
    if room is None:
        return ()
    for _ in range(min(_REORDERS, len(candidates) - 1)):
        candidates = _reordered(candidates, *room)
        room = _would_fit(state, record, mask, candidates) or room
    nodes, gone = room
    return tuple(candidate for candidate in candidates[:gone] if as_mask(candidate.nodes) & nodes)


def _reordered(candidates: list[JobRecord], nodes: int, gone: int) -> list[JobRecord]:
    """The last that had to go, the others by how many of the nodes they hold, those that stay."""
    others = candidates[: gone - 1]
    others.sort(key=lambda job_record: -(as_mask(job_record.nodes) & nodes).bit_count())
    return [candidates[gone - 1], *others, *candidates[gone:]]


def _next_exemption_s(state: ModelState, record: JobRecord) -> float:
    """When the next job that this one might preempt has run long enough; inf if none does."""
    limits = state.limits
    ends = (
        (job_record.start_s or 0.0) + limits.of_qos(name).preempt_exempt_s
        for name in limits.of_qos(record.qos).preempts
        for job_record in state.running.get(name, {}).values()
    )
    return min((end for end in ends if end > state.now_s), default=inf)


def _candidates(state: ModelState, record: JobRecord, mask: int) -> list[JobRecord]:
    """The jobs that may be preempted on these nodes, in the order in which they would go."""
    by_age = state.scheduling.preempts_youngest_first
    victims: list[tuple[float, int, int, JobRecord]] = []
    for name in state.limits.of_qos(record.qos).preempts:
        limits = state.limits.of_qos(name)
        until_s = state.now_s - limits.preempt_exempt_s
        for victim in state.running.get(name, {}).values():
            start_s = victim.start_s or 0.0
            if start_s <= until_s and as_mask(victim.nodes) & mask:
                order = (-start_s, 0) if by_age else (limits.priority, len(victim.nodes))
                victims.append((*order, victim.job_id, victim))
    return [victim[-1] for victim in sorted(victims)]


def _would_fit(
    state: ModelState, record: JobRecord, mask: int, candidates: Iterable[JobRecord]
) -> tuple[int, int] | None:
    """Nodes with room for the job once the first so many candidates are gone, and how many."""
    nodes, shape, count = state.nodes, record.shape, record.request.nodes
    fits = nodes.free_now(shape) & mask
    gone: dict[int, dict[str, int]] = {}
    others: dict[int, tuple[int, int]] = {}
    for number, candidate in enumerate(candidates, 1):
        for owner, kind, amount, _ in candidate.held_gpus:
            more = gone.setdefault(nodes.index[owner.name], {})
            more[kind] = more.get(kind, 0) + amount
        for i in candidate.nodes:
            cpus, memory = others.get(i, (0, 0))
            others[i] = cpus, memory = (
                cpus + candidate.shape.cpus,
                memory + candidate.shape.memory_mib,
            )
            node = nodes.nodes[i]
            if (
                mask >> i & 1
                and node.takes_jobs
                and node.fits_beside(shape, gone.get(i, {}), cpus, memory)
            ):
                fits |= 1 << i
        if fits.bit_count() >= count:
            free = nodes.free_now(shape) & fits
            return _of(free, fits, count), number
    return None


def _of(free: int, fits: int, count: int) -> int:
    """As many of the nodes that fit, those first on which nobody must end."""
    chosen = [*bits(free), *bits(fits & ~free)][:count]
    return as_mask(chosen)
