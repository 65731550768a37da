"""Whose turn it is: which replicas of tenants beyond their shares go for a job."""

from collections.abc import Mapping
from dataclasses import replace

from cluster.units import slices_words
from slurm_plugin.decide.reclaim.victims import NOBODY, Reclaim, Taking, Wanting, reclaim
from slurm_plugin.decide.whole_jobs import Turn


def reclaim_for(turn: Turn, taking: Taking, over: Mapping[str, int]) -> Reclaim:
    """The smallest set of replicas whose end lets the job of that turn start.

    Only of tenants that are ``over``: millislices that they hold beyond what is theirs and lent to
    them. Nobody goes if replicas alone make no room for it: other jobs on borrowed quota run to
    their end.
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
        run
        for run in taking.running
        if run.job_id in taking.leaving or (run.is_replica and run.tenant in over)
    )
    found = reclaim(replace(taking, wanting=(wanting,), running=may_go, recalled=over))
    if found.missing:
        return NOBODY
    words = f"{turn.tenant} has its turn of {slices_words(job.cost_millislices)}: job "
    words += f"{job.need.key} has waited longest"
    return replace(NOBODY, victims=dict.fromkeys(found.victims, words))
