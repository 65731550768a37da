"""Whose turn it is: which replicas of tenants beyond their shares go for a job."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.units import slices_words
from slurm_plugin.decide.reclaim.room import Need
from slurm_plugin.decide.reclaim.victims import Reclaim, Taking, Wanting, reclaim


@dataclass(frozen=True)
class Turn:
    """Whose turn it is: a job that comes first, and can't start before others have gone.

    Attributes:
        need: of one task; its key is the job's id.
        nodes: what is free there is kept for it, and others go there; none for a single instance,
            which may be on any.
        quota: millislices that tenants beyond their shares give up, so that it has quota.
    """

    tenant: str
    need: Need
    cost_millislices: int
    nodes: tuple[str, ...] = ()
    quota: Mapping[str, int] = field(default_factory=dict, hash=False)


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
    if turn is None or any(kind in kinds for kind, _ in turn.need.shape):
        return found
    # Who goes anyway comes free for it.
    going = replace(taking, leaving=taking.leaving | found.victims.keys())
    for_turn = reclaim_for(turn, going, over, free)
    return replace(found, victims={**for_turn.victims, **found.victims}) if for_turn else found


def reclaim_for(
    turn: Turn,
    taking: Taking,
    over: Mapping[str, int],
    free: Mapping[str, Mapping[str, int]],
) -> Reclaim | None:
    """The smallest set of replicas whose end lets the job of that turn start, on the turn's nodes
    if it has any.

    Only of tenants that are ``over``: millislices that they hold beyond what is theirs and lent to
    them. None if replicas alone make no room for it: other jobs on borrowed quota run to their end.
    ``free`` is what guaranteed jobs leave of what nobody holds (``Waits``).
    """
    need = turn.need
    wanting = Wanting(
        job_id=need.key,
        tenant=turn.tenant,
        priority=0,
        cost_millislices=turn.cost_millislices,
        instances=dict(need.shape),
        nodes=need.nodes,
    )
    running = for_turns(taking, over).running
    if turn.nodes:
        running = tuple(replace(run, instances=_there(turn, run.instances)) for run in running)
    there = replace(taking, wanting=(wanting,), running=running, free=_there(turn, free))
    found = reclaim(replace(there, recalled=over, shrink=turn.quota))
    given: Counter[str] = Counter()
    for run in running:
        if run.job_id in taking.leaving or run.job_id in found.victims:
            given[run.tenant] += run.cost_millislices
    if found.missing or any(given[name] < amount for name, amount in turn.quota.items()):
        return None
    words = f"{turn.tenant} has its turn of {slices_words(turn.cost_millislices)}: job "
    words += f"{need.key} has waited longest"
    return replace(found, victims=dict.fromkeys(found.victims, words), ready={})


def for_turns(taking: Taking, over: Mapping[str, int]) -> Taking:
    """With those runs only that leave already, whoever's they are, and replicas of tenants that are
    ``over``.
    """
    return replace(
        taking,
        running=tuple(
            run
            for run in taking.running
            if run.job_id in taking.leaving or (run.is_replica and run.tenant in over)
        ),
    )


def _there(turn: Turn, by_node: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
    """On the turn's nodes; on all where any will do."""
    if not turn.nodes:
        return by_node
    return {node: by_node[node] for node in turn.nodes if node in by_node}
