"""Messages about what owners order for their services beside the scripts."""

from typing import Literal

from pydantic import Field

from slicewise.cluster.rpc.message import Asks, DoneAnswer, Message, Request


class ServiceOrder(Message):
    """What a service's owner ordered beside its script; kept in the ledger's database.

    Attributes:
        min_replicas, max_replicas: bounds in place of the script's, until taken back; None is the
            script's.
        restart_s: Unix seconds; replicas that started before are replaced without a gap.
        delete_s: Unix seconds of the order to end: no new request is taken, and those in flight
            finish.
    """

    min_replicas: int | None = None
    max_replicas: int | None = None
    restart_s: float | None = None
    delete_s: float | None = None


NO_ORDER = ServiceOrder()


class OrderRequest(Request, Asks[DoneAnswer], post="service-order"):
    """A service's owner, root or SlurmUser orders what is to hold beside its script.

    ``scale`` sets both bounds (None: the script's again). ``restart``: replace every replica.
    ``end``: finish what is in flight, then cancel.
    """

    array_job_id: int
    what: Literal["scale", "restart", "end"]
    min_replicas: int | None = Field(None, ge=0)
    max_replicas: int | None = Field(None, ge=1)
