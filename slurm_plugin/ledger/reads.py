"""Reads one cluster's rows within a transaction that a caller began."""

from collections.abc import Mapping

from sqlalchemy import Connection, func, select

from slicewise.cluster.language.meters import SLICES
from slicewise.slurm_plugin.ledger import policy_rows, queries, window_rows
from slicewise.slurm_plugin.ledger.tables import compilations, quota_changes, watermarks
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.types import Balance, Reservation
from slicewise.slurm_plugin.rules.quota.calendar import Moment, Window
from slicewise.slurm_plugin.rules.quota.types import KnownLimit, LimitKey, Loan, Policy, Recall


def lock_policy(connection: Connection, cluster: str) -> None:
    """Lock policy, calendar and loans until the transaction ends: other writers of them wait."""
    connection.execute(select(func.slicewise.lock_policy(cluster)))


def seal_state(connection: Connection, cluster: str, kind: str) -> None:
    """Within a transaction that has overwritten ``recalls`` or the ``watermark``: seal it."""
    connection.execute(select(func.slicewise.seal_state(cluster, kind)))


def now_s(connection: Connection) -> int:
    """The start of the transaction, in whole Unix seconds of the database's clock."""
    return int(connection.execute(select(window_rows.NOW_S)).scalar_one())


def policy(connection: Connection, cluster: str) -> Policy:
    """Every tenant by name, whatever the calendar says."""
    result = connection.execute(policy_rows.policy_of(cluster))
    return {row.tenant: policy_rows.tenant(row) for row in result}


def windows(connection: Connection, cluster: str) -> tuple[Window, ...]:
    """Windows that hold now or later, in the order in which they were set."""
    result = connection.execute(window_rows.windows_of(cluster))
    return tuple(window_rows.window(row) for row in result)


def loans(connection: Connection, cluster: str) -> tuple[Loan, ...]:
    """Every loan, in the order of lenders' and borrowers' names."""
    result = connection.execute(policy_rows.loans_of(cluster))
    return tuple(policy_rows.loan(row) for row in result)


def recalls(connection: Connection, cluster: str) -> tuple[Recall, ...]:
    """What lenders take back, in the order of lenders' and borrowers' names and time."""
    result = connection.execute(policy_rows.recalls_of(cluster))
    return tuple(policy_rows.recall(row) for row in result)


def balances(
    connection: Connection, cluster: str, meter: str = SLICES.name
) -> Mapping[str, Balance]:
    """Balances of every tenant that ever had a run or a budget on the meter, by name."""
    result = connection.execute(queries.balances_of(cluster, meter))
    return {balance.tenant: balance for balance in map(queries.balance, result)}


def rollovers(connection: Connection, cluster: str, meter: str = SLICES.name) -> Mapping[str, int]:
    """The start of the period of each tenant's last rollover, in Unix seconds."""
    result = connection.execute(queries.rollovers_of(cluster, meter))
    return {tenant: int(start_s) for tenant, start_s in result}


def change_id(connection: Connection, cluster: str) -> int:
    """Id of the newest change of policy; 0 if there is none."""
    mine = quota_changes.c.cluster == cluster
    newest = select(func.coalesce(func.max(quota_changes.c.id), 0)).where(mine)
    return int(connection.execute(newest).scalar_one())


def compiled_id(connection: Connection, cluster: str) -> int:
    """Id of the newest change that Slurm's limits contain; 0 if none, UNINSTALLED_ID if
    uninstalled.
    """
    mark = select(compilations.c.change_id).where(compilations.c.cluster == cluster)
    return connection.execute(mark).scalar_one_or_none() or 0


def accounted_until_s(connection: Connection, cluster: str) -> int | None:
    """Unix seconds up to which every run's end is booked; None if charging never began."""
    mark = select(watermarks.c.accounted_until_s).where(watermarks.c.cluster == cluster)
    return connection.execute(mark).scalar_one_or_none()


def reservations(connection: Connection, cluster: str) -> tuple[Reservation, ...]:
    """Reservations of runs that are not settled."""
    # A large site has one for each running job: fetching row by row takes twice as long.
    found = connection.execute(queries.reservations_of(cluster)).all()
    return tuple(queries.reservation(row) for row in found)


def known_limits(connection: Connection, cluster: str) -> Mapping[LimitKey, KnownLimit]:
    """What is remembered of every setting in slurmdbd that was ever touched."""
    result = connection.execute(policy_rows.known_limits_of(cluster))
    return dict(policy_rows.known_limit(row) for row in result)


def ledger_view(connection: Connection, cluster: str, when: Moment) -> LedgerView:
    """Read all of the above, on a connection with one consistent look."""
    return LedgerView(
        when=when,
        change_id=change_id(connection, cluster),
        compiled_id=compiled_id(connection, cluster),
        tenants=policy(connection, cluster),
        windows=windows(connection, cluster),
        loans=loans(connection, cluster),
        recalls=recalls(connection, cluster),
        balances=balances(connection, cluster),
        rollovers=rollovers(connection, cluster),
        reservations=reservations(connection, cluster),
        known=known_limits(connection, cluster),
    )
