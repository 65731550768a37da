"""Names of the QOS that Slicewise makes."""

from collections.abc import Iterable
from functools import lru_cache

from slicewise.cluster.language.jobs import JobView

QOS_PREFIX = "slicewise_"
"""Slicewise changes only QOS with this prefix."""
_BORROWED = "_borrowed"
_UNINSTALLED = QOS_PREFIX + "uninstalled_"
_NAMES = 1 << 14
"""So many QOS are remembered with their tenants. A round asks for each of its jobs."""

GATE_QOS = "slicewise_gate"
"""The QOS of the managed partitions: it lets only jobs in Slicewise's QOS through."""


def qos_name(tenant: str) -> str:
    """The tenant's own QOS: its guaranteed jobs run in it."""
    return QOS_PREFIX + tenant


def borrowed_qos(tenant: str) -> str:
    """The QOS of the tenant's jobs on borrowed quota."""
    return QOS_PREFIX + tenant + _BORROWED


def own_of(borrowed: str) -> str | None:
    """The own QOS of the tenant to which this borrowed QOS belongs; None for any other QOS."""
    return borrowed.removesuffix(_BORROWED) if is_borrowed(borrowed) else None


@lru_cache(maxsize=_NAMES)
def tenant_of(qos: str) -> str | None:
    """The tenant, maybe gone, whose own or borrowed QOS has this name; None for any other QOS."""
    own = own_of(qos) or qos
    is_a_tenants = own.startswith(QOS_PREFIX) and own != GATE_QOS and not says_uninstalled(own)
    return own.removeprefix(QOS_PREFIX) if is_a_tenants else None


def holder(account: str, qos: str) -> str:
    """The tenant, maybe gone, for which jobs of an account in a QOS count.

    That is the tenant whose QOS it is, as in Slurm's limits: an account without a quota inherits
    the QOS of the tenant above it. In any other QOS jobs count for their account.
    """
    return tenant_of(qos) or account


def holder_of(job: JobView) -> str:
    """The tenant, maybe gone, for which a job counts (``holder``)."""
    return holder(job.account, job.qos)


@lru_cache(maxsize=_NAMES)
def is_own(qos: str) -> bool:
    """Whether this is the own QOS of a tenant, maybe gone."""
    return not is_borrowed(qos) and tenant_of(qos) is not None


def uninstalled_qos(cluster: str) -> str:
    """The QOS that marks a cluster whose limits were removed while the ledger was not available.

    It limits nothing, and no account may use it.
    """
    return _UNINSTALLED + cluster.lower()


def is_marked(names: Iterable[str], cluster: str) -> bool:
    """Whether one of these QOS says that Slicewise was uninstalled from the cluster."""
    return uninstalled_qos(cluster) in names


def says_uninstalled(qos: str) -> bool:
    """Whether this is the ``uninstalled_qos`` of any cluster."""
    return qos.startswith(_UNINSTALLED)


@lru_cache(maxsize=_NAMES)
def is_ours(qos: str) -> bool:
    """Whether this QOS is Slicewise's."""
    return qos.startswith(QOS_PREFIX)


@lru_cache(maxsize=_NAMES)
def is_borrowed(qos: str) -> bool:
    """Whether jobs in this QOS run on borrowed quota."""
    return qos.startswith(QOS_PREFIX) and qos.endswith(_BORROWED)


def can_have_qos(tenant: str) -> bool:
    """Whether the tenant's own QOS would have a name that Slicewise uses for nothing else."""
    own = qos_name(tenant)
    return own != GATE_QOS and not own.endswith(_BORROWED) and not says_uninstalled(own)
