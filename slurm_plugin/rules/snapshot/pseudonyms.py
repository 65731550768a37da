"""Replaces names in a snapshot and in a history: the same name is the same within one archive.

The key is drawn for one archive and thrown away, so names of two archives can't be compared, and
nobody can try out names.
"""

import hmac
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from typing import Any

from slicewise.cluster.language.jobs import JobTag, JobView, PartitionView, PastRun
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.types import Reservation
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name, tenant_of
from slicewise.slurm_plugin.rules.quota.calendar import ALL
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT
from slicewise.slurm_plugin.rules.snapshot.contents import SiteSnapshot, SnapshotService

_DIGITS = 10
_UID_BITS = 30
_KNOWN = 1 << 17


@dataclass(frozen=True)
class Pseudonyms:
    """The other names.

    Attributes:
        key: random; nothing keeps it.
        accounts: names of tenants and other accounts; they keep theirs if it is false.
    """

    key: bytes
    accounts: bool = False

    def user(self, name: str) -> str:
        """Of a user."""
        return self._other("u", name)

    def job(self, name: str) -> str:
        """Of a job, a service or a pool of services."""
        return self._other("j", name)

    def account(self, name: str) -> str:
        """Of an account or a tenant, maybe its own; root stays."""
        return name if not self.accounts or name == ROOT_ACCOUNT else self._other("a", name)

    def uid(self, uid: int) -> int:
        """Of a user id; unknown ones (-1) stay."""
        if uid < 0:
            return uid
        return int(self._digest("uid", str(uid))[:_DIGITS], 16) & ((1 << _UID_BITS) - 1)

    def _other(self, kind: str, name: str) -> str:
        return f"{kind}{self._digest(kind, name)[:_DIGITS]}" if name else ""

    def _digest(self, kind: str, name: str) -> str:
        return _digest(self.key, kind, name)


@lru_cache(_KNOWN)
def _digest(key: bytes, kind: str, name: str) -> str:
    return hmac.new(key, f"{kind} {name}".encode(), sha256).hexdigest()


def run_under_other_names(run: PastRun, names: Pseudonyms, qos: Mapping[str, str]) -> PastRun:
    """The run with other names; ``qos`` has those of Slicewise's QOS."""
    return replace(
        run,
        user=names.user(run.user),
        account=names.account(run.account),
        qos=qos.get(run.qos, run.qos),
    )


def other_qos(names_found: Iterable[str], names: Pseudonyms) -> Mapping[str, str]:
    """Other names of those QOS that Slicewise made, which hold those of tenants, maybe gone ones.

    Each tenant that one of them is of has its own and its borrowed QOS among them.
    """
    tenants = {name for name in map(tenant_of, names_found) if name is not None}
    pairs = ((name, names.account(name)) for name in tenants)
    return {own(name): own(other) for name, other in pairs for own in (qos_name, borrowed_qos)}


def under_other_names(snapshot: SiteSnapshot, names: Pseudonyms) -> SiteSnapshot:
    """The snapshot with other names of users, jobs and services, and maybe of accounts."""
    qos = other_qos(_qos_in(snapshot), names)
    return replace(
        snapshot,
        partitions=tuple(_partition(partition, qos) for partition in snapshot.partitions),
        # Slurm has them in the order of the names that they had.
        associations=tuple(
            sorted(
                (_association(association, names, qos) for association in snapshot.associations),
                key=lambda association: (
                    association.account,
                    association.user,
                    association.partition,
                ),
            )
        ),
        qos=tuple(sorted((_qos(row, qos) for row in snapshot.qos), key=lambda row: row.name)),
        jobs=tuple(_job(job, names, qos) for job in snapshot.jobs),
        settings=_settings(snapshot.settings, names),
        ledger=_ledger(snapshot.ledger, names),
        services=tuple(_service(service, names) for service in snapshot.services),
        pseudonyms="all" if names.accounts else "names",
    )


def _qos_in(snapshot: SiteSnapshot) -> Iterator[str]:
    """Names of all QOS that it has anywhere."""
    yield from map(qos_name, snapshot.ledger.tenants)
    yield from (row.name for row in snapshot.qos)
    yield from (job.qos for job in snapshot.jobs)
    for qos in snapshot.qos:
        yield from qos.preempt
    for association in snapshot.associations:
        yield from (
            *association.qos,
            *association.own_qos,
            association.default_qos,
            association.own_default_qos,
        )
    for partition in snapshot.partitions:
        yield from (partition.qos, *(partition.allow_qos or ()), *partition.deny_qos)


def _renamed(some: frozenset[str], qos: Mapping[str, str]) -> frozenset[str]:
    return frozenset(qos.get(name, name) for name in some)


def _partition(partition: PartitionView, qos: Mapping[str, str]) -> PartitionView:
    allowed = None if partition.allow_qos is None else _renamed(partition.allow_qos, qos)
    return replace(
        partition,
        qos=qos.get(partition.qos, partition.qos),
        allow_qos=allowed,
        deny_qos=_renamed(partition.deny_qos, qos),
    )


def _association(
    association: Association, names: Pseudonyms, qos: Mapping[str, str]
) -> Association:
    return replace(
        association,
        account=names.account(association.account),
        user=names.user(association.user),
        parent=names.account(association.parent),
        qos=_renamed(association.qos, qos),
        default_qos=qos.get(association.default_qos, association.default_qos),
        own_qos=_renamed(association.own_qos, qos),
        own_default_qos=qos.get(association.own_default_qos, association.own_default_qos),
    )


def _qos(row: Qos, qos: Mapping[str, str]) -> Qos:
    return replace(row, name=qos.get(row.name, row.name), preempt=_renamed(row.preempt, qos))


def _job(job: JobView, names: Pseudonyms, qos: Mapping[str, str]) -> JobView:
    tag = JobTag.find(job.admin_comment)
    other = "" if tag is None else _tag(tag, names).text()
    return replace(
        job,
        name=names.job(job.name),
        user=names.user(job.user),
        uid=names.uid(job.uid),
        account=names.account(job.account),
        qos=qos.get(job.qos, job.qos),
        admin_comment=other,
    )


def _tag(tag: JobTag, names: Pseudonyms) -> JobTag:
    service = None if tag.service is None else names.job(tag.service)
    return replace(tag, tenant=names.account(tag.tenant), service=service)


def _settings(values: Mapping[str, Any], names: Pseudonyms) -> Mapping[str, Any]:
    priority = values["priority"]
    high = sorted(names.account(name) for name in priority["high_class_for"])
    return {**values, "priority": {**priority, "high_class_for": high}}


def _service(service: SnapshotService, names: Pseudonyms) -> SnapshotService:
    values = service.values
    if (pool := values.get("pool")) is not None:
        values = {**values, "pool": names.job(pool)}
    tenant, name = names.account(service.tenant), names.job(service.name)
    return replace(service, tenant=tenant, name=name, values=values)


def _ledger(view: LedgerView, names: Pseudonyms) -> LedgerView:
    of = names.account
    return replace(
        view,
        tenants={
            of(name): replace(tenant, name=of(name), parent=of(tenant.parent))
            for name, tenant in view.tenants.items()
        },
        windows=tuple(
            replace(window, tenant=window.tenant if window.tenant == ALL else of(window.tenant))
            for window in view.windows
        ),
        loans=tuple(
            sorted(
                replace(loan, lender=of(loan.lender), borrower=of(loan.borrower))
                for loan in view.loans
            )
        ),
        recalls=tuple(
            sorted(
                replace(recall, lender=of(recall.lender), borrower=of(recall.borrower))
                for recall in view.recalls
            )
        ),
        balances={
            of(name): replace(balance, tenant=of(balance.tenant))
            for name, balance in view.balances.items()
        },
        rollovers={of(name): at_s for name, at_s in view.rollovers.items()},
        reservations=tuple(_reservation(reservation, names) for reservation in view.reservations),
    )


def _reservation(reservation: Reservation, names: Pseudonyms) -> Reservation:
    return replace(
        reservation,
        tenant=names.account(reservation.tenant),
        user=names.user(reservation.user),
        payer=names.account(reservation.payer),
    )
