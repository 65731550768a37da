"""Reads the daemon's journals, page by page."""

from slicewise.cluster.language.gpus.repartitions import Repartition
from slicewise.cluster.language.rebalances import RebalanceRun
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.journal_messages import RebalancesRequest, RepartitionsRequest


def newest_runs(daemon: DaemonClient, most: int) -> tuple[RebalanceRun, ...]:
    """Return the newest runs of rebalancing, of each step the first lines of what it did."""
    answer = daemon.call(RebalancesRequest())
    runs = answer.runs
    while answer.more is not None and len(runs) < most:
        answer = daemon.call(RebalancesRequest(before=answer.more))
        runs += answer.runs
    return runs[:most]


def newest_repartitions(daemon: DaemonClient, most: int) -> tuple[Repartition, ...]:
    """Return the newest repartitions, of each the last steps."""
    answer = daemon.call(RepartitionsRequest())
    repartitions = answer.repartitions
    while answer.more is not None and len(repartitions) < most:
        answer = daemon.call(RepartitionsRequest(before=answer.more))
        repartitions += answer.repartitions
    return repartitions[:most]
