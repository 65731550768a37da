"""Exit codes of commands: what kind of failure ended one, by the failure's error code.

A script learns from the exit code whether to correct its call, ask for rights, change something
first, or try again; which failure it was, it learns from the error code.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum

from cluster.language.findings import Severity


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

_CODES: Mapping[ExitCode, str] = {
    ExitCode.FAILED: """
        SW-ABORTED SW-ADMISSION-LUA SW-BACKUP-BROKEN SW-BUDGET-LOW SW-CERTIFICATE SW-CGROUPS
        SW-CLOCK-SKEW SW-CONF-BACKFILL-WINDOW SW-CONF-BOUNDS SW-CONF-DIFFERS SW-CONF-LIMITS
        SW-CONF-PREEMPT SW-CONF-PREEMPT-ORDER SW-CONF-PRIORITY SW-CONF-PRIVATE SW-CONF-REQUEUE
        SW-CONF-SERVICES SW-CONF-SLOW-START SW-CONF-SPEC-CORES SW-CONF-WEIGHTS SW-DAEMON-UNSURE
        SW-DATABASE-FAILED SW-DRIVER SW-FILE-RIGHTS SW-GATEWAY-FAILED SW-GATEWAY-MASTER
        SW-GATEWAY-PORT SW-GATEWAY-STALE SW-GPU-PRICE SW-HOST-PORTS SW-INTERNAL SW-LAUNCHER-DOWN
        SW-LEDGER-BACKUP SW-LEDGER-BLOAT SW-LEDGER-FSYNC SW-LEDGER-IMBALANCE SW-LEDGER-OWNER
        SW-LEDGER-REFUSED SW-LEDGER-SEALS SW-LENDING-GROUP SW-LIMITS-BY-HAND SW-LIMITS-GRACE
        SW-LIMITS-MINUTES SW-LIMITS-PASSED SW-LIMITS-SHARED SW-NODE-DOWN SW-NODE-GRES
        SW-NODE-NAMESPACES SW-NODE-PRICE SW-NODE-TABLE SW-PARTITION-GATE SW-PARTITION-MEMORY
        SW-REPARTITION-STUCK SW-RESTART SW-SACCTMGR-DUMP SW-SANDBOX-FAILED SW-SCRIPT-INSTALL
        SW-SCRIPT-OFF SW-SCRIPT-PASSED SW-SERVICE-FAILING SW-SLURM-FAILED SW-SUBMITS-OPEN
        SW-TENANT-ACCOUNTS SW-VERSION SW-WAITING SW-WEB-DOWN SW-WEB-OIDC SW-WEB-PLAIN
        SW-WEB-TOKEN-KEY SW-WIRE
    """,
    ExitCode.REFUSED: """
        SW-CLUSTER-NAME SW-DATABASE-URL SW-DIRECTIVE SW-GRES SW-INPUT-FILE SW-JOB-OPTION
        SW-NEED-TOO-LARGE SW-OUTPUT SW-PROFILE-UNKNOWN SW-REPARTITION-CONF SW-SERVICE
        SW-SERVICE-ENGINE SW-SERVICE-MODEL SW-SETTINGS SW-SHARE SW-SLO-UNREACHABLE SW-USAGE SW-VALUE
        SW-WEB-HOST SW-WITHOUT-GPU
    """,
    ExitCode.NOT_FOUND: """
        SW-ADMISSION-FILE SW-BUDGET-NONE SW-DATABASE-ROLE SW-DRIVER-MISSING SW-GATEWAY-IDENTITY
        SW-NAME-UNKNOWN SW-NODE-GPU SW-NOTHING SW-PROGRAM SW-QUOTA-NONE SW-SANDBOX-DOWN
        SW-SERVICE-UNKNOWN SW-TENANT-UNKNOWN
    """,
    ExitCode.NOT_PERMITTED: """
        SW-CLASS-FORBIDDEN SW-DATABASE-RIGHTS SW-FORBIDDEN SW-MUNGE SW-QOS SW-RESUBMIT SW-ROOT
        SW-SERVICE-DIRECTORY SW-USER SW-WEB-LOGIN SW-WEB-PROXY SW-WEB-TOKEN
    """,
    ExitCode.CONFLICT: """
        SW-BUDGET-EXCEEDED SW-BUDGET-KEY SW-DAEMON-RUNNING SW-DATABASE-NEW SW-DATABASE-OLD
        SW-KEY-REVOKE SW-MIG-CHANGED SW-MIG-IN-USE SW-MODE SW-QUOTA-BORROW SW-QUOTA-CAPACITY
        SW-QUOTA-EXCEEDED SW-QUOTA-TREE SW-REPARTITION-HELD SW-REPARTITION-NODE SW-SANDBOX-STATE
        SW-SERVICE-EXISTS SW-SERVICE-PLACES SW-TENANT-CHILDREN SW-UNINSTALLED
    """,
    ExitCode.UNREACHABLE: """
        SW-DAEMON-BLIND SW-DAEMON-DOWN SW-DATABASE-DOWN SW-GATEWAY-DOWN SW-SLURM-DOWN
    """,
    ExitCode.TIMED_OUT: "SW-TIMEOUT",
    ExitCode.PARTLY_DONE: "SW-LIMITS-UNSETTLED SW-PROFILE-ENDED SW-TENANT-IMPORT",
    ExitCode.BUSY: """
        SW-BUSY SW-DAEMON-STANDBY SW-DATABASE-BUSY SW-KEY-TWICE SW-LOCK SW-RATE SW-SERVICE-CHANGED
        SW-SERVICE-ENDING
    """,
}

KINDS: Mapping[str, ExitCode] = {
    code: kind for kind, codes in _CODES.items() for code in codes.split()
}
"""The exit code by error code. The gateway's answers to clients have none: no command fails so."""


def exit_code_of(code: str) -> ExitCode:
    """Return the exit code for an error code; FAILED for one that this version does not know."""
    return KINDS.get(code, ExitCode.FAILED)


def exit_code_by(severities: Iterable[Severity]) -> ExitCode:
    """Return the exit code of a command that has found something, by the worst that it found."""
    found = set(severities)
    if Severity.ERROR in found:
        return ExitCode.FAILED
    return ExitCode.WARNED if Severity.WARNING in found else ExitCode.DONE
