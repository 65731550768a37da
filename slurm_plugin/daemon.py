"""``slicewise daemon``: composes admission, sync and ledger; starts and ends them."""

import asyncio
import fcntl
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster.errors import OutsideError, SlicewiseError, UnreachableError
from cluster.settings import DaemonSettings, Settings
from cluster.slurm.interface import Slurm
from slurm_plugin.admission_socket import AdmissionSocket
from slurm_plugin.admit import Admission
from slurm_plugin.bookkeeping import Bookkeeping
from slurm_plugin.enforcement import Enforcement
from slurm_plugin.ledger.store import Ledger
from slurm_plugin.line_server import own_directory
from slurm_plugin.observe import report, report_failure
from slurm_plugin.sync import Sync
from slurm_plugin.user_socket import UserSocket, roles

_BACKOFF_MAX_S = 15.0


async def serve(settings: Settings, slurm: Slurm, ledger: Ledger) -> None:
    """Run until SIGTERM or SIGINT. Nothing but Slurm and PostgreSQL keeps what must last.

    The sockets open once Slurm has been seen whole and the quotas are in force in it, or can't be
    brought there now: until then slicewise.lua gets no answer, and the limits compiled before hold.
    """
    with _only_one(settings.daemon.run_dir):
        admission = Admission(settings.daemon.mode)
        sync = Sync(settings, slurm, admission)
        books = Bookkeeping(settings, slurm, ledger, sync)
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        limits = Enforcement(settings, slurm, ledger, sync)
        work = asyncio.create_task(_work(settings.daemon, admission, sync, books, limits))
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        report("daemon_ended")


_Step = Callable[[], Awaitable[object]]


async def _work(
    settings: DaemonSettings,
    admission: Admission,
    sync: Sync,
    books: Bookkeeping,
    limits: Enforcement,
) -> None:
    interval_s = settings.sync_interval_s
    await _until_done("start_ledger", books.start, interval_s)
    await _until_done("start_slurm", sync.turn, interval_s)
    await _until_done("start_limits", limits.start, interval_s)
    who = roles(settings)
    admission_socket = AdmissionSocket(settings.admission_socket, admission, who.administrators)
    user_socket = UserSocket(settings.user_socket, sync, admission, who)
    admission_socket.start()
    try:
        await user_socket.start()
        report("daemon_ready", mode=settings.mode, run_dir=settings.run_dir)
        _tell_systemd("READY=1")
        async with asyncio.TaskGroup() as loops:
            loops.create_task(_repeat("sync", sync.turn, interval_s, sync.acted))
            loops.create_task(_repeat("bookkeeping", books.turn, interval_s, asyncio.Event()))
            loops.create_task(_repeat("limits", limits.turn, interval_s, asyncio.Event()))
    finally:
        await user_socket.stop()
        admission_socket.stop()


async def _until_done(name: str, step: _Step, interval_s: float) -> None:
    """Take a step of the start until what it needs from outside is there and lets it."""
    pause_s = interval_s
    while True:
        try:
            await step()
        except (UnreachableError, OutsideError) as error:
            report_failure(f"{name}_waits", error, retry_s=pause_s)
        else:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _BACKOFF_MAX_S)


async def _repeat(name: str, turn: _Step, interval_s: float, due: asyncio.Event) -> None:
    """Take turns for ever, at once when ``due`` is set; more slowly while they fail."""
    pause_s = interval_s
    while True:
        due.clear()
        try:
            await turn()
            pause_s = interval_s
        except SlicewiseError as error:
            pause_s = min(2 * pause_s, _BACKOFF_MAX_S)
            report_failure(f"{name}_failed", error, retry_s=pause_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await due.wait()


@contextmanager
def _only_one(run_dir: Path) -> Iterator[None]:
    """The kernel gives the lock back however the daemon ends."""
    own_directory(run_dir, 0o755)
    with (run_dir / "daemon.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SlicewiseError(
                "SW-DAEMON-RUNNING", f"A daemon runs already in {run_dir}.", "Stop it first."
            ) from None
        yield


def _tell_systemd(message: str) -> None:
    """As sd_notify(3): one datagram to $NOTIFY_SOCKET, if systemd has set it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.send(message.encode())
