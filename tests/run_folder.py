"""A run of the tests has one folder, which goes with the run, however that ends.

In it lie the run's sandboxes and pytest's temporary files. A caretaker waits for the end of the
run. It ends what the run left running, takes down what sandboxes are left, and removes the folder:
also after SIGKILL, when no fixture cleans up.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.errors import SlicewiseError
from sandbox import lifecycle, process
from sandbox.directory import MARKER

_VARIABLE = "SLICEWISE_TEST_RUN"
_PATIENCE_S = 8.0
"""So long tests that are told to end may clean up by themselves."""
_ENDED_WITHIN_S = 120.0


def current() -> Path:
    """The folder of the run that goes on."""
    return Path(os.environ[_VARIABLE])


def path_for(name: str) -> Path:
    """Where a test may make a folder, or a sandbox, of that name; each worker has its own."""
    return current() / f"{name}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


def folder_of(pid: int) -> Path:
    """The folder of a run by that process; that of one that a test starts lies in the test's."""
    above = os.environ.get(_VARIABLE, tempfile.gettempdir())
    return Path(above) / f"slicewise-tests-{pid}"


class RunFolder:
    """The folder of a run, and its caretaker, who sees by a pipe that the run has ended."""

    def __init__(self) -> None:
        self.path = folder_of(os.getpid())
        self.path.mkdir(mode=0o755)
        self._caretaker = subprocess.Popen(
            (sys.executable, __file__, str(self.path)),
            stdin=subprocess.PIPE,
            # Ctrl-C goes to the terminal's processes: not to this one.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )
        # Inherited by workers and by whatever tests start, which is found by it.
        os.environ[_VARIABLE] = os.environ[process.MARK] = str(self.path)

    def clear(self) -> None:
        """Let the caretaker do its work, and wait for it.

        Raises CalledProcessError if anything is left; the caretaker has said what.
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
    sandboxes = [marker.parent for marker in folder.rglob(MARKER)]
    with ThreadPoolExecutor() as pool:
        troubles = [text for text in pool.map(_taken_down, sandboxes) if text]
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        troubles.append(f"{folder} can't be removed")
    sys.exit("\n".join(troubles) or None)


def _taken_down(sandbox: Path) -> str:
    """What went wrong; "" if it is gone."""
    try:
        lifecycle.down(sandbox)
    except (SlicewiseError, OSError) as error:
        return f"{sandbox} is not down: {error}"
    return ""


if __name__ == "__main__":
    _take_care(Path(sys.argv[1]))
