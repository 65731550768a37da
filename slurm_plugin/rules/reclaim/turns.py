"""Chooses the replicas of tenants beyond their shares to drain for the job whose turn it is."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.units import slices_words
from slicewise.slurm_plugin.rules.quota.jobs import WaitingJob
from slicewise.slurm_plugin.rules.reclaim.victims import Reclaim, ReclaimInput, reclaim

_NONE: Mapping[str, int] = {}


@dataclass(frozen=True)
class Turn:
    """A job that comes first, and that can't start before other runs have ended.

    Attributes:
        job: the job, of which one task is to start.
        nodes: nodes where free instances are kept for the job, and where runs end for it; empty for
            a single instance, which may be on any node.
        quota: millislices that tenants beyond their shares give up so that the job has quota.
    """

    job: WaitingJob
    nodes: tuple[str, ...] = ()
    quota: Mapping[str, int] = field(default_factory=dict, hash=False)


def runs_to_end(
    reclaim_input: ReclaimInput,
    turn: Turn | None,
    over: Mapping[str, int],
    free: Mapping[str, Mapping[str, int]],
) -> Reclaim:
    """The replicas to drain for lenders, and those to drain for the turn besides.

    None are drained for a turn while a lender that takes something back waits for GPUs of the same
    types. The other parameters are those of ``reclaim_for``.
    """
    choice = reclaim(reclaim_input)
    kinds = {gres_type for job in reclaim_input.wanting for gres_type, _ in job.shape}
    if turn is None or any(gres_type in kinds for gres_type, _ in turn.job.shape):
        return choice
    # What runs free that end for lenders anyway counts for the turn, too.
    ends = choice.victims.keys() | choice.requeues.keys()
    going = replace(reclaim_input, leaving=reclaim_input.leaving | ends)
    for_turn = reclaim_for(turn, going, over, free)
    return replace(choice, victims={**for_turn.victims, **choice.victims}) if for_turn else choice


def reclaim_for(
    turn: Turn,
    reclaim_input: ReclaimInput,
    over: Mapping[str, int],
    free: Mapping[str, Mapping[str, int]],
) -> Reclaim | None:
    """The smallest set of replicas whose end lets the job of that turn start.

    The job starts on the turn's nodes, if it has any. Replicas are only of tenants in ``over``:
    millislices that tenants hold beyond their guaranteed quotas and what is lent to them. None if
    replicas alone make no room: other jobs on borrowed quota run to their end. ``free`` are the
    instances that no job holds, less what guaranteed jobs are about to take (``Waits``).
    """
    job = turn.job
    running = for_turns(reclaim_input, over).running
    if turn.nodes:
        running = tuple(replace(run, instances=_there(turn, run.instances)) for run in running)
    then = replace(reclaim_input, wanting=(job,), running=running, free=_there(turn, free))
    if not _might_start(job, then):
        return None
    choice = reclaim(replace(then, recalled=over, shrink=turn.quota))
    given: Counter[str] = Counter()
    for run in running:
        if run.run in reclaim_input.leaving or run.run in choice.victims:
            given[run.tenant] += run.cost_millislices
    if choice.missing or any(given[name] < amount for name, amount in turn.quota.items()):
        return None
    words = f"{job.tenant} has its turn of {slices_words(job.cost_millislices)}: job "
    words += f"{job.job_id} has waited longest"
    return replace(choice, victims=dict.fromkeys(choice.victims, words), ready={})


def _might_start(job: WaitingJob, reclaim_input: ReclaimInput) -> bool:
    """Whether the job would have enough nodes if all runs ended: most often there are none."""
    beside: dict[str, Counter[str]] = {}
    for run in reclaim_input.running:
        for node, gpus in run.instances.items():
            beside.setdefault(node, Counter()).update(gpus)
    left = job.nodes
    for node in reclaim_input.free.keys() | beside.keys():
        free, more = reclaim_input.free.get(node, _NONE), beside.get(node, _NONE)
        if all(
            free.get(gres_type, 0) + more.get(gres_type, 0) >= count
            for gres_type, count in job.shape
        ):
            left -= 1
            if not left:
                return True
    return False


def for_turns(reclaim_input: ReclaimInput, over: Mapping[str, int]) -> ReclaimInput:
    """``reclaim_input``, limited to runs that may end for a turn.

    These are runs of any tenant that are leaving already, and replicas of tenants in ``over``.
    """
    return replace(
        reclaim_input,
        running=tuple(
            run
            for run in reclaim_input.running
            if run.run in reclaim_input.leaving or (run.is_replica and run.tenant in over)
        ),
    )


def _there(turn: Turn, by_node: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
    """The entries of the turn's nodes; all entries if the turn has no nodes."""
    if not turn.nodes:
        return by_node
    return {node: by_node[node] for node in turn.nodes if node in by_node}
