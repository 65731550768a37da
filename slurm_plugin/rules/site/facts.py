"""What the doctor knows of a site: one frozen value from each place that it asks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.file_access import Inode, Need, Way
from slicewise.cluster.language.host_findings import Holder, Space
from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.cluster.language.slurm.billing_limits import BillingLimit
from slicewise.cluster.language.slurm.interface import Qos


@dataclass(frozen=True)
class Wanted:
    """What slicewise.toml says that Slurm must agree with.

    Attributes:
        mode: the daemon's.
        costs: millislices by GRES type.
        priority_max: the highest site_factor.
        munge_socket: "" where it is libmunge's default.
        asks_by_munge: whether commands of other hosts ask the daemon by munge.
        servers: most replicas of one service.
        grace_s, term_s: how long borrowed replicas may finish their requests, and for how long a
            loan is left alone at all.
    """

    cluster: str
    partitions: tuple[str, ...]
    mode: str
    slurm_user: str
    costs: Mapping[str, int] = field(hash=False)
    billing: BillingUnit = MILLISLICES
    priority_max: int = 10_000
    munge_socket: str = ""
    asks_by_munge: bool = False
    servers: int = 16
    grace_s: int = 60
    term_s: int = 0


@dataclass(frozen=True)
class SlurmFacts:
    """What slurmctld says of itself.

    Attributes:
        config: ``scontrol show config``, with cgroup.conf.
        clock_ahead_s: seconds by which its clock is ahead of this host's; None if unknown.
        billing_limits: limits on billing of associations and QOS; None if unknown.
        qos: those of slurmdbd; None if unknown.
    """

    config: Mapping[str, str] = field(hash=False)
    partitions: tuple[PartitionView, ...]
    nodes: tuple[NodeView, ...]
    clock_ahead_s: float | None = None
    billing_limits: tuple[BillingLimit, ...] | None = None
    qos: tuple[Qos, ...] | None = None


@dataclass(frozen=True)
class ScriptFacts:
    """job_submit.lua and slicewise.lua on this host, and what slurmctld has loaded of them.

    Attributes:
        script: path of job_submit.lua.
        text: its text; None if there is none.
        problem: why slurmctld's Lua can't run slicewise.lua, or can't read the script; "" if it
            can.
        has_old_lines: whether its lines are not those that would be proposed now.
        is_off: whether the kill switch is set.
        on_disk: version of slicewise.lua on disk.
        module: path that the lines load; "" if it is not found in them.
        is_module_there: whether that file exists.
        loaded: version that slurmctld has loaded; "" if it has asked nothing yet, or if the daemon
            does not say.
        loaded_mode: its mode.
        unadmitted: jobs with GPUs that it was not asked about.
    """

    script: str
    text: str | None
    problem: str = ""
    has_old_lines: bool = False
    is_off: bool = False
    on_disk: str = ""
    module: str = ""
    is_module_there: bool = True
    loaded: str = ""
    loaded_mode: str = ""
    unadmitted: int = 0


@dataclass(frozen=True)
class DaemonFacts:
    """What the daemon answers.

    Attributes:
        own_version: version of the commands, which ask it.
        looked_s: seconds since its last look at Slurm.
        lost_socket: path of its admission socket, which is not there; "" if it is, or belongs on
            another host.
    """

    version: str
    own_version: str
    mode: str
    leads: bool
    complete: bool
    looked_s: float
    lost_socket: str = ""


@dataclass(frozen=True)
class FileFacts:
    """A file or directory of Slicewise that is here.

    Attributes:
        duty: what it must be: ``secret``, only for owner and group; ``own``, written by nobody but
            its owner.
        owners: who may own it.
        holds_password: whether there is a URL with a password in it, which is for a file of its
            own.
    """

    way: Way
    duty: str
    owners: tuple[str, ...]
    holds_password: bool = False


@dataclass(frozen=True)
class TokenFacts:
    """The key of Slurm's tokens.

    Attributes:
        known_by: the file by which the daemon knows them; "" if it knows none, or if slurmctld does
            not answer.
        signed_by: that of slurm.conf; "" if Slurm makes no tokens.
        auth_alt: AuthAltTypes and AuthAltParameters of slurm.conf.
    """

    known_by: str = ""
    signed_by: str = ""
    auth_alt: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ShownCertificate:
    """The certificate that a daemon shows to other hosts, as commands of this host find it.

    Attributes:
        place: one of ``daemon.connect``.
        problem: why they don't believe it; "" if they do.
        ends_s: Unix seconds of its end.
    """

    place: str
    problem: str = ""
    ends_s: float = 0.0


@dataclass(frozen=True)
class NodeCacheFacts:
    """The folder of a node in which services keep copies of their models' files.

    Attributes:
        folder: its path, as ``launcher.node_cache`` has it.
        inode: owner and mode of what is there; None if nothing is, or not to be seen.
        file_system: the kind of its file system, as the kernel has it; "" if unknown.
        homes: folders of users in it, by their names.
        above: the folders that it lies in, without links.
        size_mib: how much its file system takes at most; 0: as much as there is.
        memory_mib: the node's memory.
    """

    folder: str
    inode: Inode | None = None
    file_system: str = ""
    homes: Mapping[str, Inode] = field(default_factory=dict, hash=False)
    above: tuple[Inode, ...] = ()
    size_mib: int = 0
    memory_mib: int = 0


@dataclass(frozen=True)
class HostFacts:
    """The host on which the doctor runs.

    Attributes:
        files: those of Slicewise that are here.
        users: whether each user exists, by ``SETTING=USER``.
        munge: why munge does not work here; "" if it does or is not needed.
        client_ports: first and last port of outgoing connections; None if unknown.
        kept_ports: ports that the kernel keeps out of these.
        needs: what users must be able to do with files here.
        spaces: room in the folders that are written to.
        holders: who listens on the ports of ``ports``, which are settings with host and port.
        disabled: units of systemd that are here and do not start with the host.
        missing_files: files of the package that are not there.
        confs: the slurm.conf of this shell, and that of systemd's units.
        certificates: those of daemons that are asked by https and answer.
    """

    files: tuple[FileFacts, ...] = ()
    users: Mapping[str, bool] = field(default_factory=dict, hash=False)
    munge: str = ""
    client_ports: tuple[int, int] | None = None
    kept_ports: frozenset[int] = frozenset()
    needs: tuple[Need, ...] = ()
    spaces: tuple[Space, ...] = ()
    holders: tuple[Holder, ...] = ()
    ports: tuple[tuple[str, str, int], ...] = ()
    disabled: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()
    confs: tuple[str, str] = ("", "")
    tokens: TokenFacts = TokenFacts()
    certificates: tuple[ShownCertificate, ...] = ()


@dataclass(frozen=True)
class WayBackFacts:
    """What would bring Slurm back without the ledger.

    Attributes:
        dump: path of the dump of sacctmgr that was looked for.
    """

    dump: str
    is_there: bool
    cluster: str


Answerer = Literal["page", "another", "nobody"]
"""Who answers at an address: the page's server, another program, or nobody."""


@dataclass(frozen=True)
class WebFacts:
    """The page in the browser, on the host of its server.

    Attributes:
        user: as whom the server runs; ``has_user`` whether this host has that user.
        answered: who answers at ``listen``.
        held_by: who listens there, in words, where another program answers; "" if unknown.
        needs: what the user must be able to do with files.
        is_plain: whether browsers of other hosts ask by http.
        shared_name: the host name of both page and gateway; "" if they have two.
    """

    listen: str
    user: str
    has_user: bool = True
    answered: Answerer = "page"
    held_by: str = ""
    needs: tuple[Need, ...] = ()
    is_plain: bool = False
    shared_name: str = ""
