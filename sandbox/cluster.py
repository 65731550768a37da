"""A whole Slurm cluster on one machine: bring it up, use it, take it down."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox import lifecycle, restart
from slicewise.sandbox.host import packages, process
from slicewise.sandbox.host.directory import checked
from slicewise.sandbox.host.host import Host, Progress
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.state import State, load
from slicewise.sandbox.servers import slicewise, slurm


class Sandbox:
    """A running cluster in one directory."""

    def __init__(self, host: Host) -> None:
        self._host = host

    @classmethod
    def up(
        cls, directory: Path, *, progress: Progress, services: bool = True, anew: bool = False
    ) -> "Sandbox":
        """Start a sandbox, or attach to one that is up and start again what has ended of it.

        With ``services`` a new sandbox also gets its ledger, the daemon and the launcher. If its
        start fails or is interrupted, everything is taken down again. ``anew`` discards a sandbox
        that is there.
        """
        packages.require(packages.EVERYTHING if services else packages.REQUIRED_FILES)
        return cls(Host(lifecycle.up(directory, progress, services=services, anew=anew)))

    @classmethod
    def attach(cls, directory: Path) -> "Sandbox":
        """Attach to the sandbox that runs there; SlicewiseError (SW-SANDBOX-DOWN) if none does."""
        path = checked(directory)
        state = load(Layout(path, 0).state_file)
        if state is None or not state.ready:
            raise SlicewiseError(
                Code.SANDBOX_DOWN, f"No sandbox is up in {path}.", "Run: slicewise sandbox up"
            )
        return cls(Host(state))

    @property
    def layout(self) -> Layout:
        """The sandbox's paths, addresses and ports."""
        return self._host.layout

    @property
    def state(self) -> State:
        """The sandbox's users and processes."""
        return self._host.state

    def down(self, *, keep: bool = False) -> None:
        """Cancel jobs, stop everything, and remove the directory unless ``keep``."""
        lifecycle.down(self.layout.directory, keep=keep)

    def environment(self, user: str) -> dict[str, str]:
        """The whole environment of that user's programs."""
        return self._host.environment(user)

    def run(
        self,
        user: str,
        argv: Sequence[str],
        *,
        input: str = "",  # noqa: A002 -- as subprocess.run names it
        timeout_s: float = 120,
        check: bool = True,
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as that user, in its home; raises as ``subprocess.run`` does."""
        return self._host.run(user, argv, stdin=input, timeout_s=timeout_s, check=check)

    def start(self, name: str, user: str, argv: Sequence[str]) -> int:
        """Start a long-running program with its output in ``log/NAME.log``; returns its pid."""
        return self._host.spawn(name, user, argv).pid

    def serve_page(self) -> str:
        """Start the server of the page in the browser, unless it runs; returns its address."""
        process_id = self._host.state.processes.get("web")
        if process_id is None or not process.is_alive(process_id):
            asyncio.run(slicewise.up_web(self._host))
        return f"http://{self.layout.web_address}"

    def page_login(self, user: str) -> str:
        """The address that logs a user in on the page, once, within two minutes."""
        self.serve_page()
        made = self.run(user, ("slicewise", "web", "login", "--json")).stdout
        return str(json.loads(made)["url"])

    def stop(self, name: str) -> None:
        """End a program that ``start`` or ``up`` started: SIGTERM, after 3 s SIGKILL."""
        process.end((self._process(name),), patience_s=lifecycle.STOP_PATIENCE_S)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a program that ``start`` or ``up`` started."""
        process.send_signal(self._process(name), number)

    def restore(self, progress: Progress) -> None:
        """Start servers that have ended again; SlicewiseError if one does not start."""
        self._host.refresh()
        self._host = restart.restore(self._host, progress)

    def _process(self, name: str) -> process.Process:
        self._host.refresh()
        try:
            return self.state.processes[name]
        except KeyError:
            raise SlicewiseError(
                Code.VALUE,
                f"The sandbox started no program {name!r}.",
                f"It started: {', '.join(self.state.processes)}.",
            ) from None

    def popen(self, user: str, argv: Sequence[str], **options: Any) -> "subprocess.Popen[str]":
        """Start a program as that user; options as ``subprocess.Popen`` takes them."""
        return self._host.popen(user, argv, **options)

    def become(self, user: str) -> None:
        """Make this process run as that user, at home if the user may not write here.

        Slurm and ``service apply`` leave their logs in the current directory.
        """
        who = self._host.user(user)
        if self.state.several_users:
            os.setgroups([who.gid])
            os.setgid(who.gid)
            os.setuid(who.uid)
        if not os.access(Path.cwd(), os.R_OK | os.W_OK | os.X_OK):
            os.chdir(self.layout.home / who.name)

    def boot(self, node: str) -> None:
        """Start the slurmd of a node as if it had booted just now."""
        asyncio.run(slurm.start_node(self._host, node, boots=True))

    def node_states(self) -> Mapping[str, str]:
        """State of each node by name; empty while slurmctld does not answer."""
        return slurm.node_states(self._host)
