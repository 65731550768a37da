"""Pages of the ledger's journals: runs of rebalancing, and repartitions of GPUs."""

from collections.abc import Sequence

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.rpc.journal_messages import (
    PlacedInstance,
    RebalanceDone,
    RebalancesAnswer,
    RebalancesRequest,
    RebalanceStepDone,
    RepartitionDone,
    RepartitionsAnswer,
    RepartitionsRequest,
    RepartitionStepDone,
)
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.common.rebalance_steps import RebalanceRun, StepRecord
from slicewise.slurm_plugin.rules.mig.steps import Repartition, RepartitionStepRecord

_PAGE_ENTRIES = 50
_LINES = 20
"""Most lines of what one step of rebalancing did; the first compilation of a site has thousands."""
_STEPS = 100
"""Most steps of a repartition: a stuck one gets more with each try."""


def rebalances(request: RebalancesRequest, ledger: Ledger) -> RebalancesAnswer:
    """Return one page of runs, the newest first."""
    found = ledger.rebalances.history(_PAGE_ENTRIES, request.before)
    return RebalancesAnswer(
        runs=tuple(map(_run, found)),
        more=found[-1].run_id if len(found) == _PAGE_ENTRIES else None,
    )


def repartitions(request: RepartitionsRequest, ledger: Ledger) -> RepartitionsAnswer:
    """Return one page of repartitions, the newest first."""
    found = ledger.repartitions.history(_PAGE_ENTRIES, request.before)
    return RepartitionsAnswer(
        repartitions=tuple(map(_repartition, found)),
        more=found[-1].repartition_id if len(found) == _PAGE_ENTRIES else None,
    )


def _run(run: RebalanceRun) -> RebalanceDone:
    return RebalanceDone(
        run_id=run.run_id,
        author=run.author,
        host=run.host,
        outcome=run.outcome,
        started_s=run.started_s,
        ended_s=run.ended_s,
        took_s=run.took_s,
        steps=tuple(map(_step, run.records)),
    )


def _step(record: StepRecord) -> RebalanceStepDone:
    planned = [str(one) for saw in record.saw.values() if isinstance(saw, list) for one in saw]
    return RebalanceStepDone(
        step=record.step,
        outcome=record.outcome,
        started_s=record.started_s,
        took_s=record.took_s,
        saw={name: count for name, count in record.saw.items() if isinstance(count, int)},
        did=record.did[:_LINES],
        did_lines=len(record.did),
        planned=tuple(planned[:_LINES]),
        planned_lines=len(planned),
        why=record.why,
    )


def _repartition(one: Repartition) -> RepartitionDone:
    planned, steps = one.planned, one.records[-_STEPS:]
    return RepartitionDone(
        repartition_id=one.repartition_id,
        node=planned.node,
        gpu=planned.gpu_uuid,
        before=_placed(planned.before),
        after=_placed(planned.after),
        moves=planned.moves,
        reason=planned.reason,
        gain_millislice_s=planned.gain_millislice_s,
        drained_millislice_s=planned.drained_millislice_s,
        author=one.author,
        state=one.state,
        error=one.error,
        started_s=one.started_s,
        ended_s=one.ended_s,
        took_s=one.took_s,
        steps=tuple(map(_repartition_step, steps)),
        earlier_steps=len(one.records) - len(steps),
    )


def _placed(layout: Sequence[Placement]) -> tuple[PlacedInstance, ...]:
    return tuple(
        PlacedInstance(profile=one.profile, start=one.start, size=one.size) for one in layout
    )


def _repartition_step(record: RepartitionStepRecord) -> RepartitionStepDone:
    return RepartitionStepDone(
        step=record.step,
        direction=record.direction,
        outcome=record.outcome,
        started_s=record.started_s,
        took_s=record.took_s,
        words=record.words,
    )
