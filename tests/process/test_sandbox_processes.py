import signal
import subprocess
import sys
import threading
from pathlib import Path

from slicewise.sandbox.host.process import (
    Process,
    describe,
    end,
    is_alive,
    leftovers,
    send_signal,
)
from slicewise.sandbox.host.users import current_user


def sleeper(**options: object) -> Process:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **options)
    child.returncode = 0
    return describe("sleeper", current_user(), child.pid)


def test_end_leaves_nothing_alive():
    process = sleeper()
    assert is_alive(process)
    end([process], patience_s=5)
    assert not is_alive(process)


def test_a_recycled_pid_is_never_signalled():
    process = sleeper()
    stranger = Process("old", "", process.pid, process.start_ticks - 1, 0.0)
    send_signal(stranger, signal.SIGKILL)
    assert not is_alive(stranger)
    assert is_alive(process)
    end([process], patience_s=5)


def test_a_pid_that_is_now_a_threads_id_is_no_process():
    """Linux says then that there is no such file, or that the argument is invalid."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        ended = Process("old", "", thread.native_id or 0, 1, 0.0)
        send_signal(ended, signal.SIGKILL)
        assert not is_alive(ended)
    finally:
        done.set()
        thread.join()


def test_leftovers_are_found_by_environment_with_their_children(tmp_path: Path):
    environment = {"SLICEWISE_SANDBOX": str(tmp_path)}
    argv = ["/bin/sh", "-c", "env -i sleep 60 & echo; wait"]
    parent = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    parent.stdout.readline()
    parent.returncode = 0
    found = leftovers(tmp_path, ())
    end(found, patience_s=5)
    assert parent.pid in {process.pid for process in found}
    assert len(found) == 2
    assert leftovers(tmp_path, ()) == ()
