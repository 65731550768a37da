"""Where everything of one sandbox lies: paths, addresses, ports."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from slicewise.sandbox.host.inventory import NODES

DAEMON_ROLE = "slicewise_daemon"
"""The daemon's role in PostgreSQL, which may alter no entry; Slurm's user owns the tables."""
LAUNCHER_ROLE = "slicewise_launcher"
"""The launcher's role, which has its own schema and sees nothing else."""

_SERVERS = ("slurmctld", "slurmdbd", "slurmd", "gateway", "daemon", "web")


@dataclass(frozen=True)
class Layout:
    """One sandbox's directory and its place on the loopback network.

    Attributes:
        directory: absolute, resolved.
        slot: 1 to 250; picks the loopback network, the ports and, as root, the user ids, so that
            sandboxes beside each other share none of them.
    """

    directory: Path
    slot: int

    @property
    def head_address(self) -> str:
        """Where slurmctld, slurmdbd and HAProxy listen.

        slurmdbd calls slurmctld back at the address from which slurmctld's own connection came:
        127.0.0.1, the source address of every connection on the loopback network.
        """
        return "127.0.0.1"

    @property
    def node_addresses(self) -> Mapping[str, str]:
        """Each node's own address, by node name."""
        return {node.name: f"127.77.{self.slot}.{11 + i}" for i, node in enumerate(NODES)}

    def port(self, server: str) -> int:
        """The port of slurmctld, slurmdbd, slurmd, the gateway, Slicewise's daemon or its page."""
        return 10000 + 20 * self.slot + _SERVERS.index(server)

    @property
    def reserved_ports(self) -> range:
        """Ports that ``srun --resv-ports`` allots; below the ports of outgoing connections."""
        first = 16000 + 400 * (self.slot % 40)
        return range(first, first + 400)

    @property
    def gateway_url(self) -> str:
        """Where clients of services send their requests."""
        return f"http://{self.head_address}:{self.port('gateway')}"

    @property
    def web_address(self) -> str:
        """HOST:PORT of the page, where it is started."""
        return f"{self.head_address}:{self.port('web')}"

    @property
    def bin(self) -> Path:
        """First on PATH of every process here."""
        return self.directory / "bin"

    @property
    def etc(self) -> Path:
        """Configuration, all of it generated."""
        return self.directory / "etc"

    @property
    def log(self) -> Path:
        """One NAME.log per program."""
        return self.directory / "log"

    @property
    def lib(self) -> Path:
        """Data of the servers."""
        return self.directory / "lib"

    @property
    def run(self) -> Path:
        """Sockets, in one directory per server."""
        return self.directory / "run"

    @property
    def run_dir(self) -> Path:
        """The daemon's sockets."""
        return self.run / "slicewise"

    @property
    def devices(self) -> Path:
        """Emulated GPU device nodes, in one directory per node."""
        return self.directory / "dev"

    @property
    def drivers(self) -> Path:
        """Emulated NVIDIA drivers, in one directory per node, and their library."""
        return self.lib / "nvml"

    @property
    def nodelay(self) -> Path:
        """The library with which TCP sends each write immediately."""
        return self.lib / "libnodelay.so"

    @property
    def home(self) -> Path:
        """Home directories of the sandbox's users."""
        return self.directory / "home"

    @property
    def models(self) -> Path:
        """Model repositories; anyone may read them."""
        return self.directory / "models"

    @property
    def triton(self) -> Path:
        """The staged tritonserver."""
        return self.directory / "triton"

    @property
    def llamacpp(self) -> Path:
        """llama.cpp's server, readable by every user."""
        return self.directory / "llamacpp"

    @property
    def site(self) -> Path:
        """A copy of the program, where the users can't read the original."""
        return self.directory / "site"

    @property
    def state_file(self) -> Path:
        """What runs, as ``slicewise.sandbox.host.state`` reads and writes it."""
        return self.directory / "state.json"

    @property
    def slurm_conf(self) -> Path:
        """SLURM_CONF of every process here."""
        return self.etc / "slurm.conf"

    @property
    def site_conf(self) -> Path:
        """Lines that slurm.conf includes: none at first, a site's own later."""
        return self.etc / "site.conf"

    @property
    def jwt_key(self) -> Path:
        """The key of Slurm's tokens, where its documentation puts it."""
        return self.lib / "slurmctld" / "jwt_hs256.key"

    @property
    def settings_file(self) -> Path:
        """SLICEWISE_CONFIG of every process here."""
        return self.etc / "slicewise.toml"

    @property
    def munge_socket(self) -> Path:
        """Where munged answers."""
        return self.run / "munge" / "munge.sock"

    @property
    def mariadb_socket(self) -> Path:
        """MariaDB's socket; it listens on no port."""
        return self.run / "mariadb" / "mariadb.sock"

    @property
    def postgres_directory(self) -> Path:
        """Directory of PostgreSQL's socket; it listens on no port."""
        return self.run / "postgresql"

    @property
    def haproxy_socket(self) -> Path:
        """Socket of HAProxy's Runtime API."""
        return self.run / "haproxy" / "runtime.sock"

    @property
    def haproxy_master_socket(self) -> Path:
        """Socket of HAProxy's master, which knows all workers, also those replaced by a reload."""
        return self.run / "haproxy" / "runtime-master.sock"

    @property
    def gateway_directory(self) -> Path:
        """The gateway's maps and Lua file."""
        return self.etc / "gateway"

    @property
    def longest_socket(self) -> Path:
        """The socket whose path is longest; the kernel takes at most 107 bytes."""
        candidates = (
            self.munge_socket,
            self.mariadb_socket,
            self.postgres_directory / ".s.PGSQL.5432",
            self.haproxy_socket,
            self.run_dir / "admission" / "admission.sock",
            *(
                self.lib / "slurmd" / node.name / f"{node.name}_1000000.4294967295"
                for node in NODES
            ),
        )
        return max(candidates, key=lambda path: len(bytes(path)))

    def database_url(self, role: str) -> str:
        """The ledger's database for that role; the socket's peer credentials are the password."""
        return f"postgresql://{quote(role)}@/slicewise?host={quote(str(self.postgres_directory))}"
