"""Whose turn it is: which replicas of tenants beyond their shares go for a job."""

from collections.abc import Mapping
from dataclasses import replace

from cluster.units import slices_words
from slurm_plugin.decide.reclaim.victims import NOBODY, Reclaim, Taking, Wanting, reclaim
from slurm_plugin.decide.whole_jobs import Turn


def who_goes(
    taking: Taking,
    turn: Turn | None,
    over: Mapping[str, int],
    free: Mapping[str, Mapping[str, int]],
) -> Reclaim:
    """Who goes for lenders, and beside them for the turn; the rest as ``reclaim_for``.

    Nobody goes for a turn while a lender that takes something back waits for GPUs of the same
    types.
    """
    found = reclaim(taking)
    kinds = {kind for one in taking.wanting for kind in one.instances}
    if turn is None or any(kind in kinds for kind, _ in turn.job.need.shape):
        return found
    # Who goes anyway comes free for it.
    going = replace(taking, leaving=taking.leaving | found.victims.keys())
    for_turn = reclaim_for(turn, going, over, free)
    return replace(found, victims={**for_turn.victims, **found.victims})


def reclaim_for(
    turn: Turn,
    taking: Taking,
    over: Mapping[str, int],
    free: Mapping[str, Mapping[str, int]],
) -> Reclaim:
    """The smallest set of replicas whose end lets the job of that turn start, on the turn's nodes.

    Only of tenants that are ``over``: millislices that they hold beyond what is theirs and lent to
    them. Nobody goes if replicas alone make no room for it: other jobs on borrowed quota run to
    their end. ``free`` is what guaranteed jobs leave of what nobody holds (``Waits``).
    """
    job = turn.job
    wanting = Wanting(
        job_id=job.need.key,
        tenant=turn.tenant,
        priority=0,
        cost_millislices=job.cost_millislices,
        instances=dict(job.need.shape),
        nodes=job.need.nodes,
    )
    # Who leaves already comes free for it, whoever that is.
    may_go = tuple(
        replace(run, instances=_there(turn, run.instances))
        for run in taking.running
        if run.job_id in taking.leaving or (run.is_replica and run.tenant in over)
    )
    found = reclaim(
        replace(
            taking,
            wanting=(wanting,),
            running=may_go,
            free=_there(turn, free),
            recalled=over,
            shrink={},
        )
    )
    if found.missing:
        return NOBODY
    words = f"{turn.tenant} has its turn of {slices_words(job.cost_millislices)}: job "
    words += f"{job.need.key} has waited longest"
    return replace(NOBODY, victims=dict.fromkeys(found.victims, words))


def _there(turn: Turn, by_node: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
    """On the turn's nodes; on all where any will do."""
    if not turn.nodes:
        return by_node
    return {node: by_node[node] for node in turn.nodes if node in by_node}
