"""The ledger's journals, in pages and one by one: runs of rebalancing, repartitions of GPUs."""

from dataclasses import replace

from slicewise.cluster.language.gpus.repartitions import Repartition
from slicewise.cluster.language.rebalances import RebalanceRun, StepRecord
from slicewise.cluster.rpc.journal_messages import (
    RebalanceAnswer,
    RebalanceRequest,
    RebalancesAnswer,
    RebalancesRequest,
    RepartitionAnswer,
    RepartitionRequest,
    RepartitionsAnswer,
    RepartitionsRequest,
)
from slicewise.slurm_plugin.ledger.store import Ledger

_PAGE_ENTRIES = 50
_LINES = 20
"""Most lines of what one step of rebalancing did; the first compilation of a site has thousands."""
_STEPS = 100
"""Most steps of a repartition: a stuck one gets more with each try."""


def rebalances(request: RebalancesRequest, ledger: Ledger) -> RebalancesAnswer:
    """Return one page of runs, the newest first."""
    runs = ledger.rebalances.history(_PAGE_ENTRIES, request.before)
    return RebalancesAnswer(
        runs=tuple(map(_run, runs)),
        more=runs[-1].run_id if len(runs) == _PAGE_ENTRIES else None,
    )


def rebalance(request: RebalanceRequest, ledger: Ledger) -> RebalanceAnswer:
    """Return one run; raises InvalidInputError (SW-NAME-UNKNOWN) if there is none."""
    return RebalanceAnswer(run=ledger.rebalances.find(request.run_id))


def repartitions(request: RepartitionsRequest, ledger: Ledger) -> RepartitionsAnswer:
    """Return one page of repartitions, the newest first."""
    found = ledger.repartitions.history(_PAGE_ENTRIES, request.before)
    return RepartitionsAnswer(
        repartitions=tuple(map(_repartition, found)),
        more=found[-1].repartition_id if len(found) == _PAGE_ENTRIES else None,
    )


def repartition(request: RepartitionRequest, ledger: Ledger) -> RepartitionAnswer:
    """Return one repartition; raises InvalidInputError (SW-NAME-UNKNOWN) if there is none."""
    return RepartitionAnswer(repartition=ledger.repartitions.find(request.repartition_id))


def _run(run: RebalanceRun) -> RebalanceRun:
    return replace(run, steps=tuple(map(_step, run.steps)))


def _step(step: StepRecord) -> StepRecord:
    planned = {name: lines for name, lines in step.saw.items() if isinstance(lines, list)}
    return replace(
        step,
        saw={**step.saw, **{name: lines[:_LINES] for name, lines in planned.items()}},
        did=step.did[:_LINES],
        left_out=sum(len(lines[_LINES:]) for lines in (step.did, *planned.values())),
    )


def _repartition(repartition: Repartition) -> Repartition:
    steps = repartition.steps[-_STEPS:]
    return replace(repartition, steps=steps, earlier_steps=len(repartition.steps) - len(steps))
