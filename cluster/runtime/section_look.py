"""Looks at one section of a site, and comes to an end whatever it reads and asks."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.findings import Finding, SectionReport, error, failure, warning

_LONGEST_S, _AGAIN_S = 120.0, 5.0
"""For one section; and until the next reminder, for what took the first one for its own failure."""


class _LateError(Exception):
    """A section took too long."""


def looked(section: str, look_at: Callable[[], SectionReport]) -> SectionReport:
    """Return what ``look_at`` does; what it can't read, or not in time, ends nothing else.

    Other users may have put a FIFO in the place of a file, or listen in the place of a server, and
    answer for ever: root, who looks, would wait as long.
    """
    try:
        with _deadline():
            return look_at()
    except SlicewiseError as raised:
        return SectionReport(section, (failure(raised),))
    except _LateError:
        late = error(
            Code.TIMEOUT,
            f"What is to be checked of {section} does not come to an end within {_LONGEST_S:g} s",
            "a server answers too slowly or for ever, or a FIFO lies where a file should",
            advice=f"strace slicewise doctor --section {section} shows what it waits for.",
        )
        return SectionReport(section, (late,))
    except OSError as raised:
        return SectionReport(section, (unread(raised),))


def unread(raised: OSError) -> Finding:
    """Return the finding for a file that can't be read: root may read it, or nobody."""
    why = f"{raised.filename}: {raised.strerror}" if raised.filename else str(raised)
    if not isinstance(raised, PermissionError):
        return error(Code.FILE_RIGHTS, f"What is to be checked can't be read: {why}")
    return warning(
        Code.ROOT,
        f"This user can't read what is to be checked: {why}",
        advice="Run slicewise doctor as root. Where root may not, as on NFS with root_squash, look"
        " there as who owns it.",
    )


@contextmanager
def _deadline() -> Iterator[None]:
    """Interrupt, by _LateError, whatever takes too long; only the main thread can be."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_S, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _interrupt(*_: object) -> NoReturn:
    raise _LateError
