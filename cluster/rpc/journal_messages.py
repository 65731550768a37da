"""Messages about what Slicewise has done by itself: runs of rebalancing, repartitions of GPUs.

Both journals name tenants, their jobs and loans, so that only operators read them.
"""

from typing import Annotated

from pydantic import Field

from slicewise.cluster.language.gpus.repartitions import Repartition
from slicewise.cluster.language.rebalances import RebalanceRun
from slicewise.cluster.rpc.message import Answer, Asks, Request

EntryId = Annotated[int, Field(ge=1, le=2**62)]
"""Number of an entry in its journal."""


class RebalancesAnswer(Answer):
    """One page of runs. ``more`` is ``before`` of the next page; None after the last page."""

    runs: tuple[RebalanceRun, ...]
    more: int | None = None


class RebalancesRequest(Request, Asks[RebalancesAnswer], get="rebalances", asker="operators"):
    """Root or SlurmUser: asks for runs of rebalancing with their steps, the newest first.

    ``before`` is ``more`` of an earlier answer.
    """

    before: EntryId | None = None


class RebalanceAnswer(Answer):
    """One run, with all that its steps did."""

    run: RebalanceRun


class RebalanceRequest(Request, Asks[RebalanceAnswer], get="rebalance", asker="operators"):
    """Root or SlurmUser: asks for one run of rebalancing."""

    run_id: EntryId


class RepartitionsAnswer(Answer):
    """One page of them. ``more`` is ``before`` of the next page; None after the last page."""

    repartitions: tuple[Repartition, ...]
    more: int | None = None


class RepartitionsRequest(Request, Asks[RepartitionsAnswer], get="repartitions", asker="operators"):
    """Root or SlurmUser: asks for repartitions of GPUs with their steps, the newest first.

    ``before`` is ``more`` of an earlier answer.
    """

    before: EntryId | None = None


class RepartitionAnswer(Answer):
    """One repartition, with all its steps."""

    repartition: Repartition


class RepartitionRequest(Request, Asks[RepartitionAnswer], get="repartition", asker="operators"):
    """Root or SlurmUser: asks for one repartition of a GPU."""

    repartition_id: EntryId
