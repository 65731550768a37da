"""Tells apart settings in Slurm that Slicewise made from manual changes, and plans the way back.

The ledger remembers of each setting what it was before Slicewise first changed it (``before``) and
what Slicewise set last (``last``). The order is crash-safe: write the old and the new value into
``last``; change Slurm; once Slurm shows the new value, write it alone. So after a kill -9 between
any two steps, also if a sacctmgr ends only later, Slurm's value is one of those in ``last``, and
Slicewise does not mistake it for a manual change. ``before`` is written before the first change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.billing import BillingUnit
from slicewise.slurm_plugin.rules.common.qos_names import (
    GATE_QOS,
    is_ours,
    says_uninstalled,
    uninstalled_qos,
)
from slicewise.slurm_plugin.rules.limits.desired import (
    BILLING,
    DEFAULT_QOS,
    EXEMPT,
    INHERITED,
    NAME,
    QOS_LIST,
    Difference,
    KeyedSetting,
    LimitSettings,
    SlurmLimits,
    only_ours_differ,
    value_now,
)
from slicewise.slurm_plugin.rules.quota.types import KnownLimit, LimitKey

KnownLimits = Mapping[LimitKey, KnownLimit]

_OR = " or "
_NEWEST = 4
"""The most values to remember that Slurm may still come to show, beside the value it shows: a
sacctmgr ends some looks later at most."""
_LIMITS = ("grptres=", "grptresrunmins=", DEFAULT_QOS, EXEMPT)


@dataclass(frozen=True)
class OutOfBandChange(KeyedSetting):
    """A setting that was changed outside Slicewise.

    Attributes:
        was: the value that Slicewise had set; "" means not set.
        now: Slurm's value; "" means not set.
    """

    was: str
    now: str


def out_of_band(
    differences: Iterable[Difference], known_limits: KnownLimits
) -> tuple[OutOfBandChange, ...]:
    """Return the settings that are neither as wanted nor as Slicewise has set them.

    Lists of QOS are left out, as they change with the accounts above and are not remembered.
    """
    return tuple(
        OutOfBandChange(
            difference.key, _set_by_us(known_limits[difference.key])[-1], difference.now
        )
        for difference in differences
        if _is_remembered(difference)
        and difference.key in known_limits
        and difference.now not in _set_by_us(known_limits[difference.key])
    )


def noted(changes: Iterable[OutOfBandChange], known_limits: KnownLimits) -> KnownLimits:
    """Return what the ledger must remember before manual changes are adopted or put back.

    Slurm's value becomes the last one, so that a change is reported and adopted only once, however
    often it is seen until the limits change.
    """
    return {
        change.key: KnownLimit(known_limits[change.key].before, change.now) for change in changes
    }


def adopted_nominal(change: OutOfBandChange, nominal: int, billing: BillingUnit) -> int | None:
    """Compute the nominal, in millislices, that corresponds to a manual limit of an own QOS.

    It is the present ``nominal`` plus the difference between the new limit and the one that
    Slicewise set. None if either limit is missing.
    """
    if not change.now or not change.was:
        return None
    return nominal + billing.millislices(int(change.now) - int(change.was))


def to_remember(
    settings: LimitSettings,
    differences: Iterable[Difference],
    slurm_limits: SlurmLimits,
    known_limits: KnownLimits,
) -> KnownLimits:
    """Return what the ledger must remember before the differences are applied; {} if it does."""
    pending = {
        difference.key: difference for difference in differences if _is_remembered(difference)
    }
    due = {}
    for key in settings:
        if key.field.startswith(_LIMITS):
            now = value_now(slurm_limits, key)
            limit = known_limits.get(key, KnownLimit("" if is_ours(now) else now, now))
            due[key] = _remembered(limit, now, pending.get(key))
    return {key: limit for key, limit in due.items() if known_limits.get(key) != limit}


def _remembered(limit: KnownLimit, now: str, pending: Difference | None) -> KnownLimit:
    if pending is None:
        asked = _set_by_us(limit)
        # What was asked last does not show yet, and is no longer wanted: it may still come.
        comes_later = now in asked and now != asked[-1]
        return limit if comes_later else KnownLimit(limit.before, now)
    oldest, *later = _set_by_us(limit)
    # A part of a budget changes at each look, and its change may wait, or be refused, for weeks.
    newest = [*(value for value in later if value != pending.wanted), pending.wanted][-_NEWEST:]
    values = dict.fromkeys((oldest, now, *newest))
    return KnownLimit(limit.before, _OR.join(values))


def _set_by_us(limit: KnownLimit) -> list[str]:
    """Return the values that Slicewise set, oldest first; several while a change is unconfirmed."""
    return limit.last.split(_OR)


def is_ours_alone(key: LimitKey, value: str, known_limits: KnownLimits) -> bool:
    """Whether Slicewise set this value, and Slurm had another one, or none, before."""
    limit = known_limits.get(key)
    return limit is not None and value != limit.before and value in _set_by_us(limit)


def _is_remembered(difference: Difference) -> bool:
    return not difference.user and difference.key.field.startswith(_LIMITS)


def settled(
    keys: Iterable[LimitKey], slurm_limits: SlurmLimits, known_limits: KnownLimits
) -> KnownLimits:
    """Return what the ledger must remember once Slurm shows a value that Slicewise set.

    From then on any other value is a manual change.
    """
    now = {key: value_now(slurm_limits, key) for key in keys if key in known_limits}
    return {
        key: KnownLimit(known_limits[key].before, value)
        for key, value in now.items()
        if value in _set_by_us(known_limits[key]) and value != known_limits[key].last
    }


def set_by_others(
    keys: Iterable[LimitKey], slurm_limits: SlurmLimits, known_limits: KnownLimits
) -> frozenset[LimitKey]:
    """Return the settings that are not as Slicewise is known to have set them."""
    return frozenset(
        key
        for key in keys
        if key not in known_limits
        or value_now(slurm_limits, key) not in _set_by_us(known_limits[key])
    )


def opened_gate(slurm_limits: SlurmLimits) -> tuple[Difference, ...]:
    """Return the change that opens the gate, so that jobs in any QOS pass; () if it is open."""
    gate = slurm_limits.qos.get(GATE_QOS)
    now = "" if gate is None else str(gate.grp_tres.get("billing", ""))
    return (Difference(LimitKey("qos", GATE_QOS, BILLING), now, "", "opened"),) if now else ()


def way_back(
    known_limits: KnownLimits, slurm_limits: SlurmLimits, kept: frozenset[str]
) -> tuple[Difference, ...]:
    """Return the changes that restore every setting that Slicewise has changed.

    They also take Slicewise's QOS out of all lists, except the ``kept`` ones. ``our_qos`` has the
    removal of the QOS themselves.
    """
    limits = (
        Difference(key, value_now(slurm_limits, key), limit.before, "as it was before")
        for key, limit in known_limits.items()
        if limit.last != limit.before and _goes_back(key, slurm_limits)
    )
    defaults = (
        Difference(key, row.own_default_qos, "", "taken out")
        for row in slurm_limits.accounts.values()
        if is_ours(row.own_default_qos)
        and (key := LimitKey("account", row.account, DEFAULT_QOS)) not in known_limits
    )
    accounts = (
        Difference(
            LimitKey("account", row.account, QOS_LIST),
            _listed(row.own_qos),
            _listed(row.own_qos & kept)
            or (INHERITED if only_ours_differ(row, slurm_limits) else ""),
            "taken out",
        )
        for row in slurm_limits.accounts.values()
        if _listed(row.own_qos)
    )
    users = (
        Difference(
            LimitKey("account", row.account, field), now, then, "taken out", row.user, row.partition
        )
        for row in slurm_limits.users
        for field, now, then in (
            (QOS_LIST, _listed(row.own_qos), _listed(row.own_qos & kept)),
            (DEFAULT_QOS, _listed([row.own_default_qos]), ""),
        )
    )
    return tuple(
        difference
        for difference in (*limits, *defaults, *accounts, *users)
        if difference.now != difference.wanted
    )


def _goes_back(key: LimitKey, slurm_limits: SlurmLimits) -> bool:
    """Whether a setting must be restored.

    A QOS' other settings disappear with it, or belong to another cluster that uses the QOS.
    """
    if key.entity == "qos":
        return key.field == EXEMPT and key.name in slurm_limits.qos
    return key.name in slurm_limits.accounts


def remember_way_back(differences: Iterable[Difference], known_limits: KnownLimits) -> KnownLimits:
    """Return what the ledger must remember before the changes of a way back are applied.

    So a daemon that starts after an interrupted way back recognizes its own values. The removal of
    a QOS changes all of its settings.
    """
    of_qos: dict[str, list[LimitKey]] = {}
    for key in known_limits:
        if key.entity == "qos":
            of_qos.setdefault(key.name, []).append(key)
    due = {
        key: _remembered(known_limits[key], difference.now, difference)
        for difference in differences
        for key in (
            of_qos.get(difference.key.name, ())
            if difference.key.field == NAME
            else (difference.key,)
        )
        if not difference.user and key in known_limits
    }
    return {key: limit for key, limit in due.items() if known_limits[key] != limit}


def taken_out(known_limits: KnownLimits, slurm_limits: SlurmLimits) -> KnownLimits:
    """Return what the ledger must remember after an uninstallation during which it was away.

    Before limits are set again, all of Slurm's values are recorded, so that none counts as a manual
    change.
    """
    now = {
        key: value_now(slurm_limits, key)
        for key in known_limits
        if key.entity == "qos" or key.name in slurm_limits.accounts
    }
    return {
        key: KnownLimit(known_limits[key].before, _OR.join((*_set_by_us(known_limits[key]), value)))
        for key, value in now.items()
        if value not in _set_by_us(known_limits[key])
    }


def our_qos(
    known_limits: KnownLimits, slurm_limits: SlurmLimits, kept: frozenset[str]
) -> tuple[Difference, ...]:
    """Return removals of the QOS that Slicewise made and that still exist, except ``kept`` ones."""
    made = {key.name for key in known_limits if key.entity == "qos"}
    return _removed((made | {uninstalled_qos(slurm_limits.cluster)}) - kept, slurm_limits)


def our_qos_by_name(slurm_limits: SlurmLimits, kept: frozenset[str]) -> tuple[Difference, ...]:
    """Return the same as ``our_qos`` if nothing is known but what Slurm has."""
    return _removed({name for name in slurm_limits.qos if limits_by(name)} - kept, slurm_limits)


def limits_by(qos: str) -> bool:
    """Whether a QOS is Slicewise's, other than the QOS that only marks an uninstallation."""
    return is_ours(qos) and not says_uninstalled(qos)


def _removed(names: Iterable[str], slurm_limits: SlurmLimits) -> tuple[Difference, ...]:
    names = sorted(slurm_limits.qos.keys() & names)
    return tuple(Difference(LimitKey("qos", name, NAME), name, "", "removed") for name in names)


def _listed(names: Iterable[str]) -> str:
    return ",".join(sorted(name for name in names if is_ours(name)))
