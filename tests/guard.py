"""Keeps tests in tests/unit and tests/property from the network, processes, sleep and clocks.

What such a test reaches for raises, with a sentence that says where the test belongs. A clock
may be read by product code and tests where the test takes ``clock``: that one stands still until
the event loop, or the test, moves it. Libraries read the machine's clock as ever. What the product
hands to a thread is called at once, without one.

A ``conftest.py`` puts its folder under guard by importing all that is public here. The one above
all registers ``Shared``: what tests share, fixtures and what a module does as it is imported, has
no clock at all.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from fault_world.virtual_time import WorldClock
from stand_ins.network import MemoryLoop

__all__ = [
    "clock",
    "pytest_asyncio_loop_factories",
    "pytest_runtest_call",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
]

_TESTS = Path(__file__).resolve().parent
_PROJECT = f"{_TESTS.parent}/"
_FOLDERS = frozenset({"property", "unit"})
_LIBRARIES = f"{_PROJECT}.venv"
_BELONGS = "What needs that belongs in tests/process, if a stand-in can't show it."
_EVENTS = {
    "os.exec": "starts a program",
    "os.fork": "forks",
    "os.forkpty": "forks",
    "os.posix_spawn": "starts a program",
    "os.system": "starts a program",
    "socket.bind": "opens a socket",
    "socket.connect": "connects a socket",
    "socket.getaddrinfo": "asks for an address",
    "socket.sendto": "sends to a socket",
    "subprocess.Popen": "starts a program",
}
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")


class GuardError(AssertionError):
    """A test reached for what it may not have here."""


class _Guard:
    """What the running test may do.

    Attributes:
        clock: the running test's; None while no guarded test runs.
        is_readable: whether the test has asked for its clock.
        broken: what the test was refused.
    """

    def __init__(self) -> None:
        self.clock: WorldClock | None = None
        self.is_readable = False
        self.broken: list[GuardError] = []

    def leave(self) -> None:
        """Guard no longer what the running test does."""
        self.clock = None

    def refuse(self, does: str) -> GuardError:
        error = GuardError(f"A test in tests/unit or tests/property {does}. {_BELONGS}")
        self.broken.append(error)
        return error


_guard = _Guard()


def _audit(event: str, parts: tuple[Any, ...]) -> None:
    does = _EVENTS.get(event)
    # Threads that integration tests left in this process are not the test's.
    if not does or not _guard.clock or threading.current_thread() is not threading.main_thread():
        return
    # A program that finds no socket at its path has asked nobody.
    if event == "socket.connect" and isinstance(parts[1], str) and not Path(parts[1]).exists():
        return
    raise _guard.refuse(does)


def _is_ours(depth: int) -> bool:
    name = sys._getframe(depth + 1).f_code.co_filename
    return name.startswith(_PROJECT) and not name.startswith(_LIBRARIES)


def _clock_in_place_of(name: str, per_second: int | None) -> None:
    full_name = f"{name}_ns" if per_second else name
    real: Callable[..., Any] = getattr(time, full_name)

    def read(*which: Any) -> Any:
        virtual = _guard.clock
        if virtual is None or not _is_ours(1):
            return real(*which)
        if not _guard.is_readable:
            raise _guard.refuse(
                f"reads time.{full_name}(); with the fixture `clock` it reads one that stands still"
            )
        seconds = virtual.wall_s() if name == "time" else virtual.monotonic_s()
        return int(seconds * per_second) if per_second else seconds

    setattr(time, full_name, read)


def _sleep_in_place() -> None:
    real_sleep, real_pause = time.sleep, asyncio.sleep

    def sleep(seconds: float) -> None:
        if not _guard.clock or not _is_ours(1):
            real_sleep(seconds)
        elif _guard.is_readable:
            _guard.clock.passed_s += seconds
        else:
            raise _guard.refuse("sleeps; with the fixture `clock` no second passes")

    def pause(delay: float, result: Any = None) -> Any:
        if _guard.clock and not _guard.is_readable and delay > 0 and _is_ours(1):
            raise _guard.refuse("sleeps; with the fixture `clock` no second passes")
        return real_pause(delay, result)

    time.sleep, asyncio.sleep = sleep, pause  # type: ignore[assignment]


def _threads_in_place() -> None:
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if _guard.clock and _is_ours(1):
            # The loop waits for no thread, and how long one takes is chance.
            thread.run()
        else:
            real(thread)

    threading.Thread.start = start  # type: ignore[method-assign]


def _processes_in_place() -> None:
    real = BaseProcess.start

    def start(process: BaseProcess) -> None:
        if _guard.clock:
            raise _guard.refuse("starts a process")
        real(process)

    BaseProcess.start = start  # type: ignore[method-assign]


def _loop_in_place() -> None:
    real = asyncio.events.new_event_loop

    def new_event_loop() -> asyncio.AbstractEventLoop:
        return MemoryLoop(_guard.clock) if _guard.clock else real()

    asyncio.events.new_event_loop = new_event_loop


sys.addaudithook(_audit)
for _name in _CLOCKS:
    _clock_in_place_of(_name, None)
    if _name != "clock_gettime":
        _clock_in_place_of(_name, 1_000_000_000)
_processes_in_place()
_threads_in_place()
_sleep_in_place()
_loop_in_place()


def _is_guarded(path: Path) -> bool:
    return path.relative_to(_TESTS).parts[0] in _FOLDERS


def _raise_refused(refused: list[GuardError]) -> None:
    """Also where what was called has swallowed it."""
    if refused:
        first = refused[0]
        refused.clear()
        raise first


@contextmanager
def guarded(*, may_read_clock: bool) -> Iterator[list[GuardError]]:
    """Guard what runs meanwhile; collects what was refused."""
    before = _guard.clock, _guard.is_readable, _guard.broken
    _guard.clock, _guard.is_readable, _guard.broken = WorldClock(), may_read_clock, []
    try:
        yield _guard.broken
    finally:
        _guard.clock, _guard.is_readable, _guard.broken = before


@contextmanager
def preparing() -> Iterator[None]:
    """Guard nothing meanwhile: for a stand-in that is built once, by a compiler."""
    clock, _guard.clock = _guard.clock, None
    try:
        yield
    finally:
        _guard.clock = clock


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Guard a test, its fixtures included."""
    # pytest calls this one for tests of other folders, too.
    if not _is_guarded(item.path):
        return (yield)
    with guarded(may_read_clock="clock" in getattr(item, "fixturenames", ())):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[Any]:
    """Fail a test also where what it calls has swallowed the refusal."""
    try:
        return (yield)
    finally:
        _raise_refused(_guard.broken)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[Any]:
    """Fail a test also by what its fixtures do at its end."""
    if nextitem is None:
        # With the last test ends what tests of all folders shared, such as a sandbox.
        item.session.addfinalizer(_guard.leave)
    try:
        return (yield)
    finally:
        _raise_refused(_guard.broken)


class Shared:
    """Guards what belongs to several tests of a guarded folder: they have no clock in common."""

    def __init__(self) -> None:
        self._ending: dict[pytest.FixtureDef[Any], ExitStack] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[Any]:
        """Guard the import of a module with tests."""
        if not isinstance(collector, pytest.Module) or not _is_guarded(collector.path):
            return (yield)
        with guarded(may_read_clock=False):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        """Guard a fixture of a module or a session, also when it ends, whatever runs then."""
        if _guard.clock is None or fixturedef.scope == "function":
            return (yield)
        try:
            with guarded(may_read_clock=False) as refused:
                made = yield
            _raise_refused(refused)
        finally:
            # The last finalizer is the first that runs.
            fixturedef.addfinalizer(lambda: self._guard_end(fixturedef))
        return made

    def _guard_end(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self._ending[fixturedef] = ending = ExitStack()
        ending.callback(_raise_refused, ending.enter_context(guarded(may_read_clock=False)))

    @pytest.hookimpl
    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """The end of such a fixture is over."""
        if ending := self._ending.pop(fixturedef, None):
            ending.close()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that tests run on: in virtual time, with a network of its own."""
    return {"virtual": _loop_of_test}


def _loop_of_test() -> asyncio.AbstractEventLoop:
    assert _guard.clock is not None
    return MemoryLoop(_guard.clock)


@pytest.fixture
def clock() -> WorldClock:
    """The clock that the product and the test read; it moves with the event loop."""
    assert _guard.clock is not None
    return _guard.clock
