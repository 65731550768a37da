"""Reads the daemon's journals, page by page."""

from itertools import chain, islice

from slicewise.cluster.language.gpus.repartitions import Repartition
from slicewise.cluster.language.rebalances import RebalanceRun
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.journal_messages import RebalancesRequest, RepartitionsRequest
from slicewise.slurm_plugin.cli.common.answer_pages import pages


def newest_runs(daemon: DaemonClient, most: int) -> tuple[RebalanceRun, ...]:
    """Return the newest runs of rebalancing, of each step the first lines of what it did."""
    answers = pages(lambda before: daemon.call(RebalancesRequest(before=before)))
    return tuple(islice(chain.from_iterable(answer.runs for answer in answers), most))


def newest_repartitions(daemon: DaemonClient, most: int) -> tuple[Repartition, ...]:
    """Return the newest repartitions, of each the last steps."""
    answers = pages(lambda before: daemon.call(RepartitionsRequest(before=before)))
    return tuple(islice(chain.from_iterable(answer.repartitions for answer in answers), most))
