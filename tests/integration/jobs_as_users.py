"""Jobs as users submit them, what Slurm shows of them; modes of daemon and slicewise.lua."""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from quotas import until_daemon_leads
from waiting import until_is

from slicewise.sandbox.cluster import Sandbox

TAG = re.compile(r"slicewise:1 token=[0-9a-f]{16} tenant=(\w+)( service=\w+)?( class=\w+)?( \w+)*")


_NUMBERS = count(1)
"""Of all jobs of a session: Slurm remembers those of other tests."""


@dataclass(frozen=True)
class Job:
    """What ``scontrol show job`` says of one."""

    job_id: str
    fields: dict[str, str]

    def __getitem__(self, name: str) -> str:
        return self.fields.get(name, "")

    @property
    def tres(self) -> dict[str, str]:
        return dict(part.split("=", 1) for part in self.tres_text.split(",") if part)

    @property
    def tres_text(self) -> str:
        """Allotted, or asked for while it waits. Slurm 22.05 has one word for both."""
        words = (self[name] for name in ("TRES", "AllocTRES", "ReqTRES"))
        return next((one for one in words if one not in {"", "(null)"}), "")

    @property
    def billing(self) -> int:
        """Millislices."""
        return int(self.tres.get("billing", "0"))

    @property
    def tag(self) -> str:
        found = TAG.search(self["AdminComment"])
        return found[0] if found else ""


@dataclass(frozen=True)
class Outcome:
    """Of one command: its status, what its user read, the jobs that it made."""

    status: int
    text: str
    jobs: Sequence[Job]


class Users:
    """Submits, changes and looks at jobs, as one user or another."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def submit(self, user: str, command: str, *options: str, script: str = "") -> Outcome:
        """``options`` may have ``:`` between components. Jobs are found by a name of their own."""
        name = f"job{next(_NUMBERS)}"
        named = (f"--job-name={name}", "--time=5")
        parts = [
            part
            for option in options
            for part in ((option, *named) if option == ":" else (option,))
        ]
        argv = (command, *named, *parts)
        if command == "sbatch":
            argv = (*argv, "--output=/dev/null", *(() if script else ("--wrap=sleep 300",)))
        else:
            argv = (*argv, "true")
        done = self.sandbox.run(user, argv, input=script, check=False)
        return Outcome(done.returncode, done.stdout + done.stderr, self.jobs(name=name))

    def jobs(self, **which: str) -> Sequence[Job]:
        """``name=``, ``user=``: as squeue's options; without those that Slurm forgets just then."""
        options = (f"--{key}={value}" for key, value in which.items())
        squeue = ("squeue", "--noheader", "--states=all", "--format=%A", *options)
        ids = self.sandbox.run("root", squeue).stdout.split()
        found = [self._shown(job_id) for job_id in dict.fromkeys(ids)]
        return [job for job in found if job]

    def job(self, job_id: str) -> Job:
        job = self._shown(job_id)
        assert job, f"Slurm knows no job {job_id}"
        return job

    def _shown(self, job_id: str) -> Job | None:
        argv = ("scontrol", "show", "job", job_id)
        shown = self.sandbox.run("root", argv, check=False).stdout
        return _parsed(job_id, shown) if "JobId=" in shown else None

    def scontrol(self, user: str, *words: str) -> tuple[int, str]:
        done = self.sandbox.run(user, ("scontrol", *words), check=False)
        return done.returncode, done.stdout + done.stderr

    def slicewise(self, *words: str, check: bool = True) -> str:
        return self.sandbox.run("root", ("slicewise", *words), check=check).stdout

    def clear(self) -> None:
        """No job is left, nor one that was just requeued when it was cancelled."""

        def left() -> str:
            for user in ("alice", "bob", "carol"):
                self.sandbox.run("root", ("scancel", "--quiet", f"--user={user}"), check=False)
            return self.sandbox.run("root", ("squeue", "--noheader")).stdout

        until_is(left, "")


def _parsed(job_id: str, shown: str) -> Job:
    """The first job of what scontrol showed."""
    lines = [line.strip() for line in shown.split("\n\n", maxsplit=1)[0].splitlines()]
    fields = dict(
        pair.split("=", 1)
        for line in lines
        for pair in ([line] if _is_text(line) else line.split())
        if "=" in pair
    )
    return Job(job_id, fields)


def _is_text(line: str) -> bool:
    """Fields that hold blanks stand alone in a line."""
    return re.match(r"(AdminComment|Comment|(Req|Alloc)?TRES|Command|WorkDir)=", line) is not None


class Modes:
    """Both modes of the sandbox: each is put back by ``set("enforce")``."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._socket = sandbox.layout.run_dir / "user.sock"

    def set(self, mode: str) -> None:
        """The daemon's first, as docs/how-to/install.md says."""
        _replace(
            self._sandbox.layout.settings_file,
            r'^\[daemon\]\n(mode = "\w+"\n)?',
            f'[daemon]\nmode = "{mode}"\n',
        )
        self.restart_daemon()
        # slurmctld sees a change by the second.
        time.sleep(1.1)
        script = self._sandbox.layout.etc / "job_submit.lua"
        _replace(script, r'mode = "\w+",', f'mode = "{mode}",')

    def restart_daemon(self) -> None:
        self._sandbox.stop("daemon")
        self._sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
        until_daemon_leads(self._sandbox)

    def status(self) -> dict[str, Any]:
        argv = ("slicewise", "admission", "status", "--json")
        return dict(json.loads(self._sandbox.run("root", argv).stdout)["daemon"])


def _replace(path: Path, pattern: str, text: str) -> None:
    before = path.read_text()
    after, changes = re.subn(pattern, text, before, flags=re.MULTILINE)
    assert changes == 1, path
    path.write_text(after)
