"""Exit codes of commands: what kind of failure ended one, by the failure's error code.

A script learns from the exit code whether to correct its call, ask for rights, change something
first, or try again; which failure it was, it learns from the error code.
"""

from collections.abc import Mapping
from enum import IntEnum


class ExitCode(IntEnum):
    """How a command ended, for the shell that ran it."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    NOT_FOUND = 3
    NOT_PERMITTED = 4
    CONFLICT = 5
    UNREACHABLE = 6
    TIMED_OUT = 7
    PARTLY_DONE = 8
    WARNED = 9
    BUSY = 75
    INTERRUPTED = 130


MEANINGS: Mapping[ExitCode, tuple[str, str]] = {
    ExitCode.DONE: ("done", "–"),
    ExitCode.FAILED: (
        "failed in another way, found a fault, or a question was not answered with yes",
        "read the message",
    ),
    ExitCode.REFUSED: (
        "the call or its input was refused; nothing was changed",
        "correct the option, the file or the setting",
    ),
    ExitCode.NOT_FOUND: ("what was named is not there", "check the name"),
    ExitCode.NOT_PERMITTED: ("this user may not do it, or not see it", "ask the operator"),
    ExitCode.CONFLICT: (
        "a quota, a budget or what is there now stands against it; nothing was changed",
        "change that first; then the same call works",
    ),
    ExitCode.UNREACHABLE: (
        "Slurm, PostgreSQL, the daemon or the gateway did not answer",
        "try again later; the operator looks after it",
    ),
    ExitCode.TIMED_OUT: (
        "what was waited for had not happened in time; it goes on by itself",
        "look again later",
    ),
    ExitCode.PARTLY_DONE: ("some of it was done, and some failed", "mend what the message names"),
    ExitCode.WARNED: (
        "doctor, overview: no error was found, but something that will fail or harm some day",
        "mend what it names, or accept its code",
    ),
    ExitCode.BUSY: (
        "another run or too many questions are in the way, or something remains",
        "run the same again in some seconds",
    ),
    ExitCode.INTERRUPTED: ("Ctrl-C ended it", "–"),
}
"""Of each exit code: what happened, and what a script does."""
