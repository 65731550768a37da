"""``slicewise node meter``: tells the daemon what this node's boards take, and who holds them."""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Annotated

import typer
from pydantic import ValidationError

from slicewise.cluster.gpu import meter as gpu_meter
from slicewise.cluster.gpu.node_files import ROOT
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from slicewise.cluster.language.gpus.energy import (
    BoardHour,
    BoardHourKey,
    BoardReading,
    LastSeen,
    Metered,
    NodeMoment,
    metered,
    pruned,
)
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.energy_messages import (
    MOST_BOARDS,
    MOST_PARTS,
    EnergyPostRequest,
    ToldHour,
    ToldPower,
)
from slicewise.cluster.rpc.message import Message
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.read import load_settings
from slicewise.slurm_plugin.cli.common.node_options import HostRoot, NodeName, node_name
from slicewise.slurm_plugin.common.log import configure_logging, report, report_failure

READ_S = 10.0
"""Seconds between two looks at the boards."""
TELL_S = 60.0
_BOOT = Path("proc/sys/kernel/random/boot_id")


class _Kept(Message):
    """The file in which a meter keeps what it has seen, so that a killed one goes on from there."""

    seen_by: str
    boards: dict[str, LastSeen]
    hours: tuple[ToldHour, ...]


def meter(
    node: NodeName = None,
    state: Annotated[Path, typer.Option(help="Where the meter keeps what it has seen.")] = Path(
        "/var/lib/slicewise-meter/state.json"
    ),
    host_root: HostRoot = ROOT,
) -> None:
    """Measure what this node's boards take, for ever, as root; slicewise-meter.service does so.

    Every ten seconds it reads each board's counter of joules, its power where it has none, and
    which jobs' processes hold which instance, and divides what was taken since: what an idle board
    takes is nobody's, the rest is the jobs' by their slices, times the activity of each instance
    where the driver says it. Once a minute it tells the daemon. Killed, it goes on from its file:
    what was taken meanwhile is nobody's, and nothing is counted twice or lost.
    """
    settings = load_settings()
    configure_logging("meter", settings.log)
    with _alone(state), gpu_meter.opened(host_root) as boards:
        loop = MeterLoop(node or node_name(), state, DaemonClient(settings.daemon))
        report("meter_started", node=loop.node, seen_by=loop.now.seen_by)
        while True:
            due_s = time.monotonic() + READ_S
            try:
                loop.turn(boards.read(), moment(host_root))
            except OutsideError as error:
                report_failure("boards_not_read", error)
            time.sleep(max(0.0, due_s - time.monotonic()))


class MeterLoop:
    """Adds up readings, keeps them on disk, and tells the daemon.

    What is told was kept before, so a killed meter tells no other sum of the same hour by the same
    name.

    Attributes:
        now: what it has seen.
    """

    def __init__(self, node: str, state: Path, daemon: DaemonClient) -> None:
        """Raises InvalidInputError (SW-VALUE) for a file that is no meter's."""
        self.node = node
        self._state = state
        self._daemon = daemon
        self._told: Mapping[BoardHourKey, BoardHour] = {}
        self._tell_due_s = 0.0
        self.now = _read(state) if state.exists() else Metered(token_hex(16))

    def turn(self, readings: Sequence[BoardReading], at: NodeMoment) -> None:
        """Add what was read at that moment; once a minute tell it."""
        self.now = metered(self.now, readings, at)
        _write(self._state, self.now)
        if time.monotonic() < self._tell_due_s:
            return
        self._tell_due_s = time.monotonic() + TELL_S
        try:
            self._tell(readings)
        except SlicewiseError as error:
            report_failure("energy_not_told", error)
        self.now = pruned(self.now, self._told, at.wall_ms)
        self._told = {key: hour for key, hour in self._told.items() if key in self.now.hours}

    def _tell(self, readings: Sequence[BoardReading]) -> None:
        powers = tuple(
            ToldPower(gpu_uuid=reading.uuid, power_mw=reading.power_mw)
            for reading in readings[:MOST_BOARDS]
            if reading.power_mw is not None
        )
        new = {key: hour for key, hour in self.now.hours.items() if self._told.get(key) != hour}
        for some in _chunks(new):
            hours = tuple(ToldHour.of_board(key, new[key]) for key in some)
            request = EnergyPostRequest(
                node=self.node, seen_by=self.now.seen_by, boards=powers, hours=hours
            )
            self._daemon.call(request)
            self._told = {**self._told, **{key: new[key] for key in some}}


def _chunks(hours: Mapping[BoardHourKey, BoardHour]) -> Iterator[Sequence[BoardHourKey]]:
    """Hours for one message each; at least one, which says what boards draw."""
    some: list[BoardHourKey] = []
    size = 0
    for key, hour in sorted(hours.items(), key=lambda told: told[0]):
        # Beside its parts an hour has eight words of its own.
        hour_size = len(hour.parts) + 8
        if some and size + hour_size > MOST_PARTS:
            yield some
            some, size = [], 0
        some.append(key)
        size += hour_size
    yield some


def moment(root: Path = ROOT) -> NodeMoment:
    """Now, on this node."""
    boot = (root / _BOOT).read_text(encoding="ascii").strip()
    up_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    return NodeMoment(int(wall_s() * 1000), up_ms, boot)


def _read(state: Path) -> Metered:
    try:
        kept = _Kept.model_validate_json(state.read_bytes())
    except (OSError, ValidationError) as error:
        raise InvalidInputError(
            Code.VALUE,
            f"{state} is no meter's: {str(error).splitlines()[0]}.",
            "Move it away: the meter then begins with what the boards take from now on.",
        ) from None
    hours = dict(hour.as_board() for hour in kept.hours)
    return Metered(kept.seen_by, kept.boards, hours)


def _write(state: Path, now: Metered) -> None:
    """A complete file replaces the old one: who is killed here, or loses power, has the old one."""
    kept = _Kept(
        seen_by=now.seen_by,
        boards=dict(now.boards),
        hours=tuple(ToldHour.of_board(key, hour) for key, hour in now.hours.items()),
    )
    fresh = state.with_suffix(".new")
    with fresh.open("wb") as file:
        file.write(kept.model_dump_json().encode())
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(state)


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Hold the file, which only one meter may have.

    Raises InvalidInputError (SW-VALUE) if another has it, or its folder can't be written.
    """
    try:
        lock = os.open(state.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidInputError(
            Code.VALUE,
            f"--state: {state.parent} can't be written: {error.strerror}.",
            "Run it as root, make that folder, or name another file.",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InvalidInputError(
            Code.VALUE,
            f"--state: another meter has {state}.",
            "See: systemctl status slicewise-meter",
        ) from None
    finally:
        os.close(lock)
