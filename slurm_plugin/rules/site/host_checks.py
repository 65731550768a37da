"""Checks the daemon, this host's files, users and ports, and clocks."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from shlex import quote
from stat import S_ISDIR, S_ISVTX

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.file_access import Inode, not_led, replaceable, unmet
from slicewise.cluster.language.findings import Finding, Mend, Place, error, hint, warning
from slicewise.cluster.language.host_findings import (
    package_checks,
    port_checks,
    space_checks,
    unit_checks,
)
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.slurm.values import numbers_text
from slicewise.cluster.rpc.key_messages import KeyView
from slicewise.slurm_plugin.rules.site.facts import (
    DaemonFacts,
    FileFacts,
    HostFacts,
    NodeCacheFacts,
)
from slicewise.slurm_plugin.rules.site.token_checks import token_checks
from slicewise.slurm_plugin.rules.slurm_config.conf_words import node_words

_LATE_S = 30.0
_SKEW_S = 2.0
_WORLD, _OTHERS_WRITE = 0o007, 0o022
_ENVIRONMENT = "/etc/slicewise/environment"
_RESTART = Mend(Place.DAEMON, "systemctl restart slicewise-daemon")


def daemon_checks(facts: DaemonFacts, mode: str, *, is_pair: bool) -> Iterator[Finding]:
    """Say what is wrong with a daemon that answers; ``mode`` is that of the settings."""
    if facts.version != facts.own_version:
        yield warning(
            Code.RESTART,
            f"The daemon is version {facts.version}, the commands here {facts.own_version}",
            "one of them may not understand the other",
            _RESTART,
        )
    if facts.mode != mode:
        yield warning(
            Code.RESTART,
            f"The daemon runs in mode {facts.mode}, slicewise.toml says {mode}",
            "it reads its settings at its start only",
            _RESTART,
        )
    if not facts.leads and not is_pair:
        yield warning(
            Code.DAEMON_RUNNING,
            "The daemon does not lead, and [daemon] pair is false",
            "another daemon with the same ledger acts on Slurm",
            advice="Stop the other one, or set pair = true on both hosts.",
        )
    if facts.lost_socket:
        yield error(
            Code.DAEMON_DOWN,
            f"The daemon runs, and its socket {facts.lost_socket} is not there",
            "slurmctld can't ask it: jobs pass undecided",
            _RESTART,
            advice="Something removed it, such as a cleaner of old files.",
        )
    if not facts.complete:
        yield error(
            Code.DAEMON_BLIND,
            "The daemon's last look at Slurm was not complete",
            "it decides by what it saw before, and changes nothing",
            Mend(Place.DAEMON, "journalctl -u slicewise-daemon -n 50"),
        )
    elif facts.looked_s > _LATE_S:
        yield warning(
            Code.DAEMON_BLIND,
            f"The daemon looked at Slurm {facts.looked_s:.0f} s ago",
            "services and limits follow late",
            Mend(Place.DAEMON, "journalctl -u slicewise-daemon -n 50"),
        )


def key_checks(keys: Iterable[KeyView], now_s: float) -> Iterator[Finding]:
    """Name the valid keys of who is no member of their tenant any more."""
    for key in keys:
        if key.has_left and key.is_valid(now_s):
            yield warning(
                Code.KEY_LEFT,
                f"API key {key.key_id} ({key.name}) of {key.tenant} is {key.person}'s,"
                " who is not in that account any more",
                "it lets nothing in until its person is in the account again",
                Mend(Place.HOST, f"slicewise key delete {key.key_id}"),
                advice="If a program needs one, let a member make another first.",
            )


def host_checks(facts: HostFacts, replica_ports: frozenset[int]) -> tuple[Finding, ...]:
    """Return what is wrong on this host; ``replica_ports`` are those of MpiParams."""
    ways = [file.way for file in facts.files]
    owners = {"root", *(owner for file in facts.files for owner in file.owners)}
    return (
        *(finding for file in facts.files for finding in _file(file, owners)),
        *(finding for way in ways for finding in replaceable(way, owners)),
        *unmet(facts.needs, ways),
        *space_checks(facts.spaces),
        *port_checks(facts.holders, facts.ports, owners),
        *unit_checks(facts.disabled),
        *package_checks(facts.missing_files),
        *_confs(*facts.confs),
        *_users(facts.users),
        *_munge(facts.munge),
        *token_checks(facts.tokens),
        *_client_ports(facts, replica_ports),
    )


def _file(file: FileFacts, owners: Collection[str]) -> Iterator[Finding]:
    """Say what is wrong with a file; ``owners`` are those of all files of Slicewise."""
    if (target := file.way.target) is not None:
        for finding in _rights_of(file, target):
            yield not_led(finding, [file.way], target, owners)


def _rights_of(file: FileFacts, inode: Inode) -> Iterator[Finding]:
    mode, path = inode.mode & 0o7777, file.way.asked
    if file.duty == "secret" and mode & _WORLD:
        yield error(
            Code.FILE_RIGHTS,
            f"{path} has mode {mode:04o}",
            "every user of this host can read it, and act as Slicewise",
            Mend(Place.HOST, f"chmod {mode & 0o770:04o} {quote(inode.path)}"),
        )
    elif file.duty == "own" and mode & _OTHERS_WRITE:
        yield error(
            Code.FILE_RIGHTS,
            f"{path} has mode {mode:04o}",
            "others than its owner can change it",
            Mend(Place.HOST, f"chmod {mode & ~_OTHERS_WRITE:04o} {quote(inode.path)}"),
        )
    if file.holds_password:
        yield error(
            Code.FILE_RIGHTS,
            f"{path} holds a password of the database",
            "every unit of Slicewise gets it, the page's server and the launcher, too, which must"
            " not have the ledger's",
            advice="Put the URL into the file that [database] url_file names, 0640 with SlurmUser's"
            " group, and take it out there.",
        )
    if inode.owner not in file.owners:
        yield error(
            Code.FILE_RIGHTS,
            f"{path} belongs to {inode.owner}, not to {' or '.join(file.owners)}",
            "who owns it can change it, and who needs it may not reach it",
            Mend(Place.HOST, f"chown -h {file.owners[0]} {quote(inode.path)}"),
        )


def _confs(here: str, of_units: str) -> Iterator[Finding]:
    if here != of_units:
        # Also ends a last line that has no end.
        line = f"sed -i -e '/^SLURM_CONF=/d' -e '$a\\' {_ENVIRONMENT}"
        yield error(
            Code.CONF_DIFFERS,
            f"slurm.conf is {here} for this shell, and {of_units} for units of systemd",
            "the daemon's commands see another Slurm than was looked at, or none",
            Mend(Place.HOST, f"{line}; echo SLURM_CONF={quote(here)} >> {_ENVIRONMENT}"),
            Mend(Place.DAEMON, "systemctl restart slicewise-daemon"),
            advice=f"If that of the units is right: SLURM_CONF={quote(of_units)} slicewise doctor.",
        )


def _users(users: Mapping[str, bool]) -> Iterator[Finding]:
    for key, is_there in sorted(users.items()):
        setting, _, name = key.partition("=")
        if not is_there:
            yield error(
                Code.USER,
                f"This host has no user {name}, which [daemon] {setting} names",
                "the daemon knows the launcher, and slurmctld the daemon, by their uid: it must be"
                " the same on all hosts",
                Mend(Place.HOST, f"useradd --system {name}"),
            )


def _munge(problem: str) -> Iterator[Finding]:
    if problem:
        yield error(
            Code.MUNGE,
            f"munge does not work here: {problem.removesuffix('.')}",
            "commands on this host can't ask the daemon of another, nor can Slurm's",
            Mend(Place.HOST, "systemctl restart munge"),
            Mend(Place.HOST, "munge -n | unmunge"),
        )


def _client_ports(facts: HostFacts, replica_ports: frozenset[int]) -> Iterator[Finding]:
    if facts.client_ports is None:
        return
    first, last = facts.client_ports
    shared = frozenset(port for port in replica_ports - facts.kept_ports if first <= port <= last)
    if shared:
        text = numbers_text(shared)
        yield warning(
            Code.HOST_PORTS,
            f"The kernel gives ports {text}, of MpiParams, to outgoing connections, too",
            "a replica whose port is taken does not start",
            Mend(Place.HOST, f"sysctl -w net.ipv4.ip_local_reserved_ports={text}"),
            advice=f"On all GPU nodes, and in /etc/sysctl.d; or choose MpiParams below {first}.",
        )


def clock_checks(ahead_s: Mapping[str, float | None]) -> Iterator[Finding]:
    """Name servers whose clock differs from this host's, by seconds that they are ahead."""
    for name, seconds in ahead_s.items():
        if seconds is not None and abs(seconds) > _SKEW_S:
            way = "ahead of" if seconds > 0 else "behind"
            yield error(
                Code.CLOCK_SKEW,
                f"The clock of {name} is {abs(seconds):.0f} s {way} this host's",
                "munge refuses what is too old or too new, waiting times and charges are wrong",
                Mend(Place.HOST, "systemctl enable --now chrony"),
                advice="On all hosts.",
            )


def node_programs_checks(missing: tuple[str, ...], bars: Mapping[str, str]) -> Iterator[Finding]:
    """Say what a GPU node lacks for replicas; ``bars`` keep users from namespaces."""
    for name in missing:
        package = Mend(Place.NODE, f"apt install {_PACKAGES.get(name, name)}")
        is_path = "/" in name
        yield error(
            Code.PROGRAM,
            f"This node has no {name}",
            "a replica does not start without it",
            *([] if is_path else [package]),
            advice="Install it there on all GPU nodes, or correct the path in [engines]."
            if is_path
            else "",
        )
    for name, lets in bars.items():
        yield error(
            Code.NODE_NAMESPACES,
            f"Users of this node may make no namespaces, by {name}",
            "a replica gets no /dev/shm of its own, and does not start",
            Mend(Place.NODE, f"sysctl -w {name}={lets}"),
            advice="Also in /etc/sysctl.d. Where job_container/tmpfs gives each job a /dev/shm: "
            "engines.triton.private_shm = false.",
        )


def node_cache_checks(facts: NodeCacheFacts, node: NodeView | None) -> Iterator[Finding]:
    """Say why services can't keep their models' files on this node, or gain nothing by it.

    ``node`` is what slurmctld says of it.
    """
    folder, inode = facts.folder, facts.inode
    why = "servers start all the same, and read model_repository each time"
    make = f"d {folder} 1777 root root -"
    mends = (
        Mend(Place.NODE, f"echo '{make}' >{_CACHE_CONF}"),
        Mend(Place.NODE, f"systemd-tmpfiles --create {_CACHE_CONF}"),
    )
    if inode is None:
        yield warning(
            Code.NODE_CACHE, f"This node has no {folder} (launcher.node_cache)", why, *mends
        )
        return
    if not S_ISDIR(inode.mode):
        yield warning(
            Code.NODE_CACHE,
            f"{folder} (launcher.node_cache) is no folder",
            why,
            advice="Remove it, or name another one.",
        )
        return
    for above in filter(_lets_replace, facts.above):
        yield warning(
            Code.NODE_CACHE,
            f"{above.path}, on the way to {folder} (launcher.node_cache), has {above.whose}",
            f"others than root can replace it: {why}",
            Mend(Place.NODE, f"chown root {quote(above.path)}"),
            Mend(Place.NODE, f"chmod go-w {quote(above.path)}"),
        )
    if _lets_replace(inode):
        problem = f"{folder} (launcher.node_cache) has {inode.whose}, not mode 1777, root:root"
        yield warning(Code.NODE_CACHE, problem, why, *mends)
    elif not inode.mode & _WORLD_WRITES:
        problem = f"No user can keep anything in {folder} (launcher.node_cache): {inode.whose}"
        yield warning(Code.NODE_CACHE, problem, why, *mends)
    if facts.file_system in _REMOTE:
        yield warning(
            Code.NODE_CACHE,
            f"{folder} (launcher.node_cache) lies on {facts.file_system}, not on this node",
            "a copy there saves nothing",
            advice="Name a folder on a disk of the nodes.",
        )
    if facts.file_system in _MEMORY:
        yield from _memory_checks(facts, node)
    for name, home in facts.homes.items():
        if name != str(home.uid) or home.mode & _WORLD_OR_GROUP:
            yield warning(
                Code.NODE_CACHE,
                f"{home.path} has {home.whose}, where only user {name} may come",
                f"jobs of user {name} keep nothing there",
                Mend(Place.NODE, f"rm -rf {quote(home.path)}"),
            )


def _memory_checks(facts: NodeCacheFacts, node: NodeView | None) -> Iterator[Finding]:
    """Say whether Slurm gives jobs the memory that copies take.

    The kernel charges a copy to the job that makes it, and to no job once that one has ended.
    """
    folder, size_mib, left_mib = facts.folder, facts.size_mib, facts.memory_mib - facts.size_mib
    why = "the kernel kills jobs when copies are in the memory that Slurm has given them"
    if not size_mib or left_mib <= 0:
        yield warning(
            Code.NODE_CACHE,
            f"{folder} (launcher.node_cache) is memory, and may take all of the node's",
            why,
            advice="Mount a tmpfs there with size=, and take as much out of RealMemory.",
        )
    elif node is not None and node.memory_mib > left_mib:
        yield warning(
            Code.NODE_CACHE,
            f"{folder} (launcher.node_cache) may take {size_mib} MiB of this node's"
            f" {facts.memory_mib} MiB of memory, of which Slurm gives jobs {node.memory_mib}",
            why,
            node_words(node.name, f"RealMemory={left_mib}, in place of its own"),
        )
    else:
        yield hint(
            Code.NODE_CACHE,
            f"{folder} (launcher.node_cache) is memory",
            "until it has ended, a job that makes a copy has its size less for itself",
            advice="It is made where memory_mib is twice its size.",
        )


def _lets_replace(folder: Inode) -> bool:
    """Whether others than root can put something else in the place of what lies there."""
    return folder.uid != 0 or bool(folder.mode & _OTHERS_WRITE and not folder.mode & S_ISVTX)


_CACHE_CONF = "/etc/tmpfiles.d/slicewise-node-cache.conf"
_WORLD_WRITES, _WORLD_OR_GROUP = 0o002, 0o077
_REMOTE = frozenset({"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "9p"})
_MEMORY = frozenset({"tmpfs", "ramfs"})
_PACKAGES = {"unshare": "util-linux"}
