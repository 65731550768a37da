"""Quotas as Slurm's own limits: which changes bring slurmdbd to what the ledger says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cluster.slurm.interface import Association, Qos
from slurm_plugin.decide.model import Quota

QOS_PREFIX = "slicewise_"
"""Only QOS of this prefix are ever changed."""

ROOT_ACCOUNT = "root"
"""Slurm's top account; its limit would be the whole cluster's."""

_LIMIT = "billing"

Change = tuple[str, ...]
"""Words of one sacctmgr command."""


@dataclass(frozen=True)
class _Limit:
    """A limit that must change; in millislices, None is no limit."""

    entity: Literal["qos", "account"]
    name: str
    before: int | None
    after: int | None

    @property
    def shrinks(self) -> bool:
        return self.after is not None and (self.before is None or self.after < self.before)


def qos_name(tenant: str) -> str:
    """The tenant's own QOS: its jobs run in it."""
    return QOS_PREFIX + tenant


def limit_changes(
    cluster: str,
    quotas: Mapping[str, Quota],
    associations: Iterable[Association],
    qos: Iterable[Qos],
) -> tuple[Change, ...]:
    """Changes for sacctmgr in the order in which they must run; () if Slurm has it all.

    Each tenant with a Slurm account has its nominal quota as the limit of that account, which
    binds every job in it and below it, whatever its QOS. QOS ``slicewise_<tenant>`` is allowed and
    default there and has no such limit: Slurm does not look at an association's limit for a job
    whose QOS limits the same, so the two would add up instead of both binding
    (docs/decisions/0004). An account without a quota is limited to the sum of the tenants below
    it: 0 if there are none. First what shrinks, then new QOS and their use, then what grows, so
    that at no moment more is allowed than before or after.

    A user's own QOS list may equal its account's: that it is his own shows only after the account's
    has changed. So call again after applying, until this is ().
    """
    rows = tuple(row for row in associations if row.cluster == cluster)
    known = {one.name: one for one in qos}
    accounts = {row.account for row in rows}
    nominal = {
        tenant: int(quota.nominal_millislices)
        for tenant, quota in quotas.items()
        if tenant in accounts and tenant != ROOT_ACCOUNT
    }
    limits = (
        *_qos_limits(nominal, known),
        *_account_limits(nominal, [row for row in rows if not row.user]),
    )
    return (
        *_limit_changes(cluster, [limit for limit in limits if limit.shrinks]),
        *_new_qos(nominal, known),
        *_qos_lists(cluster, nominal, rows),
        *_limit_changes(cluster, [limit for limit in limits if not limit.shrinks]),
    )


def _limit_changes(cluster: str, limits: Iterable[_Limit]) -> Iterable[Change]:
    """One change for all that get the same limit: each sacctmgr takes a good part of a second."""
    names: dict[tuple[str, int | None], list[str]] = {}
    for limit in limits:
        names.setdefault((limit.entity, limit.after), []).append(limit.name)
    for (entity, after), together in names.items():
        where = [f"name={','.join(together)}"]
        if entity == "account":
            where.append(f"cluster={cluster}")
        yield ("modify", entity, "where", *where, "set", _grp_tres(after))


def _qos_limits(nominal: Mapping[str, int], known: Mapping[str, Qos]) -> Iterable[_Limit]:
    """None for QOS of ours, see ``limit_changes``; 0 for one whose tenant is gone."""
    tenants = {qos_name(tenant) for tenant in nominal}
    for name in sorted(known):
        before = known[name].grp_tres.get(_LIMIT)
        after = None if name in tenants else 0
        if name.startswith(QOS_PREFIX) and before != after:
            yield _Limit("qos", name, before, after)


def _account_limits(nominal: Mapping[str, int], rows: Sequence[Association]) -> Iterable[_Limit]:
    for row in sorted(rows, key=lambda row: row.account):
        before = row.grp_tres.get(_LIMIT)
        after = _ceiling(row.account, nominal, rows)
        if row.account != ROOT_ACCOUNT and before != after:
            yield _Limit("account", row.account, before, after)


def _ceiling(account: str, nominal: Mapping[str, int], rows: Sequence[Association]) -> int:
    """Its own quota, or else the sum of what is below it: a limit in Slurm binds the subtree."""
    if account in nominal:
        return nominal[account]
    below = (row.account for row in rows if row.parent == account)
    return sum(_ceiling(child, nominal, rows) for child in below)


def _new_qos(nominal: Mapping[str, int], known: Mapping[str, Qos]) -> Iterable[Change]:
    names = (qos_name(tenant) for tenant in sorted(nominal))
    return (("add", "qos", name) for name in names if name not in known)


def _qos_lists(
    cluster: str, nominal: Mapping[str, int], rows: Sequence[Association]
) -> Iterable[Change]:
    """Allow a tenant's QOS in its account and make it the default there.

    Users inherit both, unless they have a QOS list of their own. Slurm refuses a default to which
    such a user has no access, so they come first.
    """
    accounts = {row.account: row for row in rows if not row.user}
    for tenant in sorted(nominal):
        name, account = qos_name(tenant), accounts[tenant]
        where = (f"name={tenant}", f"cluster={cluster}", "set")
        for row in rows:
            own_list = row.user and row.qos != account.qos
            if row.account == tenant and own_list and name not in row.qos:
                user = (f"name={row.user}", f"account={tenant}", f"cluster={cluster}", "set")
                yield ("modify", "user", "where", *user, f"qos+={name}")
        if name not in account.qos:
            yield ("modify", "account", "where", *where, f"qos+={name}")
        if account.default_qos != name:
            yield ("modify", "account", "where", *where, f"defaultqos={name}")


def _grp_tres(amount: int | None) -> str:
    """In sacctmgr's words, -1 is no limit."""
    return f"grptres={_LIMIT}={-1 if amount is None else amount}"
