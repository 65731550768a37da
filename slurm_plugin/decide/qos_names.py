"""Names of the QOS that Slicewise makes."""

QOS_PREFIX = "slicewise_"
"""Only QOS of this prefix are ever changed, and the shared one of before."""
_BORROWED = "_borrowed"
_UNINSTALLED = QOS_PREFIX + "uninstalled_"

GATE_QOS = "slicewise_gate"
"""Of the managed partitions: it lets no QOS through but ours."""

SHARED_QOS = "slicewise-borrowed"
"""Before each tenant had one of its own, that of all jobs on borrowed quota; as a wish of a job's
user it still says the same.
"""


def qos_name(tenant: str) -> str:
    """The tenant's own QOS: its guaranteed jobs run in it."""
    return QOS_PREFIX + tenant


def borrowed_qos(tenant: str) -> str:
    """The QOS of the tenant's jobs on borrowed quota."""
    return QOS_PREFIX + tenant + _BORROWED


def own_of(borrowed: str) -> str | None:
    """The own QOS of the tenant whose borrowed one it is; None if it is no such QOS."""
    is_a_tenants = is_borrowed(borrowed) and borrowed != SHARED_QOS
    return borrowed.removesuffix(_BORROWED) if is_a_tenants else None


def uninstalled_qos(cluster: str) -> str:
    """The QOS that says that the cluster's limits were taken out while the ledger was away. Nothing
    is limited by it, and nobody may use it.
    """
    return _UNINSTALLED + cluster.lower()


def says_uninstalled(qos: str) -> bool:
    """Whether it is such a QOS, of whichever cluster."""
    return qos.startswith(_UNINSTALLED)


def is_ours(qos: str) -> bool:
    """Whether that QOS is Slicewise's."""
    return qos.startswith(QOS_PREFIX) or qos == SHARED_QOS


def is_borrowed(qos: str) -> bool:
    """Whether jobs in it run on borrowed quota."""
    return qos == SHARED_QOS or (qos.startswith(QOS_PREFIX) and qos.endswith(_BORROWED))


def can_have_qos(tenant: str) -> bool:
    """Whether its own QOS would be none of Slicewise's others."""
    own = qos_name(tenant)
    return own != GATE_QOS and not own.endswith(_BORROWED) and not says_uninstalled(own)
