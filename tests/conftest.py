"""Sets how tests run: how Hypothesis tries, their order, one folder for all that they make.

In a nightly run Hypothesis keeps an example that failed in ``.hypothesis`` of this checkout and
tries it first in the next one. An example that is worth keeping for all checkouts goes with
``@example`` above its property, where no version of Hypothesis forgets it.

Because this file is here, tests can import the modules beside it.
"""

import gc
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

# Before any module of the product, some of which take a clock as a default.
import guard
import pytest
from durations import Durations
from effort import examples, is_nightly
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from json_checker import checked_printer
from run_folder import RunFolder, current, is_inner
from schedule import Schedule, in_order, turn
from second_try import SecondTry, failing_alone

from slicewise.cluster.runtime import console

_PROJECT = Path(__file__).resolve().parent.parent
_KEPT = _PROJECT / ".hypothesis" / "examples"
_REPORTS = _PROJECT / "build" / "reports"

settings.register_profile(
    "slicewise",
    database=DirectoryBasedExampleDatabase(_KEPT) if is_nightly() else None,
    deadline=None,
    # A change is judged by the same examples as the one before it; by night others are tried.
    derandomize=not is_nightly(),
    max_examples=examples(60, nightly=2000),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("slicewise")

# gRPC starts its threads again in a process that is forked beside them. One such process never
# reached its program: a daemon that a test had started did not come up.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"

_GARBAGE_AFTER = 50_000
"""Number of new objects before Python looks for garbage. With the usual 700 that took a twelfth of
the CPU time of the tests that need no server.
"""

_RUN_FOLDER = pytest.StashKey[RunFolder]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--second-try``: what ``make`` runs integration tests with."""
    parser.addoption(
        "--second-try",
        action="store_true",
        help="try integration tests that failed once more, alone, at the end",
    )
    parser.addoption(
        "--no-caretaker",
        action="store_true",
        help="use the folder that SLICEWISE_TEST_RUN names; what started this run removes it",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that fixtures clean up; seldom look for garbage."""
    gc.set_threshold(_GARBAGE_AFTER)
    config.pluginmanager.register(guard.Shared())
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _interrupt)
        # A pool's processes are forked, and the pool waits for ever for a process that does not
        # end when it is told to.
        os.register_at_fork(after_in_child=_as_usual)
        # A shell that runs tests in its background lets them, and all they start, ignore SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if _is_worker(config):
        return
    # A run that a test or another run has started leaves the reports of that one alone.
    runs_within_another = is_inner()
    if not runs_within_another:
        config.pluginmanager.register(Durations(_REPORTS / "tests.json"))
    if config.option.second_try:
        second_try = SecondTry(_REPORTS / "flaky.json", failing_alone(_PROJECT))
        config.pluginmanager.register(second_try)
    if not config.option.no_caretaker:
        config.stash[_RUN_FOLDER] = RunFolder()
    if config.option.basetemp is None:
        # Sockets lie below it, whose paths may have 97 characters (HAProxy).
        name = f"tmp-{os.getpid()}" if runs_within_another else "tmp"
        config.option.basetemp = current() / name


@pytest.fixture(scope="session", autouse=True)
def _documents_are_checked() -> Iterator[None]:
    """Whatever a command prints as JSON in a test is compared with its published schema."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(console, "print_document", checked_printer())
        yield


@pytest.fixture(autouse=True)
def _log_levels_stay() -> Iterator[None]:
    """A command that a test runs in its own process may set the level of what is logged."""
    yield
    logging.getLogger("slicewise").setLevel(logging.NOTSET)


def _as_usual() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _interrupt(number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _RUN_FOLDER in config.stash:
        config.stash[_RUN_FOLDER].clear()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort tests; leave those of the night to ``make nightly``."""
    of_the_night = [item for item in items if item.get_closest_marker("nightly") is not None]
    if of_the_night and not is_nightly():
        config.hook.pytest_deselected(items=of_the_night)
        items[:] = [item for item in items if item not in of_the_night]
    items[:] = in_order(items)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Schedule | None:
    """Our schedule, unless the command line asks for another one."""
    return Schedule(config, log) if config.option.dist == "load" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with turn(item, current() / "turn"):
        return (yield)


def pytest_collection_finish() -> None:
    """Exempt collected tests from garbage collection: thousands of them stay until the end."""
    gc.collect()
    gc.freeze()
