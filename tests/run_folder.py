"""All that a run of the tests makes lies in one folder, and goes with the run, however that ends.

A caretaker waits for the end of the run. It ends what the run left running, takes down what
sandboxes are left, and removes the folder: also after SIGKILL, when no fixture cleans up.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sandbox import lifecycle, process
from sandbox.directory import MARKER

_VARIABLE = "SLICEWISE_TEST_RUN"
_PATIENCE_S = 8.0
"""So long tests that are told to end may clean up by themselves."""
_ENDED_WITHIN_S = 120.0


def path_for(name: str) -> Path:
    """Where a test may make a folder, or a sandbox, of that name; each worker has its own."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return Path(os.environ[_VARIABLE]) / f"{name}-{worker}"


class RunFolder:
    """The folder of a run, and its caretaker, who sees by a pipe that the run has ended."""

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"slicewise-tests-{os.getpid()}"
        self.path.mkdir(mode=0o755)
        # Inherited by workers and by whatever tests start: so it is found.
        os.environ[_VARIABLE] = str(self.path)
        os.environ[process.MARK] = str(self.path)
        self._caretaker = subprocess.Popen(
            (sys.executable, __file__, str(self.path)),
            stdin=subprocess.PIPE,
            # Ctrl-C goes to the terminal's processes: not to this one.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )

    def clear(self) -> None:
        """Let the caretaker do its work, and wait for it."""
        assert self._caretaker.stdin is not None
        self._caretaker.stdin.close()
        self._caretaker.wait(_ENDED_WITHIN_S)


def _take_care(folder: Path) -> None:
    sys.stdin.read()
    process.end(process.leftovers(folder, ()), patience_s=_PATIENCE_S)
    sandboxes = [marker.parent for marker in folder.glob(f"*/{MARKER}")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lifecycle.down, sandboxes))
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _take_care(Path(sys.argv[1]))
