"""Gives a run of the tests one folder, which is removed with the run, however the run ends.

The folder holds the run's sandboxes and pytest's temporary files. A caretaker process waits for the
end of the run. It ends the processes that the run left, takes down the sandboxes that are left, and
removes the folder, also after SIGKILL, when no fixture cleans up.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox import lifecycle
from slicewise.sandbox.host import process
from slicewise.sandbox.host.directory import MARKER

_VARIABLE = "SLICEWISE_TEST_RUN"
_PATIENCE_S = 8.0
"""Seconds for which tests that are told to end may clean up by themselves."""
_ENDED_WITHIN_S = 120.0


def current() -> Path:
    """The folder of the current run."""
    return Path(os.environ[_VARIABLE])


def is_inner() -> bool:
    """Whether this process runs within a run, so that a run that it begins is part of that one."""
    return _VARIABLE in os.environ


def path_for(name: str) -> Path:
    """A path where a test may make a folder or a sandbox of that name; each worker has its own."""
    return current() / f"{name}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


def folder_of(pid: int) -> Path:
    """The folder of a run by that process; for a run that a test starts, in the outer run's."""
    if above := os.environ.get(_VARIABLE):
        return Path(above) / str(pid)  # Paths of sockets are short.
    return Path(tempfile.gettempdir()) / f"slicewise-tests-{pid}"


class RunFolder:
    """The folder of a run, and its caretaker, which sees by a pipe that the run has ended."""

    def __init__(self) -> None:
        self.path = folder_of(os.getpid())
        self.path.mkdir(mode=0o755)
        self._caretaker = subprocess.Popen(
            (sys.executable, __file__, str(self.path)),
            stdin=subprocess.PIPE,
            # Ctrl-C goes to the terminal's processes and must not reach the caretaker.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )
        # Workers and all processes that tests start inherit these, and are found by the mark.
        os.environ[_VARIABLE] = os.environ[process.MARK] = str(self.path)

    def clear(self) -> None:
        """Let the caretaker do its work, and wait for it.

        Raises CalledProcessError if anything is left; the caretaker has printed what.
        """
        assert self._caretaker.stdin is not None
        self._caretaker.stdin.close()
        if code := self._caretaker.wait(_ENDED_WITHIN_S):
            raise subprocess.CalledProcessError(code, self._caretaker.args)


def _take_care(folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    patience_s = _PATIENCE_S
    while left := process.leftovers(folder, ()):
        process.end(left, patience_s=patience_s)
        patience_s = 0.0
    for mounted in _mounts(Path("/proc/self/mounts").read_text(), folder):
        subprocess.run(("umount", "--lazy", mounted), check=False)
    # Not by a glob: it fails at a link that leads nowhere it can look.
    sandboxes = [Path(place) for place, _, files in os.walk(folder) if MARKER in files]
    with ThreadPoolExecutor() as pool:
        troubles = [text for text in pool.map(_taken_down, sandboxes) if text]
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        troubles.append(f"{folder} can't be removed")
    sys.exit("\n".join(troubles) or None)


def _mounts(table: str, folder: Path) -> list[str]:
    """Where a test has mounted a file system in the folder; proc(5) has the table."""
    places = [line.split()[1] for line in table.splitlines()]
    return [place for place in places if place.startswith(f"{folder}/")]


def _taken_down(sandbox: Path) -> str:
    """Take a sandbox down; return what went wrong, or "" if the sandbox is gone."""
    try:
        lifecycle.down(sandbox)
    except (SlicewiseError, OSError) as error:
        return f"{sandbox} is not down: {error}"
    return ""


if __name__ == "__main__":
    _take_care(Path(sys.argv[1]))
