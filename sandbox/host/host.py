"""The machine as a sandbox's servers see it: users, environments, files, programs, logs."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.settings.read import CONFIG_VARIABLE, DEVICES_VARIABLE
from slicewise.sandbox.host import process, state
from slicewise.sandbox.host.inventory import ACCOUNTS, NODES
from slicewise.sandbox.host.layout import DAEMON_ROLE, Layout
from slicewise.sandbox.host.packages import SEARCH_PATH
from slicewise.sandbox.host.users import User

Progress = Callable[[str], None]
"""A function that is called with a line for each thing that has been done."""

HEAD = "head"
"""Host name of slurmctld and slurmdbd."""

_LOG_LINES = 15
_UMASK = 0o022
_SETPRIV = "setpriv"
_PASSED_ON = ("TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LINES")


class Host:
    """Starts programs of one sandbox and keeps its state.json."""

    def __init__(self, current: state.State) -> None:
        self.state = current

    @property
    def layout(self) -> Layout:
        """The sandbox's paths and ports."""
        return self.state.layout

    def user(self, role: str) -> User:
        """The user in that role; SlicewiseError (SW-VALUE) if there is none."""
        try:
            return self.state.users[role]
        except KeyError:
            raise SlicewiseError(
                Code.VALUE,
                f"The sandbox has no user {role!r}.",
                f"Its users are: {', '.join(self.state.users)}.",
            ) from None

    def environment(self, role: str) -> dict[str, str]:
        """The whole environment of a program that runs as that user."""
        layout, user = self.layout, self.user(role)
        return {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            "PATH": f"{layout.bin}:{SEARCH_PATH}",
            "HOME": str(layout.home / user.name),
            "USER": user.name,
            "LOGNAME": user.name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(layout.slurm_conf),
            CONFIG_VARIABLE: str(layout.settings_file),
            DEVICES_VARIABLE: f"{layout.devices}/%n",
            **self._database(role),
            **wrapper_environment(layout),
            **self._account(role),
            process.MARK: str(layout.directory),
        }

    def _database(self, role: str) -> Mapping[str, str]:
        """The database's URL: operators own the ledger's tables, the daemon has its own role."""
        roles = {"root": self.user("slurm").name, "slurm": DAEMON_ROLE}
        if role not in roles:
            return {}
        return {"SLICEWISE_DATABASE_URL": self.layout.database_url(roles[role])}

    def _account(self, role: str) -> Mapping[str, str]:
        """The tenant's account, needed where one user with one default account has all roles."""
        accounts = [account for account, user in ACCOUNTS.items() if user == role]
        if self.state.several_users or not accounts:
            return {}
        return dict.fromkeys(("SLURM_ACCOUNT", "SBATCH_ACCOUNT", "SALLOC_ACCOUNT"), accounts[0])

    def directory(self, path: Path, role: str, mode: int, *, group: str | None = None) -> Path:
        """Make a directory that belongs to that user, and to another user's group if given."""
        path.mkdir(parents=True, exist_ok=True)
        self._give(path, role, mode, group)
        return path

    def file(
        self,
        path: Path,
        text: str,
        *,
        role: str = "root",
        mode: int = 0o644,
        group: str | None = None,
    ) -> Path:
        """Write a file that belongs to that user; its mode is never wider, even in between."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode & 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
        self._give(path, role, mode, group)
        return path

    def _give(self, path: Path, role: str, mode: int, group: str | None = None) -> None:
        if self.state.several_users:
            os.chown(path, self.user(role).uid, self.user(group or role).gid)
        path.chmod(mode)

    def popen(
        self,
        role: str,
        argv: Sequence[str],
        *,
        extra: Mapping[str, str] | None = None,
        **options: Any,
    ) -> "subprocess.Popen[str]":
        """Start a program as that user, in the sandbox's environment."""
        environment = self.environment(role) | dict(extra or {})
        return subprocess.Popen(
            _found(argv, environment["PATH"]),
            env=environment,
            text=True,
            **self.identity(role),
            **{"cwd": self.layout.directory, **options},
        )

    def identity(self, role: str) -> Mapping[str, Any]:
        """The subprocess options with which a child runs as that user."""
        if not self.state.several_users:
            return {}
        user = self.user(role)
        return {"user": user.uid, "group": user.gid, "extra_groups": [user.gid], "umask": _UMASK}

    def run(
        self,
        role: str,
        argv: Sequence[str],
        *,
        stdin: str = "",
        timeout_s: float = 120,
        check: bool = True,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as that user to its end; as ``subprocess.run`` with its output captured."""
        environment = self.environment(role)
        return subprocess.run(
            self._as_user(role, _found(argv, environment["PATH"])),
            env=environment,
            cwd=self.layout.home / self.user(role).name,
            input=stdin,
            capture_output=True,
            text=True,
            # Slurm shows what users wrote, in whatever encoding.
            errors="replace",
            timeout=timeout_s,
            check=check,
            umask=_UMASK if self.state.several_users else -1,
        )

    def _as_user(self, role: str, argv: Sequence[str]) -> list[str]:
        """The words of a command that becomes that user and then runs this one.

        If subprocess had to change the user, each start would copy the tables of this process's
        memory, which in a test takes ten times as long as these commands.
        """
        if not self.state.several_users:
            return [*argv]
        user = self.user(role)
        ids = f"--reuid={user.uid}", f"--regid={user.gid}", f"--groups={user.gid}"
        return [_SETPRIV, *ids, "--", *argv]

    async def command(self, role: str, argv: Sequence[str], *, stdin: str = "") -> str:
        """Run a preparing command; SlicewiseError (SW-SANDBOX-FAILED) with its output if it fails.

        If this is cancelled, the command is killed.
        """
        environment = self.environment(role)
        # Files, not pipes: nothing is left open in the event loop when this is cancelled.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
            given.write(stdin.encode())
            given.seek(0)
            running = await asyncio.create_subprocess_exec(
                *_found(argv, environment["PATH"]),
                env=environment,
                cwd=self.layout.directory,
                stdin=given,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                **self.identity(role),
            )
            try:
                code = await running.wait()
            finally:
                if running.returncode is None:
                    running.kill()
                    await running.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        if code:
            tail = "\n".join(text.splitlines()[-_LOG_LINES:])
            raise SlicewiseError(
                Code.SANDBOX_FAILED, f"{argv[0]} failed with exit code {code}:\n{tail}"
            )
        return text

    def spawn(
        self, name: str, role: str, argv: Sequence[str], *, extra: Mapping[str, str] | None = None
    ) -> process.Process:
        """Start a long-running program with its output in ``log/NAME.log``, and record it."""
        log = self.log_file(name)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._give(log, role, 0o600)
            child = self.popen(
                role,
                argv,
                extra=extra,
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        child.returncode = 0  # it outlives this object: process.is_alive() watches and reaps it
        record = process.describe(name, self.user(role), child.pid)
        with state.locked(self.layout.state_file):
            self.refresh()
            self.update(processes={**self.state.processes, name: record})
        return record

    def refresh(self) -> None:
        """Read the state again: other programs (bin/slicewise-restart) may have started servers."""
        self.state = state.load(self.layout.state_file) or self.state

    def log_file(self, name: str) -> Path:
        """Where a program's output goes."""
        return self.layout.log / f"{name}.log"

    def update(self, **changes: object) -> None:
        """Change the state, in memory and on disk."""
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]
        state.save(self.state)

    async def ready(
        self, name: str, condition: Callable[[], bool], *, timeout_s: float = 180
    ) -> None:
        """Wait for a program; SlicewiseError (SW-SANDBOX-FAILED) with its log if that fails."""
        program = self.state.processes[name]
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not process.is_alive(program):
                raise self.failure(name, "ended")
            if time.monotonic() > deadline:
                raise self.failure(name, f"was not ready after {timeout_s:g} s")
            await asyncio.sleep(process.POLL_S)

    def failure(self, name: str, what: str) -> SlicewiseError:
        """The error that shows the last lines of a program's log."""
        lines = self.log_file(name).read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(lines[-_LOG_LINES:]) or "(its log is empty)"
        return SlicewiseError(Code.SANDBOX_FAILED, f"{name} {what}. Its log ends:\n{tail}")


def wrapper_environment(layout: Layout, hostname: str = "localhost") -> dict[str, str]:
    """Variables with which a process sees the sandbox's users and hosts, not the machine's.

    Slurm's programs listen at the address of their host name (NoInAddrAny). A daemon has its own
    host name; srun and salloc need localhost, since they are called back at the address from which
    their own connections come.
    """
    return {
        "LD_PRELOAD": f"libnss_wrapper.so:{layout.nodelay}",
        "NSS_WRAPPER_PASSWD": str(layout.etc / "passwd"),
        "NSS_WRAPPER_GROUP": str(layout.etc / "group"),
        "NSS_WRAPPER_HOSTS": str(layout.etc / "hosts"),
        "NSS_WRAPPER_HOSTNAME": hostname,
    }


def hosts_text(layout: Layout) -> str:
    """The hosts file: the head and every node at its own loopback address."""
    nodes = (f"{layout.node_addresses[node.name]} {node.name}" for node in NODES)
    return "\n".join(("127.0.0.1 localhost", f"{layout.head_address} {HEAD}", *nodes)) + "\n"


def _found(argv: Sequence[str], path: str) -> list[str]:
    """The command with its program looked up where the child will look."""
    return [shutil.which(argv[0], path=path) or argv[0], *argv[1:]]
