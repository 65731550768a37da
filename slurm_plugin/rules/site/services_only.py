"""Writes what brings up services alone, on one host beside slurmctld, as files and one script."""

from urllib.parse import parse_qs, quote, unquote, urlsplit

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.findings import Finding
from slicewise.slurm_plugin.rules.site.answers import Answers
from slicewise.slurm_plugin.rules.site.proposed_files import SlurmsOwn, daemon_text

_LAUNCHER_CONNECTIONS = 20
_PORT = 5432


def needs(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return those of slurm.conf's findings without which no service runs."""
    return tuple(finding for finding in findings if finding.code == Code.CONF_SERVICES)


def is_of(url: str, host: str) -> bool:
    """Whether a database's URL names the server of this host, by its own words."""
    parts = urlsplit(url)
    names_none_beside = {"host", "hostaddr"}.isdisjoint(parse_qs(parts.query))
    return names_none_beside and parts.hostname in {None, "localhost", "127.0.0.1", "::1", host}


def with_password(url: str, password: str) -> str:
    """Return a database's URL as it is if it has a password, else with this one."""
    parts = urlsplit(url)
    if parts.password:
        return url
    user = parts.username or "slicewise"
    where = parts.netloc.rpartition("@")[2] or "localhost"
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{where}").geturl()


def launcher_url(url: str, password: str) -> str:
    """Return the URL of the launcher's role in the database of this URL."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"slicewise_launcher:{quote(password, safe='')}@{where}").geturl()


def database_text(url: str, launchers_url: str) -> str:
    """Return statements for psql that make both roles and the database; they may run again."""
    name = urlsplit(url).path.lstrip("/") or "slicewise"
    owner, own = _role(url)
    launcher, launchers_own = _role(launchers_url)
    database = _name(name)
    create = f"CREATE DATABASE {database} OWNER {_name(owner)}"
    lines = (
        _unless("pg_roles", "rolname", owner, f"CREATE ROLE {_name(owner)}"),
        _unless("pg_roles", "rolname", launcher, f"CREATE ROLE {_name(launcher)}"),
        f"ALTER ROLE {_name(owner)} LOGIN PASSWORD {_text(own)};",
        f"ALTER ROLE {_name(launcher)} LOGIN PASSWORD {_text(launchers_own)};",
        f"ALTER ROLE {_name(launcher)} CONNECTION LIMIT {_LAUNCHER_CONNECTIONS};",
        _unless("pg_database", "datname", name, create),
        f"REVOKE CONNECT, TEMPORARY ON DATABASE {database} FROM PUBLIC;",
        f"GRANT CONNECT ON DATABASE {database} TO {_name(launcher)};",
    )
    return "\n".join((*lines, ""))


def _role(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return unquote(parts.username or ""), unquote(parts.password or "")


def _unless(table: str, column: str, name: str, statement: str) -> str:
    there = f"SELECT FROM {table} WHERE {column} = {_text(name)}"
    return f"SELECT {_text(statement)} WHERE NOT EXISTS ({there}) \\gexec"


def _text(value: str) -> str:
    """Quote text for PostgreSQL, with standard_conforming_strings."""
    return "'" + value.replace("'", "''") + "'"


def _name(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def services_text(answers: Answers, slurms: SlurmsOwn) -> str:
    """Return the script that makes the database, copies the files and starts the units."""
    port = urlsplit(answers.database_url).port or _PORT
    lines = ["install -m 644 environment /etc/slicewise/"] if slurms.is_elsewhere else []
    if daemon_text(answers):
        unit = "/etc/systemd/system/slicewise-daemon.service.d"
        lines.append(f"install -D -m 644 daemon.conf {unit}/daemon.conf")
    more = "".join(f"{line}\n" for line in lines)
    return f"""\
#!/bin/sh
# On slurmctld's host, as root; read it first. Nothing of it was run. It makes the database in the
# PostgreSQL of this host, copies the files beside it to their places, and starts Slicewise and
# HAProxy. It changes nothing of Slurm's, and may be run again.
set -eu
cd "$(dirname "$0")"
statements="psql --no-psqlrc --quiet --port={port} --set=ON_ERROR_STOP=1 postgres"
runuser -u postgres -- sh -c "cd /; exec $statements" < database.sql
install -d -m 755 /etc/slicewise
install -m 644 --compare --backup=numbered slicewise.toml /etc/slicewise/
install -m 640 -g {answers.slurm_user} database-url /etc/slicewise/
install -m 600 -o slicewise launcher-database-url /etc/slicewise/
{more}slicewise ledger db upgrade
slicewise ledger db grant slicewise_launcher --as launcher
systemctl daemon-reload
systemctl enable slicewise-daemon
systemctl restart slicewise-daemon
sh ./gateway.sh
"""


_STEPS = """\
# Steps to services without quotas in Slurm

Nothing was changed. The guide: {guide}

1. {conf}
2. Where the engine lies on the nodes: [engines.NAME] command in `slicewise.toml` beside this file.
3. Read `slicewise.toml`, `services.sh` and `gateway.sh`, then on {controller}, as root:
   `sh services.sh`. It leaves Slurm's configuration as it is. HAProxy of this host becomes the
   gateway, in place of what its own /etc/haproxy/haproxy.cfg serves.
4. Give an account of Slurm a quota, which bounds its services alone:
   `slicewise tenant-quota set ACCOUNT --nominal 7` (a GPU of weight 1 has seven slices).
5. As a user of that account: `slicewise service init DIRECTORY_OF_THE_MODEL`, then
   `slicewise service apply FILE --start`, and `slicewise key create ACCOUNT --name me`.

Later, quotas for all jobs: `slicewise setup` without --services-only, and section 3 of the
installation's guide.
"""


def steps_text(answers: Answers, guide: str, *, has_lines: bool) -> str:
    """Return the steps in their order; ``has_lines``: slurm.conf lacks something."""
    lacks = (
        "Add `slurm.conf.lines` to slurm.conf, then `scontrol reconfigure`: services need them,"
        "\n   and no job that does not use them is concerned."
    )
    conf = lacks if has_lines else "slurm.conf has all that services need."
    return _STEPS.format(guide=guide, conf=conf, controller=answers.controller)
