"""Looks at this host: files, users, ports, munge, and whether a name or an address is its own."""

import os
import re
import shutil
import socket
import ssl
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from stat import S_ISDIR

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.file_access import EVERY_USER, Need, Person, Right
from slicewise.cluster.language.host_findings import Space
from slicewise.cluster.language.slurm.values import numbers
from slicewise.cluster.rpc.munge import Munge
from slicewise.cluster.rpc.token_client import trust_of
from slicewise.cluster.runtime.host_look import (
    disabled_units,
    file_system,
    has_systemd,
    holders,
    inode_of,
    missing_files,
    person,
    processes,
    space,
    way_to,
    working_directory,
)
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.cluster.settings.file import DaemonSettings, Settings, host_and_port
from slicewise.cluster.settings.read import database_url, settings_file
from slicewise.slurm_plugin.common.job_submit import job_submit_script
from slicewise.slurm_plugin.rules.site.facts import (
    FileFacts,
    HostFacts,
    NodeCacheFacts,
    ShownCertificate,
    TokenFacts,
)
from slicewise.slurm_plugin.rules.slurm_config.node_lines import device_files

_ROOT = Person("root", 0)
_PATTERN = re.compile(r"[*?\[\s]")
_IPV4 = Path("/proc/sys/net/ipv4")
_SYSCTL = Path("/proc/sys")
_NAMESPACES = (
    ("user.max_user_namespaces", "0", "15000"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
)
_NODE_PROGRAMS = ("openssl", "unshare")
_PROOF = b"slicewise doctor"
_TTL_S = 60
_PASSWORD = re.compile(r"://[^\s/@:]*:[^\s@]+@|\bPGPASSWORD=.|[?&]password=")
"""Of a URL, or for all that libpq connects to."""
_MUNGE = Path("/run/munge/munge.socket.2")
_ENVIRONMENT, _USUAL_CONF = Path("/etc/slicewise/environment"), Path("/etc/slurm/slurm.conf")
_PRIVILEGED = (
    *("Prolog", "Epilog", "HealthCheckProgram", "RebootProgram", "PrologSlurmctld"),
    *("EpilogSlurmctld", "ResumeProgram", "SuspendProgram", "ResumeFailProgram"),
)
"""Keys of slurm.conf with programs that root or SlurmUser runs."""
_PATIENCE_S = 3.0
"""For a daemon's certificate."""
_FETCHED = Path("/run/slurm/conf")
"""What slurmd has from slurmctld where nodes have no files of their own."""
_PAGES_PORT = "slicewise-web.socket"
"""Once somebody asks there, systemd starts the page, too."""


def is_here(name: str) -> bool:
    """Whether a host's name or address is this host's: only then can a socket be bound to it."""
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False


def host_facts(
    settings: Settings,
    module: Path,
    config: Mapping[str, str],
    *,
    is_controller: bool,
    needs_munge: bool,
) -> HostFacts:
    """Return what is to be checked of this host; ``module`` is slicewise.lua.

    ``config`` is slurm.conf as slurmctld has it, empty if it does not answer.
    """
    needs = tuple(_every_users_needs(settings))
    ports: tuple[tuple[str, str, int], ...] = ()
    if is_controller:
        needs += tuple(_slurm_users_needs(settings, module, config))
        daemon = settings.daemon
        named = (("[daemon] listen", daemon.listen), ("[daemon] metrics", daemon.metrics))
        ports = tuple((name, *host_and_port(text)) for name, text in named if text)
    return HostFacts(
        files=tuple(_files(settings, module, config, is_controller=is_controller)),
        users=_users(settings, is_controller=is_controller),
        munge=_munge(settings) if needs_munge else "",
        client_ports=_client_ports(),
        kept_ports=_kept_ports(),
        needs=needs,
        spaces=tuple(_spaces(settings, config, is_controller=is_controller)),
        holders=holders([port for _, _, port in ports]),
        ports=ports,
        disabled=disabled_units(_units(settings, needs_munge) if is_controller else ()),
        missing_files=missing_files("slicewise"),
        confs=_confs(config) if is_controller else ("", ""),
        tokens=token_facts(settings.daemon, config) if is_controller else TokenFacts(),
        certificates=tuple(_certificates(settings.daemon)),
    )


def _units(settings: Settings, needs_munge: bool) -> Iterator[str]:
    """Name the units that a controller needs after its next start."""
    yield "slicewise-daemon.service"
    if needs_munge:
        yield "munge.service"
    if settings.web.listen:
        yield _PAGES_PORT


def _files(
    settings: Settings, module: Path, config: Mapping[str, str], *, is_controller: bool
) -> Iterator[FileFacts]:
    slurm, launcher = settings.daemon.slurm_user, settings.daemon.launcher_user
    operators = ("root", slurm)

    def file(path: Path | None, duty: str, owners: tuple[str, ...]) -> Iterator[FileFacts]:
        if path is not None and not (way := way_to(path)).missing:
            yield FileFacts(way, duty, owners)

    yield from file(settings_file(), "own", operators)
    yield from file(settings_file().parent, "own", operators)
    environment = settings_file().parent / "environment"
    holds = _holds_password(environment)
    # All units read it: who can change it says what they run.
    for facts in file(environment, "secret" if holds else "own", ("root",)):
        yield replace(facts, holds_password=holds)
    yield from file(settings.gateway.directory, "own", ("root", launcher))
    yield from file(settings.gateway.directory / "identity.pem", "secret", (launcher, "root"))
    yield from file(settings.gateway.identity, "own", (*operators, launcher))
    yield from file(settings.database.url_file, "secret", (slurm, "root"))
    yield from file(settings.launcher.url_file, "secret", (launcher, "root"))
    for need in _programs(config, _PRIVILEGED, _ROOT, ""):
        yield from file(Path(need.way.asked), "own", operators)
    if is_controller:
        web = settings.web
        yield from file(settings.daemon.run_dir, "own", (slurm,))
        yield from file(module, "own", operators)
        yield from file(Path(sys.executable), "own", operators)
        yield from file(job_submit_script(), "own", operators)
        # It says what slurmctld and slurmd run as root.
        conf = Path(config.get("SLURM_CONF", ""))
        yield from file(conf if conf.is_absolute() else None, "own", operators)
        state = Path(config.get("StateSaveLocation", ""))
        yield from file(state if state.is_absolute() else None, "own", operators)
        yield from file(settings.daemon.slurmrestd_token, "secret", operators[::-1])
        for token in settings.marketplace.tokens.values():
            yield from file(token, "secret", operators[::-1])
        for path in (web.proxy_secret_file, web.oidc.client_secret_file):
            yield from file(path, "secret", ("root", web.user))
        yield from file(settings.daemon.certificate, "secret", (slurm, "root"))
        # The daemon alone reads the key of Slurm's tokens.
        yield from file(settings.daemon.slurm_jwt_key, "secret", (slurm, "root"))


def _every_users_needs(settings: Settings) -> Iterator[Need]:
    """Yield what commands of any user read, and whom they ask."""
    wanted = (
        (settings_file(), Right.READ, "commands of users know nothing of the site"),
        (settings.gateway.identity, Right.READ, "users can't apply services"),
        (settings.daemon.user_socket, Right.WRITE, "commands of users can't ask the daemon"),
        (
            settings.daemon.certificate_authority,
            Right.READ,
            "commands of users don't believe a daemon on another host",
        ),
        (
            settings.daemon.munge_socket or _MUNGE,
            Right.WRITE,
            "where munge is used, users can't submit jobs, nor ask the daemon",
        ),
    )
    for path, right, why in wanted:
        if path is not None:
            yield Need(way_to(path), EVERY_USER, right, why)


def token_facts(daemon: DaemonSettings, config: Mapping[str, str]) -> TokenFacts:
    """Return by which keys the daemon knows, and Slurm signs, tokens."""
    key = daemon.slurm_jwt_key
    return TokenFacts(
        known_by=str(key.resolve()) if key and config else "",
        signed_by=signing_key(config),
        auth_alt={key: text for key, text in config.items() if key.startswith("AuthAlt")},
    )


def signing_key(config: Mapping[str, str]) -> str:
    """Return the file with which Slurm signs tokens; "" if it makes none."""
    if "auth/jwt" not in config.get("AuthAltTypes", "").split(","):
        return ""
    words = dict(
        parameter.partition("=")[::2]
        for parameter in config.get("AuthAltParameters", "").split(",")
    )
    if "jwks" in words and "jwt_key" not in words:
        return ""
    return str(Path(words.get("jwt_key") or usual_signing_key(config)).resolve())


def usual_signing_key(config: Mapping[str, str]) -> Path:
    """Return where Slurm looks for the key if slurm.conf does not say."""
    return Path(config.get("StateSaveLocation", "/"), "jwt_hs256.key")


def _certificates(daemon: DaemonSettings) -> Iterator[ShownCertificate]:
    """Yield what daemons show who ask by https; nothing of those that don't answer."""
    for place in daemon.connect if daemon.certificate else ():
        where = host_and_port(place)
        with suppress(OSError, UnicodeError):
            plain = socket.create_connection(where, _PATIENCE_S)
            try:
                with plain, trust_of(daemon).wrap_socket(plain, server_hostname=where[0]) as met:
                    shown = met.getpeercert() or {}
            except ssl.SSLCertVerificationError as error:
                yield ShownCertificate(place, error.verify_message.rstrip("."))
            else:
                yield ShownCertificate(
                    place, ends_s=ssl.cert_time_to_seconds(str(shown["notAfter"]))
                )


def _holds_password(path: Path) -> bool:
    """Whether a file of variables has a URL with a password, or one for all that libpq does."""
    with suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return any(_PASSWORD.search(line) for line in lines if line[:1] != "#")
    return False


def _slurm_users_needs(
    settings: Settings, module: Path, config: Mapping[str, str]
) -> Iterator[Need]:
    """Yield what slurmctld and the daemon, both SlurmUser's, read and connect to."""
    if (user := person(settings.daemon.slurm_user)) is None:
        return
    daemon, read, write = settings.daemon, Right.READ, Right.WRITE
    starts, admits = "the daemon does not start", "slurmctld does not run it, and admits no job"
    no_tokens = "the daemon can't check tokens of Slurm"
    no_orders = "the daemon refuses the marketplace's agent"
    named: tuple[tuple[Path | str | None, Right, str], ...] = (
        (settings.database.url_file, read, starts),
        (Path(sys.executable), read | Right.ENTER, starts),
        (Path(__file__), read, starts),
        (daemon.slurm_jwt_key, read, no_tokens),
        (daemon.certificate, read, starts),
        (daemon.slurmrestd_token, read, "the daemon can't ask slurmrestd"),
        *((path, read, no_orders) for path in settings.marketplace.tokens.values()),
        (module, read, admits),
    )
    passing: tuple[tuple[Path | str | None, Right, str], ...] = (
        (job_submit_script(), read, admits),
        (config.get("SLURM_CONF"), read, "neither slurmctld nor the daemon's commands start"),
        (daemon.run_dir, write | Right.ENTER, "the daemon makes no socket there"),
        (daemon.admission_socket, write, "slurmctld can't ask the daemon: jobs pass undecided"),
        (daemon.munge_socket or _MUNGE, write, "the daemon knows nobody who asks by munge"),
        (_database_socket(settings), write, "the daemon does not reach the ledger"),
    )
    for wanted, may_be_missing in ((named, False), (passing, True)):
        for path, right, why in wanted:
            if path is not None and str(path):
                yield Need(way_to(path), user, right, why, may_be_missing)
    of_slurmctld = ("PrologSlurmctld", "EpilogSlurmctld")
    yield from _programs(config, of_slurmctld, user, "slurmctld can't run it: jobs are held")


def _database_socket(settings: Settings) -> Path | None:
    """Return PostgreSQL's socket, if the ledger is asked by one whose folder is known."""
    from slicewise.cluster.runtime.database import database_place  # noqa: PLC0415 -- not for --help

    with suppress(SlicewiseError):
        place = database_place(database_url(settings.database))
        if place.host.startswith("/"):
            return Path(place.host, f".s.PGSQL.{place.port}")
    return None


def _spaces(
    settings: Settings, config: Mapping[str, str], *, is_controller: bool
) -> Iterator[Space]:
    yield from space(settings_file().parent, "slicewise.toml")
    yield from space(Path(sys.executable).parent, "Slicewise's programs", "they")
    yield from space(Path("/var/log"), "logs")
    if is_controller:
        yield from space(settings.daemon.run_dir, "the daemon's sockets")
        for key, what in (
            ("StateSaveLocation", "slurmctld's state"),
            ("SlurmctldLogFile", "slurmctld's log"),
        ):
            path = Path(config.get(key, ""))
            if path.is_absolute():
                yield from space(path if path.is_dir() else path.parent, what)
    # Each server works in its data's folder; its children do, too.
    for program, user, what in (
        ("postgres", "postgres", "PostgreSQL's data"),
        ("mariadbd", "mysql", "slurmdbd's data"),
        ("mysqld", "mysql", "slurmdbd's data"),
    ):
        data = {working_directory(pid) for pid in processes(program, user)}
        for path in sorted(part for part in data if part is not None):
            yield from space(path, what)


def _confs(config: Mapping[str, str]) -> tuple[str, str]:
    """Return the slurm.conf of this shell, and that of systemd's units; the same if it may be.

    Without a variable Slurm's commands read the file for which they were built. Which one that is
    for this shell, slurmctld says.
    """
    shells, units = os.environ.get("SLURM_CONF", ""), ""
    with suppress(OSError):
        for line in _ENVIRONMENT.read_text(errors="replace").splitlines():
            if line.startswith("SLURM_CONF="):
                units = line.partition("=")[2].strip("\"' ")
    here, there = shells or config.get("SLURM_CONF", ""), units or str(_USUAL_CONF)
    is_known = has_systemd() and here and shells != units
    return here, there if is_known and Path(there).resolve() != Path(here).resolve() else here


def engine_needs(engines: Mapping[str, EngineSettings]) -> tuple[Need, ...]:
    """Return that every user can run the servers which [engines.NAME] command names, on a node."""
    return tuple(
        Need(
            way_to(engine.command),
            EVERY_USER,
            Right.ENTER,
            f"replicas of {name} don't start",
            False,
        )
        for name, engine in engines.items()
        if engine.command is not None
    )


def slurmds_needs(config: Mapping[str, str]) -> tuple[Need, ...]:
    """Return that the site's programs which slurmd runs on a node are there."""
    fails = "slurmd can't run it, drains the node and holds the job"
    return (
        *_programs(config, ("Prolog", "Epilog"), _ROOT, fails),
        *_programs(config, ("TaskProlog", "TaskEpilog"), EVERY_USER, "no task runs it"),
        *_programs(config, ("HealthCheckProgram",), _ROOT, "nobody looks at the node's health"),
    )


def device_needs(config: Mapping[str, str], name: str, host_root: Path) -> Iterator[Need]:
    """Yield that the device files are there which gres.conf of this node names for ``name``."""
    conf = os.environ.get("SLURM_CONF") or config.get("SLURM_CONF") or _USUAL_CONF
    why = "slurmd waits 20 s for it, then ends with a fatal error: the node is down"
    for folder in (Path(conf).parent, _FETCHED):
        with suppress(OSError, ValueError):  # Neither there nor a path.
            text = (host_root / folder.relative_to("/") / "gres.conf").read_text(errors="replace")
            for file in dict.fromkeys(device_files(text, name)):
                way = way_to(host_root / file.lstrip("/"))
                yield Need(way, _ROOT, Right.READ, why, False, "gres.conf")
            return


def _programs(
    config: Mapping[str, str], keys: Collection[str], user: Person, why: str
) -> Iterator[Need]:
    """Yield that the user can run the programs that these keys of slurm.conf name.

    Newer versions number them: ``Prolog[0]``. A pattern names any number, none too.
    """
    for key, path in config.items():
        is_one = path.startswith("/") and not _PATTERN.search(path)
        if key.partition("[")[0] in keys and is_one:
            yield Need(way_to(path), user, Right.ENTER, why, False, "slurm.conf")


def node_spaces(config: Mapping[str, str], name: str) -> tuple[Space, ...]:
    """Return the room in the folders into which jobs and slurmd write on GPU node ``name``."""
    # slurm.conf may name the node in it (%n), and its host (%h).
    pattern = config.get("SlurmdSpoolDir", "")
    spool = Path(pattern.replace("%n", name).replace("%h", socket.gethostname().split(".")[0]))
    shared, own = Path("/dev/shm"), Path("/tmp")  # noqa: S108 -- looked at
    named = (
        (spool, "slurmd's spool", "scripts of batch jobs, and so replicas,"),
        (own, "jobs' files", ""),
        (shared, "jobs' shared memory", ""),
    )
    return tuple(one for path, *of in named if path.is_absolute() for one in space(path, *of))


def node_cache_facts(folder: Path) -> NodeCacheFacts:
    """Return what is to be checked of the folder of ``launcher.node_cache`` on this node."""
    # As weights.py, which gives servers no path by a link.
    way = way_to(os.path.realpath(folder))
    if way.target is None or not S_ISDIR(way.target.mode):
        return NodeCacheFacts(str(folder), way.target)
    homes = {}
    with suppress(OSError):
        for home in sorted(folder.iterdir()):
            # A link is no folder, wherever it leads.
            if home.name.isdecimal():
                homes[home.name] = inode_of(str(home))
    return NodeCacheFacts(
        str(folder),
        way.target,
        file_system(folder),
        homes,
        way.folders,
        size_mib=_size_mib(folder),
        # As slurmd counts it.
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
    )


def _size_mib(folder: Path) -> int:
    """Return how much the folder's file system takes at most, rounded up."""
    seen = os.statvfs(folder)
    return -(-seen.f_blocks * seen.f_frsize >> 20)


def _users(settings: Settings, *, is_controller: bool) -> Mapping[str, bool]:
    daemon = settings.daemon
    asked = {f"launcher_user={daemon.launcher_user}": daemon.launcher_user}
    if is_controller:
        asked[f"slurm_user={daemon.slurm_user}"] = daemon.slurm_user
    return {key: person(name) is not None for key, name in asked.items()}


def _munge(settings: Settings) -> str:
    """Return why this user's own credential can't be made and read here; "" if it can."""
    munge = Munge(settings.daemon.munge_socket)
    try:
        munge.decode(munge.encode(_PROOF, os.getuid(), _TTL_S))
    except SlicewiseError as error:
        return error.refusal.message
    return ""


def _client_ports() -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        first, last = (_IPV4 / "ip_local_port_range").read_text(encoding="ascii").split()
        return int(first), int(last)
    return None


def _kept_ports() -> frozenset[int]:
    with suppress(OSError, SlicewiseError):
        text = (_IPV4 / "ip_local_reserved_ports").read_text(encoding="ascii").strip()
        return frozenset(numbers(text))
    return frozenset()


def missing_programs(pythons: Iterable[str]) -> tuple[str, ...]:
    """Return which programs that a replica's script runs are not on PATH here."""
    wanted = (*dict.fromkeys(pythons), *_NODE_PROGRAMS)
    return tuple(name for name in wanted if shutil.which(name) is None)


def namespace_bars() -> Mapping[str, str]:
    """Return settings of the kernel that bar users from making namespaces, with what lets them.

    The second is Debian's own, the third Ubuntu's since 24.04.
    """
    found = {}
    for name, bars, lets in _NAMESPACES:
        with suppress(OSError):
            if (_SYSCTL / name.replace(".", "/")).read_text(encoding="ascii").strip() == bars:
                found[name] = lets
    return found
