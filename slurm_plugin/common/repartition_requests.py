"""What operators have the daemon change in the journal of repartitions."""

from slicewise.cluster.rpc.journal_messages import EntryId, RepartitionAnswer
from slicewise.cluster.rpc.message import Asks, Request
from slicewise.slurm_plugin.common.tenant_requests import Authored


class RepartitionCloseRequest(
    Request, Authored, Asks[RepartitionAnswer], post="repartition-close", asker="operators"
):
    """Closes a stuck repartition: later runs leave it alone. GPU and node stay as they are."""

    repartition_id: EntryId
