"""What Slicewise has set in Slurm, what somebody else has, and the way back.

Of each setting the ledger remembers what it was before Slicewise first touched it and what
Slicewise has set last, crash-safe in this order: write the old and the new value into ``last``;
change Slurm; when Slurm shows the new one, write that alone. So after a kill -9 between any two
steps, also of a sacctmgr that ends only later, whatever Slurm has of the setting is one of the
values in ``last``, and nobody's hand is blamed; and ``before`` is written before the first change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.billing import BillingUnit
from slurm_plugin.decide.limits import (
    BILLING,
    DEFAULT_QOS,
    EXEMPT,
    INHERITED,
    NAME,
    QOS_LIST,
    Difference,
    Found,
    Settings,
    only_ours_differ,
    value_now,
)
from slurm_plugin.decide.policy import KnownLimit, LimitKey
from slurm_plugin.decide.qos_names import (
    GATE_QOS,
    SHARED_QOS,
    is_ours,
    says_uninstalled,
    uninstalled_qos,
)

Known = Mapping[LimitKey, KnownLimit]

_OR = " or "
_NEWEST = 4
"""So many values that Slurm may still come to show are kept, beside what it shows: a sacctmgr ends
some looks later at most."""
_LIMITS = ("grptres=", "grptresrunmins=", "maxtresperaccount=", DEFAULT_QOS, EXEMPT)


@dataclass(frozen=True)
class HandChange:
    """A setting that somebody else has changed.

    Attributes:
        was: what Slicewise had set; now: what Slurm has; "" is not set.
    """

    key: LimitKey
    was: str
    now: str


def by_hand(differences: Iterable[Difference], known: Known) -> tuple[HandChange, ...]:
    """What is neither as wanted nor as Slicewise has set it. Of the lists of QOS nothing is known:
    those change with the accounts above.
    """
    return tuple(
        HandChange(one.key, _set_by_us(known[one.key])[-1], one.now)
        for one in differences
        if _is_remembered(one) and one.key in known and one.now not in _set_by_us(known[one.key])
    )


def noted(changes: Iterable[HandChange], known: Known) -> Known:
    """What the ledger must know before it adopts them, or puts them back: what stands in Slurm is
    where limits go on from, however often it is seen until they do.
    """
    return {one.key: KnownLimit(known[one.key].before, one.now) for one in changes}


def adopted_nominal(change: HandChange, nominal: int, billing: BillingUnit) -> int | None:
    """The nominal, in millislices, of which follows what a tenant's own QOS is limited to by hand,
    as what it ``was`` did of this ``nominal``; None of a limit that was taken away.
    """
    if not change.now or not change.was:
        return None
    return nominal + billing.millislices(int(change.now) - int(change.was))


def to_remember(
    settings: Settings, differences: Iterable[Difference], found: Found, known: Known
) -> Known:
    """What the ledger must know before these differences are applied; () if it does."""
    pending = {one.key: one for one in differences if _is_remembered(one)}
    due = {}
    for key in settings:
        if key.field.startswith(_LIMITS):
            now = value_now(found, key)
            limit = known.get(key, KnownLimit("" if is_ours(now) else now, now))
            due[key] = _remembered(limit, now, pending.get(key))
    return {key: limit for key, limit in due.items() if known.get(key) != limit}


def _remembered(limit: KnownLimit, now: str, pending: Difference | None) -> KnownLimit:
    if pending is None:
        return KnownLimit(limit.before, now)
    oldest, *later = _set_by_us(limit)
    # A part of a budget is another one at each look, and may wait, or be refused, for weeks.
    newest = [*(one for one in later if one != pending.wanted), pending.wanted][-_NEWEST:]
    values = dict.fromkeys((oldest, now, *newest))
    return KnownLimit(limit.before, _OR.join(values))


def _set_by_us(limit: KnownLimit) -> list[str]:
    """The oldest first; several while a change is not confirmed."""
    return limit.last.split(_OR)


def _is_remembered(one: Difference) -> bool:
    return not one.user and one.key.field.startswith(_LIMITS)


def settled(keys: Iterable[LimitKey], found: Found, known: Known) -> Known:
    """What the ledger must know once Slurm shows what was set last: any other value is somebody's
    hand then.
    """
    now = {key: value_now(found, key) for key in keys if key in known}
    return {
        key: KnownLimit(known[key].before, value)
        for key, value in now.items()
        if value in _set_by_us(known[key]) and value != known[key].last
    }


def set_by_others(keys: Iterable[LimitKey], found: Found, known: Known) -> frozenset[LimitKey]:
    """Those that are not as Slicewise is known to have set them."""
    return frozenset(
        key
        for key in keys
        if key not in known or value_now(found, key) not in _set_by_us(known[key])
    )


def opened_gate(found: Found) -> tuple[Difference, ...]:
    """What lets jobs in any QOS into the managed partitions again; () if that is so."""
    gate = found.qos.get(GATE_QOS)
    now = "" if gate is None else str(gate.grp_tres.get("billing", ""))
    return (Difference(LimitKey("qos", GATE_QOS, BILLING), now, "", "opened"),) if now else ()


def way_back(known: Known, found: Found, kept: frozenset[str]) -> tuple[Difference, ...]:
    """What puts every setting back that Slicewise has set, and takes its QOS out of the lists, but
    for those that are ``kept``.

    The QOS themselves: ``our_qos``.
    """
    limits = (
        Difference(key, value_now(found, key), limit.before, "as it was before")
        for key, limit in known.items()
        if limit.last != limit.before and _goes_back(key, found)
    )
    defaults = (
        Difference(key, row.own_default_qos, "", "taken out")
        for row in found.accounts.values()
        if is_ours(row.own_default_qos)
        and (key := LimitKey("account", row.account, DEFAULT_QOS)) not in known
    )
    accounts = (
        Difference(
            LimitKey("account", row.account, QOS_LIST),
            _listed(row.own_qos),
            _listed(row.own_qos & kept) or (INHERITED if only_ours_differ(row, found) else ""),
            "taken out",
        )
        for row in found.accounts.values()
        if _listed(row.own_qos)
    )
    users = (
        Difference(
            LimitKey("account", row.account, field), now, then, "taken out", row.user, row.partition
        )
        for row in found.users
        for field, now, then in (
            (QOS_LIST, _listed(row.own_qos), _listed(row.own_qos & kept)),
            (DEFAULT_QOS, _listed([row.own_default_qos]), ""),
        )
    )
    return tuple(one for one in (*limits, *defaults, *accounts, *users) if one.now != one.wanted)


def _goes_back(key: LimitKey, found: Found) -> bool:
    """The other settings of a QOS go with it, or are those of another cluster that uses it."""
    if key.entity == "qos":
        return key.field == EXEMPT and key.name in found.qos
    return key.name in found.accounts


def remember_way_back(differences: Iterable[Difference], known: Known) -> Known:
    """What the ledger must know before these are applied: a daemon that starts after a way back
    that was cut short finds its own values. With a QOS goes all that is limited by it.
    """
    of_qos: dict[str, list[LimitKey]] = {}
    for key in known:
        if key.entity == "qos":
            of_qos.setdefault(key.name, []).append(key)
    due = {
        key: _remembered(known[key], one.now, one)
        for one in differences
        for key in (of_qos.get(one.key.name, ()) if one.key.field == NAME else (one.key,))
        if not one.user and key in known
    }
    return {key: limit for key, limit in due.items() if known[key] != limit}


def taken_out(known: Known, found: Found) -> Known:
    """What the ledger must know before limits are set again that were taken out while it was away:
    whatever stands in Slurm then is nobody's hand.
    """
    now = {
        key: value_now(found, key)
        for key in known
        if key.entity == "qos" or key.name in found.accounts
    }
    return {
        key: KnownLimit(known[key].before, _OR.join((*_set_by_us(known[key]), value)))
        for key, value in now.items()
        if value not in _set_by_us(known[key])
    }


def our_qos(known: Known, found: Found, kept: frozenset[str]) -> tuple[Difference, ...]:
    """The QOS that Slicewise has made and that are still there, but for those that are ``kept``.

    Of the one that all tenants shared once earlier versions may have remembered nothing.
    """
    made = {key.name for key in known if key.entity == "qos"}
    return _removed((made | {SHARED_QOS, uninstalled_qos(found.cluster)}) - kept, found)


def our_qos_by_name(found: Found, kept: frozenset[str]) -> tuple[Difference, ...]:
    """The same, where nothing is known but what stands in Slurm."""
    return _removed({name for name in found.qos if limits_by(name)} - kept, found)


def limits_by(qos: str) -> bool:
    """Whether it is ours, and not the word alone that limits were taken out."""
    return is_ours(qos) and not says_uninstalled(qos)


def _removed(names: Iterable[str], found: Found) -> tuple[Difference, ...]:
    names = sorted(found.qos.keys() & names)
    return tuple(Difference(LimitKey("qos", name, NAME), name, "", "removed") for name in names)


def _listed(names: Iterable[str]) -> str:
    return ",".join(sorted(name for name in names if is_ours(name)))
