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
    ExitCode.BUSY: (
        "another run or too many questions are in the way, or something remains",
        "run the same again in some seconds",
    ),
    ExitCode.INTERRUPTED: ("Ctrl-C ended it", "–"),
}
"""Of each exit code: what happened, and what a script does."""

_CODES: Mapping[ExitCode, str] = {
    ExitCode.FAILED: """
        SW-ABORTED SW-ADMISSION-LUA SW-DAEMON-UNSURE SW-DATABASE-FAILED SW-DEMO-COMMAND
        SW-DEMO-GATEWAY SW-DEVICES-OPEN SW-GATEWAY-CONFIG SW-GATEWAY-FAILED SW-INTERNAL SW-INVENTORY
        SW-LEDGER-IMBALANCE SW-LEDGER-REFUSED SW-METRICS SW-MIG-CUT SW-NVML SW-PROCESSES-LOOSE
        SW-RECUT-STUCK SW-RECUT-VERIFY SW-SANDBOX-BUILD SW-SANDBOX-START SW-SBATCH
        SW-SERVICE-FAILING SW-SERVICE-NEEDED SW-SLURM-FAILED SW-SOLVER SW-SUBMITS-OPEN
        SW-TENANT-TREE SW-WIRE
    """,
    ExitCode.REFUSED: """
        SW-BESIDE SW-BUDGET-RANGE SW-CLUSTER-NAME SW-DAEMON-LISTEN SW-DATABASE-URL SW-DIRECTIVE
        SW-EXCLUSIVE SW-GATEWAY-SETTINGS SW-GPU-MODEL SW-GRES SW-GRES-SHARED SW-GRES-TYPE
        SW-LAUNCHER-PAIR SW-MIG-PARTED SW-MIG-PLACEMENT SW-MIG-PLACEMENTS SW-MIG-PROFILE
        SW-NEED-TOO-LARGE SW-NO-NODE SW-OUTPUT SW-PERIOD SW-PROFILE-DATA SW-PROFILE-ENGINE
        SW-PROFILE-FILE SW-PROFILE-LOAD SW-PROFILE-UNKNOWN SW-QUOTA-FILE SW-QUOTA-RANGE
        SW-RECUT-CONF SW-RECUT-TEXT SW-REVISION SW-SANDBOX-DIRECTORY SW-SANDBOX-PROGRAM
        SW-SANDBOX-USER SW-SERVICE SW-SERVICE-AMBIGUOUS SW-SERVICE-ARRAY SW-SERVICE-CONFIG
        SW-SERVICE-ENGINE SW-SERVICE-FILE SW-SERVICE-GRES SW-SERVICE-IMAGE SW-SERVICE-INIT
        SW-SERVICE-MODEL SW-SERVICE-NEIGHBOUR SW-SERVICE-PARTITION SW-SERVICE-SCALE
        SW-SERVICE-SEQUENCES SW-SERVICE-SHAPE SW-SERVICE-TENANT SW-SETTINGS SW-SHARE
        SW-SLO-UNREACHABLE SW-TENANT-CHOICE SW-TENANT-CYCLE SW-TENANT-NAME SW-TEXT SW-TEXT-LENGTH
        SW-TYPE-LIMIT SW-UNITS SW-USAGE SW-WEIGHT-RANGE SW-WINDOW-TIME SW-WITHOUT-GPU
    """,
    ExitCode.NOT_FOUND: """
        SW-ADMISSION-FILE SW-BUDGET-NONE SW-DATABASE-ROLE SW-GATEWAY-IDENTITY SW-GATEWAY-PROGRAM
        SW-KEY-UNKNOWN SW-MIG-GPU SW-NVML-MISSING SW-PRIORITY-NONE SW-PYSLURM SW-QUOTA-NONE
        SW-REBALANCE-UNKNOWN SW-RECUT-UNKNOWN SW-SANDBOX-COMMAND SW-SANDBOX-DOWN SW-SANDBOX-EXTRA
        SW-SANDBOX-INTERPRETER SW-SANDBOX-LLAMACPP SW-SANDBOX-PACKAGES SW-SANDBOX-SLURM
        SW-SANDBOX-TRITON
        SW-SCHEMA-UNKNOWN SW-SERVICE-GENERATION SW-SERVICE-LOGS SW-SERVICE-UNKNOWN SW-TENANT-PARENT
        SW-TENANT-UNKNOWN SW-UNINSTALL-NONE SW-WINDOW-UNKNOWN
    """,
    ExitCode.NOT_PERMITTED: """
        SW-ADMISSION-PEER SW-CLASS-FORBIDDEN SW-DAEMON-USER SW-DATABASE-RIGHTS SW-FORBIDDEN
        SW-MANAGED-JOB SW-MUNGE SW-NOT-ADMITTED SW-QOS SW-RECUT-ROOT SW-RUN-DIR
        SW-SERVICE-DIRECTORY
    """,
    ExitCode.CONFLICT: """
        SW-BUDGET-EXCEEDED SW-BUDGET-KEY SW-COMPILE-MODE SW-DAEMON-RUNNING SW-DATABASE-NEW
        SW-DATABASE-OLD SW-DECIDE-LATE SW-KEY-LIMIT SW-KEY-VALID SW-MIG-CHANGED SW-MIG-IN-USE
        SW-MIG-NO-ROOM SW-QUOTA-BORROW SW-QUOTA-CAPACITY SW-QUOTA-EXCEEDED SW-QUOTA-TREE
        SW-RECUT-CHANGED SW-RECUT-HELD SW-RECUT-NODE SW-RECUT-NOT-STUCK SW-RECUT-ORDER SW-RECUT-PADS
        SW-SANDBOX-PORTS SW-SANDBOX-STATE SW-SERVICE-ENDING SW-SERVICE-EXISTS SW-SERVICE-MODE
        SW-SERVICE-PLACES SW-TENANT-CHILDREN SW-UNINSTALLED SW-WINDOW-TREE
    """,
    ExitCode.UNREACHABLE: """
        SW-DAEMON-DOWN SW-DATABASE-DOWN SW-GATEWAY-DOWN SW-REBALANCE-LOCK SW-SLURM-DOWN
        SW-VIEW-INCOMPLETE
    """,
    ExitCode.TIMED_OUT: "SW-COMPILE-WAIT SW-SERVICE-WAIT SW-TIMEOUT",
    ExitCode.PARTLY_DONE: "SW-LIMITS-UNSETTLED SW-PROFILE-ENDED SW-TENANT-IMPORT",
    ExitCode.BUSY: """
        SW-BUDGET-BEGINS SW-BUSY SW-DAEMON-STANDBY SW-DATABASE-BUSY SW-KEY-TWICE SW-LAUNCHER-STANDBY
        SW-RATE SW-RECUT-BUSY SW-RECUT-LOCK SW-SANDBOX-BUSY SW-SERVICE-GENERATIONS
    """,
}

KINDS: Mapping[str, ExitCode] = {
    code: kind for kind, codes in _CODES.items() for code in codes.split()
}
"""The exit code by error code. The gateway's answers to clients have none: no command fails so."""


def exit_code_of(code: str) -> ExitCode:
    """Return the exit code for an error code; FAILED for one that this version does not know."""
    return KINDS.get(code, ExitCode.FAILED)
