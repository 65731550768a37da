"""Checks the ledger's database, its server, and what would be left without it."""

import shlex
from collections.abc import Iterator

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding, Mend, Place, error, hint, warning
from slicewise.slurm_plugin.rules.accounting.energy import counter_findings, meter_findings
from slicewise.slurm_plugin.rules.common.ledger_facts import LedgerFacts
from slicewise.slurm_plugin.rules.site.facts import WayBackFacts

_OLDEST = 130000
_UNSEALED_S = 3600
_MANY_DEAD = 100_000
_FULL = 0.8
_READ_ONLY = "default_transaction_read_only"
_SYNCHRONOUS = "synchronous_standby_names"


def ledger_checks(facts: LedgerFacts) -> tuple[Finding, ...]:
    """Return what is wrong with the ledger's database and its server."""
    return (
        *_reads_only(facts),
        *_standby_gone(facts),
        *_revision(facts),
        *_rights(facts),
        *_changers(facts),
        *_server(facts),
        *_copies(facts),
        *_seals(facts),
        *_bloat(facts),
        *_holders(facts),
        *_connections(facts),
        *counter_findings(facts.boards),
        *meter_findings(facts.boards),
    )


def _reads_only(facts: LedgerFacts) -> Iterator[Finding]:
    why = "the daemon waits: nothing is lent, charged or changed"
    if facts.is_standby:
        yield error(
            Code.DATABASE_READ_ONLY,
            "PostgreSQL is a standby, which only reads",
            why,
            advice="Name the primary in the URL; or, if that is lost, promote this one:"
            " pg_ctl promote.",
        )
    elif facts.settings.get("default_transaction_read_only") == "on":
        yield error(
            Code.DATABASE_READ_ONLY,
            f"PostgreSQL only reads for role {facts.role}: default_transaction_read_only is on",
            why,
            Mend(Place.DATABASE, f"psql -c 'ALTER ROLE {facts.role} RESET {_READ_ONLY}'"),
            Mend(Place.DATABASE, f"psql -c 'ALTER SYSTEM RESET {_READ_ONLY}'"),
            Mend(Place.DATABASE, "psql -c 'SELECT pg_reload_conf()'"),
            advice="It may be set for the role, the database or the server:"
            " psql -c '\\drds' shows the first two.",
        )


def _waits_for_nobody(facts: LedgerFacts) -> bool:
    """Whether each commit waits for a standby, and there is none."""
    waits = facts.settings.get("synchronous_commit") not in {"off", "local"}
    return waits and bool(facts.settings.get(_SYNCHRONOUS)) and not facts.standbys


def _standby_gone(facts: LedgerFacts) -> Iterator[Finding]:
    if _waits_for_nobody(facts):
        yield error(
            Code.DATABASE_READ_ONLY,
            f"PostgreSQL has no standby, and {_SYNCHRONOUS} is {facts.settings[_SYNCHRONOUS]}",
            "each commit waits for it, for ever: nothing is lent, charged or changed",
            Mend(Place.DATABASE, f"psql -c 'ALTER SYSTEM RESET {_SYNCHRONOUS}'"),
            Mend(Place.DATABASE, "psql -c 'SELECT pg_reload_conf()'"),
            advice="Or bring the standby back. Without one, a loss of this server's disk loses what"
            " was booked.",
        )


def _revision(facts: LedgerFacts) -> Iterator[Finding]:
    if facts.revision.isdecimal() and facts.revision > facts.head:
        yield error(
            Code.DATABASE_NEW,
            f"The ledger's tables are at revision {facts.revision}, this version knows them up to"
            f" {facts.head}",
            "a newer version of Slicewise upgraded them, and this one does not use them",
            advice="Install that version here, too.",
        )
    elif facts.revision != facts.head:
        yield error(
            Code.DATABASE_OLD,
            f"The ledger's tables are at revision {facts.revision}, this version needs"
            f" {facts.head}",
            "",
            Mend(Place.DATABASE, "slicewise ledger db upgrade"),
        )


def _rights(facts: LedgerFacts) -> Iterator[Finding]:
    if facts.lacks:
        yield error(
            Code.DATABASE_RIGHTS,
            f"Role {facts.role} lacks rights of a daemon: {', '.join(facts.lacks)}",
            "the daemon waits, and neither charges nor lends",
            Mend(Place.DATABASE, f"slicewise ledger db grant {facts.role} --as daemon"),
            advice="As the tables' owner.",
        )
    elif facts.is_owner:
        yield hint(
            Code.LEDGER_OWNER,
            f"Role {facts.role} owns the ledger's tables or is a superuser",
            "nothing in PostgreSQL keeps the daemon's role from changing what was booked",
            Mend(Place.DATABASE, "createuser --pwprompt slicewise_daemon"),
            Mend(Place.DATABASE, "slicewise ledger db grant slicewise_daemon --as daemon"),
            advice="Let the URL name a role of its own, with a line in pg_hba.conf; the owner's is"
            " then for slicewise ledger db upgrade.",
        )


def _changers(facts: LedgerFacts) -> Iterator[Finding]:
    for role in dict.fromkeys(role for role, _ in facts.changers):
        names = [name for changer, name in facts.changers if changer == role]
        tables = ", ".join(f"slicewise.{name}" for name in names)
        revoke = f"REVOKE UPDATE, DELETE, TRUNCATE ON {tables} FROM {role}"
        yield error(
            Code.DATABASE_RIGHTS,
            f"Role {role} may change or delete rows of {', '.join(names)}",
            "what was booked may be changed afterwards: no duty needs that",
            Mend(Place.DATABASE, f"psql -c {shlex.quote(revoke)}"),
            advice="slicewise ledger verify says whether sealed transfers were changed.",
        )


def _server(facts: LedgerFacts) -> Iterator[Finding]:
    if facts.server_version < _OLDEST:
        yield warning(
            Code.VERSION,
            f"PostgreSQL is version {facts.server_version // 10000}",
            "Slicewise was tried with 15 and 18, and PostgreSQL keeps a version for five years",
            advice="Upgrade PostgreSQL.",
        )
    for name in ("fsync", "full_page_writes"):
        if facts.settings.get(name) == "off":
            yield error(
                Code.LEDGER_FSYNC,
                f"PostgreSQL runs with {name} = off",
                "after a power failure the ledger may be unreadable",
                Mend(Place.DATABASE, f"psql -c \"ALTER SYSTEM SET {name} = 'on'\""),
                Mend(Place.DATABASE, "psql -c 'SELECT pg_reload_conf()'"),
            )


def _copies(facts: LedgerFacts) -> Iterator[Finding]:
    if facts.settings.get("archive_mode", "off") == "off" and not facts.standbys:
        yield hint(
            Code.LEDGER_BACKUP,
            "PostgreSQL archives nothing and has no standby",
            "the ledger can't be made again: quotas, budgets, keys, charges, and what Slurm's"
            " limits were before",
            Mend(Place.DATABASE, "slicewise ledger db backup FILE"),
            advice="See docs/how-to/backup.md. If a dump is made each night, accept the code.",
        )


def _seals(facts: LedgerFacts) -> Iterator[Finding]:
    if facts.unsealed_s is not None and facts.unsealed_s > _UNSEALED_S:
        yield warning(
            Code.LEDGER_SEALS,
            f"Transfers of the last {facts.unsealed_s / 3600:.0f} h have no seal",
            "it would not show if they were changed",
            Mend(Place.DATABASE, "slicewise ledger verify"),
            advice="The daemon seals within a minute: its log says what keeps it from that.",
        )


def _bloat(facts: LedgerFacts) -> Iterator[Finding]:
    if facts.dead_rows > max(_MANY_DEAD, facts.live_rows):
        yield hint(
            Code.LEDGER_BLOAT,
            f"Table {facts.bloated} has {facts.dead_rows:,} dead rows beside {facts.live_rows:,}",
            "every look at it reads them, too",
            Mend(Place.DATABASE, f"psql -c 'VACUUM (ANALYZE) slicewise.{facts.bloated}'"),
            advice="A transaction that stays open, or autovacuum = off, keeps them.",
        )


def _holders(facts: LedgerFacts) -> Iterator[Finding]:
    # Where commits wait for a standby, so do their locks: ending them mends nothing.
    for holder in () if _waits_for_nobody(facts) else facts.holders:
        since = "" if holder.age_s is None else f" for {holder.age_s / 60:.0f} min"
        yield warning(
            Code.DATABASE_BUSY,
            f"Role {holder.role} ({holder.application or 'a session of no name'}) has had a lock"
            f" of the ledger{since}: {holder.what}",
            "commands and the daemon may wait for it, and fail",
            advice="End what hangs there; pg_stat_activity has the session. A dump or an upgrade"
            " that runs is all right.",
        )


def _connections(facts: LedgerFacts) -> Iterator[Finding]:
    role, count = facts.most_connected
    name = '"' + role.replace('"', '""') + '"'
    if facts.connections > _FULL * facts.most_connections:
        yield warning(
            Code.DATABASE_CONNECTIONS,
            f"PostgreSQL has {facts.connections} connections of {facts.most_connections};"
            f" role {role} has {count} of them",
            "once there are no more, the daemon can't reach the ledger",
            Mend(
                Place.DATABASE, f"psql -c {shlex.quote(f'ALTER ROLE {name} CONNECTION LIMIT 20')}"
            ),
            advice="Or raise max_connections.",
        )


def way_back_checks(facts: WayBackFacts, mode: str) -> Iterator[Finding]:
    """Before mode enforce: ask for a dump of what slurmdbd has without Slicewise."""
    if mode != "enforce" and not facts.is_there:
        yield hint(
            Code.SACCTMGR_DUMP,
            f"There is no {facts.dump}",
            "in mode enforce Slicewise changes limits, and only the ledger knows what they were:"
            " without it they can be put back from such a dump alone",
            Mend(
                Place.ACCOUNTS,
                f"sacctmgr dump {facts.cluster} file={facts.dump}",
            ),
            advice="Make it before mode enforce.",
        )
