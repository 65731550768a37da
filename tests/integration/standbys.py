"""A second server that waits to take over: a backup slurmctld, a standby of PostgreSQL."""

import signal

import psycopg
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.process import is_alive
from slicewise.sandbox.servers.postgres import binaries


class BackupController:
    """slurm.conf's second SlurmctldHost, on the same state directory."""

    name = "slurmctld2"

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        layout = sandbox.layout
        self._hosts, self._site = layout.etc / "hosts", layout.site_conf
        self._before = self._hosts.read_text(), self._site.read_text()
        address = f"127.77.{layout.slot}.9"
        self._hosts.write_text(f"{self._before[0]}{address} head2\n")
        self._site.write_text(f"SlurmctldHost=head2({address})\nSlurmctldTimeout=5\n")
        # Both are on one host here: started with the other's PID file, it would end the other.
        self._conf = layout.etc / "slurm-head2.conf"
        text = layout.slurm_conf.read_text()
        self._conf.write_text(text.replace("/slurmctld.pid", "/slurmctld2.pid"))

    def start(self) -> None:
        """slurmd, and what it starts from then on, know of both."""
        self._restart()
        names = ("NSS_WRAPPER_HOSTNAME=head2", f"SLURM_CONF={self._conf}")
        self._sandbox.start(self.name, "slurm", ("env", *names, "slurmctld", "-D"))
        until(lambda: "running in background mode" in self.log())

    def leads(self) -> bool:
        return "Running as primary controller" in self.log()

    def end(self) -> None:
        """The first controller must run again."""
        self._sandbox.stop(self.name)
        for file, text in zip((self._hosts, self._site), self._before, strict=True):
            file.write_text(text)
        self._conf.unlink()
        self._restart()

    def log(self) -> str:
        return (self._sandbox.layout.log / f"{self.name}.log").read_text()

    def _restart(self) -> None:
        nodes = (f"slurmd-{node}" for node in self._sandbox.layout.node_addresses)
        names = ("slurmctld", *nodes)
        for name in names:
            self._sandbox.kill(name, signal.SIGTERM if name == "slurmctld" else signal.SIGKILL)
        processes = self._sandbox.state.processes
        until_is(lambda: any(is_alive(processes[name]) for name in names), False)
        self._sandbox.restore(print)


class StandbyServer:
    """A PostgreSQL that has each transaction before its client is answered."""

    name = "postgres2"

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        layout = sandbox.layout
        self._user = sandbox.state.users["slurm"].name
        self._data = layout.lib / "postgresql-standby"
        self._sockets = layout.run / "postgresql-standby"
        self._first = layout.database_url(self._user)
        self._place = binaries(sandbox.state.program)
        self._hba = layout.lib / "postgresql" / "pg_hba.conf"
        self._is_promoted = False
        self._socket = layout.postgres_directory / ".s.PGSQL.5432"

    @property
    def url(self) -> str:
        """Of the standby itself."""
        return f"postgresql://{self._user}@/slicewise?host={self._sockets}"

    def start(self) -> None:
        group = self._sandbox.state.users["slicewise"].name
        owner = ("install", "-d", "-o", self._user, "-g", group)
        self._sandbox.run("root", (*owner, "-m", "700", str(self._data)))
        self._sandbox.run("root", (*owner, "-m", "750", str(self._sockets)))
        lines = self._hba.read_text()
        self._hba.write_text(f"{lines}local replication all peer map=sandbox\n")
        self._tell(self._first)
        at = f"--host={self._sandbox.layout.postgres_directory}"
        words = (
            "--checkpoint=fast",
            "--write-recovery-conf",
            "--no-sync",
            f"--pgdata={self._data}",
        )
        self._sandbox.run("slurm", (str(self._place / "pg_basebackup"), at, *words))
        self._hba.write_text(lines)
        options = (f"--unix_socket_directories={self._sockets}", "--listen_addresses=")
        argv = (f"-D{self._data}", *options, "--dynamic_shared_memory_type=mmap")
        self._sandbox.start(self.name, "slurm", (str(self._place / "postgres"), *argv))
        until_is(self._replicates, [("streaming",)])
        self._tell(self._first, "ALTER SYSTEM SET synchronous_standby_names = '*'")

    def promote(self) -> None:
        """Once the first has ended: where clients looked for it, they find this one."""
        argv = (str(self._place / "pg_ctl"), "promote", f"--pgdata={self._data}")
        self._sandbox.run("slurm", argv)
        self._tell(self.url, "ALTER SYSTEM RESET synchronous_standby_names")
        self._is_promoted = True
        self._socket.unlink(missing_ok=True)
        self._socket.symlink_to(self._sockets / self._socket.name)

    def end(self) -> None:
        """Once it was promoted, what was written here becomes the first server's."""
        if self._is_promoted:
            self._socket.unlink()
        else:
            self._tell(self._first, "ALTER SYSTEM RESET synchronous_standby_names")
        self._sandbox.kill(self.name, signal.SIGINT)
        until_is(lambda: is_alive(self._sandbox.state.processes[self.name]), False)
        if self._is_promoted:
            first = self._sandbox.layout.lib / "postgresql"
            copy = f"rm -rf {first} && cp -a {self._data} {first}"
            self._sandbox.run("root", ("bash", "-c", copy))
            self._sandbox.restore(print)
        self._sandbox.run("root", ("rm", "-rf", str(self._data), str(self._sockets)))

    def _replicates(self) -> list[tuple[str]]:
        with psycopg.connect(self._first) as connection:
            return connection.execute("SELECT state FROM pg_stat_replication").fetchall()

    @staticmethod
    def _tell(url: str, *words: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            for one in (*words, "SELECT pg_reload_conf()"):
                connection.execute(one)
