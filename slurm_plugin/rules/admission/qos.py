"""Decides in which of its tenant's QOS a submission waits: on guaranteed or borrowed quota."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import slices_text, slices_words
from slicewise.slurm_plugin.rules.admission.snapshot import Recent, Snapshot
from slicewise.slurm_plugin.rules.common.qos_names import (
    borrowed_qos,
    is_borrowed,
    is_ours,
    qos_name,
)


@dataclass(frozen=True)
class QosChoice:
    """The QOS in which a job waits.

    Attributes:
        is_flexible: whether it may be moved between the two QOS later.
        notices: messages on what its user might not expect.
    """

    qos: str
    is_flexible: bool
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class QosRequest:
    """What determines where one task waits.

    Attributes:
        cost_millislices: cost of the task.
        qos: the QOS that its user named; "" if none.
        may_move: whether it could be requeued and is not a slot of a service.
        instances: GPU instances of the task, by type.
        is_slot: whether it is a slot of a service, which may go to the borrowed QOS once released.
        is_whole: whether a part of its cost is of GPUs that it does not ask for, but gets with
            whole nodes.
    """

    tenant: str
    cost_millislices: int
    qos: str
    may_move: bool
    instances: Mapping[str, int] = field(default_factory=dict, hash=False)
    is_slot: bool = False
    is_whole: bool = False


def choose_qos(wants: QosRequest, snapshot: Snapshot, recent: Recent) -> QosChoice:
    """Choose the QOS: the one that the user named, or by what is left of the guarantee.

    Raises InvalidInputError: SW-QOS, SW-QUOTA-BORROW, SW-QUOTA-EXCEEDED.
    """
    own_qos = qos_name(wants.tenant)
    if wants.qos == borrowed_qos(wants.tenant):
        _require_may_borrow(wants.tenant, snapshot)
        _check_cost(wants, snapshot, borrows=True)
        return QosChoice(borrowed_qos(wants.tenant), is_flexible=False)
    if wants.qos == own_qos or not wants.may_move:
        notices = () if wants.qos in {"", own_qos} else _replaced(wants)
        _check_cost(wants, snapshot, borrows=False)
        return QosChoice(own_qos, is_flexible=False, notices=notices)
    return _placed(wants, snapshot, recent)


def _placed(wants: QosRequest, snapshot: Snapshot, recent: Recent) -> QosChoice:
    """Guaranteed while there is room, else borrowed if allowed."""
    notices = _replaced(wants) if wants.qos else ()
    may_borrow = snapshot.borrowing_limits.get(wants.tenant, 0) > 0
    _check_cost(wants, snapshot, borrows=may_borrow)
    if may_borrow and _is_borrowed(wants, snapshot, recent):
        told = _told_of_borrowing(wants, snapshot)
        return QosChoice(borrowed_qos(wants.tenant), is_flexible=True, notices=(*notices, told))
    return QosChoice(qos_name(wants.tenant), is_flexible=True, notices=notices)


def words(where: QosChoice, wants: QosRequest, snapshot: Snapshot, recent: Recent) -> str:
    """Explain why the task waits there, in words and numbers."""
    if is_borrowed(where.qos):
        return _borrowed(wants, snapshot, recent)
    return _guaranteed(wants, snapshot, recent)


_BORROWED = "It runs on borrowed quota: it may be requeued when its owner needs that back."


def _told_of_borrowing(wants: QosRequest, snapshot: Snapshot) -> str:
    """A task that no guarantee of its tenant can hold may wait long: others must lend the rest."""
    own = _highest_own(wants.tenant, snapshot)
    if gres_type := _never_guaranteed(wants, snapshot):
        return (
            f"One task has {wants.instances[gres_type]} instances of {gres_type}, {wants.tenant!r}"
            f" is guaranteed {snapshot.guaranteed_types[wants.tenant][gres_type]}: it runs on"
            " borrowed quota only, and may be requeued when others need them."
        )
    if wants.cost_millislices <= own:
        return _BORROWED
    return (
        f"One task costs {slices_words(wants.cost_millislices)}, {wants.tenant!r} is guaranteed "
        f"{slices_text(own)}: it starts only while others lend the rest, and may be requeued when "
        "they need that back."
    )


def _is_borrowed(wants: QosRequest, snapshot: Snapshot, recent: Recent) -> bool:
    own = snapshot.quotas[wants.tenant]
    is_beyond = _type_beyond(wants, snapshot, recent) is not None
    return is_beyond or _held_in_own(wants, snapshot, recent) + wants.cost_millislices > own


def _type_beyond(wants: QosRequest, snapshot: Snapshot, recent: Recent) -> str | None:
    """The type of which the task wants more than the guarantee has left; None if there is none."""
    tenant = wants.tenant
    used, admitted = (
        of.get(tenant, {}) for of in (snapshot.guaranteed_instances, recent.guaranteed_instances)
    )
    for gres_type, most in snapshot.guaranteed_types.get(tenant, {}).items():
        asked = wants.instances.get(gres_type, 0)
        if asked and used.get(gres_type, 0) + admitted.get(gres_type, 0) + asked > most:
            return gres_type
    return None


def _never_guaranteed(wants: QosRequest, snapshot: Snapshot) -> str | None:
    """The type of which the task wants more than the whole guarantee covers; None if none."""
    types = snapshot.guaranteed_types.get(wants.tenant, {})
    return next(
        (gres_type for gres_type, n in wants.instances.items() if n > types.get(gres_type, n)), None
    )


def _highest_own(tenant: str, snapshot: Snapshot) -> int:
    """What is guaranteed to the tenant, at the time of the calendar at which that is most."""
    own = snapshot.quotas[tenant]
    return max(own, snapshot.highest_quotas.get(tenant, own))


def _held_in_own(wants: QosRequest, snapshot: Snapshot, recent: Recent) -> int:
    tenant = wants.tenant
    return snapshot.guaranteed_used.get(tenant, 0) + recent.guaranteed.get(tenant, 0)


def _used(wants: QosRequest, snapshot: Snapshot, recent: Recent) -> int:
    return snapshot.used.get(wants.tenant, 0) + recent.used.get(wants.tenant, 0)


def _replaced(wants: QosRequest) -> tuple[str, ...]:
    if is_ours(wants.qos):
        raise InvalidInputError(
            Code.QOS,
            f"QOS {wants.qos} is another tenant's; this job is charged to {wants.tenant!r}.",
            f"Leave out --qos, or write --qos={qos_name(wants.tenant)}.",
        )
    return (f"QOS {wants.qos} is not used for GPUs here: the quota decides.",)


def _guaranteed(wants: QosRequest, snapshot: Snapshot, recent: Recent) -> str:
    held, own = _held_in_own(wants, snapshot, recent), snapshot.quotas[wants.tenant]
    numbers = f"{slices_text(held)} of {slices_words(own)} held or waited for"
    return f"guaranteed in QOS {qos_name(wants.tenant)} ({numbers})"


def _borrowed(wants: QosRequest, snapshot: Snapshot, recent: Recent) -> str:
    used, most = _used(wants, snapshot, recent), snapshot.highest_limits.get(wants.tenant, 0)
    numbers = f"{slices_words(used)} in use, {slices_text(most)} at most with what is lent"
    return f"borrowed in QOS {borrowed_qos(wants.tenant)} ({numbers})"


def _require_may_borrow(tenant: str, snapshot: Snapshot) -> None:
    if not snapshot.borrowing_limits.get(tenant, 0):
        raise InvalidInputError(
            Code.QUOTA_BORROW,
            f"QOS {borrowed_qos(tenant)}: {tenant!r} may not borrow quota.",
            "Leave out --qos, or ask the operator for: "
            f"slicewise tenant-quota set {tenant} --borrowing-limit N",
        )


def _from_others(tenant: str, most: int, snapshot: Snapshot) -> str:
    """What is lent to the tenant at the most, and whether its own limit is what allows no more."""
    if most < snapshot.borrowing_limits.get(tenant, 0):
        return f"{slices_text(most)} that others may ever lend it"
    return f"{slices_text(most)} that it may borrow"


def _check_cost(wants: QosRequest, snapshot: Snapshot, *, borrows: bool) -> None:
    own = _highest_own(wants.tenant, snapshot)
    most = max(own, snapshot.highest_limits.get(wants.tenant, own)) if borrows else own
    may_borrow = borrows or (wants.is_slot and snapshot.borrowing_limits.get(wants.tenant, 0) > 0)
    gres_type = None if may_borrow else _never_guaranteed(wants, snapshot)
    if gres_type is not None:
        raise InvalidInputError(
            Code.QUOTA_EXCEEDED,
            f"One task has {wants.instances[gres_type]} instances of {gres_type}, {wants.tenant!r}"
            f" is guaranteed {snapshot.guaranteed_types[wants.tenant][gres_type]} and borrows none"
            " for it: it could never start.",
            "Ask for fewer or another type, or the operator for a larger guarantee; slicewise why "
            f"{wants.tenant} --limits shows it.",
        )
    if wants.cost_millislices <= most:
        return
    more = f", with {_from_others(wants.tenant, most - own, snapshot)}" if most > own else ""
    whole = ", for Slurm counts all GPUs of its nodes (--exclusive)" if wants.is_whole else ""
    do = "Leave --exclusive out" if wants.is_whole else "Ask for less"
    raise InvalidInputError(
        Code.QUOTA_EXCEEDED,
        f"One task costs {slices_words(wants.cost_millislices)}, the quota of "
        f"{wants.tenant!r} is {slices_text(own)}{more}: it could never start{whole}.",
        f"{do}, or ask the operator for a larger quota; slicewise why {wants.tenant} --limits "
        "shows both.",
    )
