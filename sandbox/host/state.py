"""state.json: what a sandbox is and what it started, for the next command to find."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.process import Process
from slicewise.sandbox.host.users import User

_VERSION = 1


@dataclass(frozen=True)
class Program:
    """How the sandbox's users run ``slicewise``.

    Attributes:
        python: an interpreter that every user may execute.
        site_packages: the libraries.
        project: directory that has the packages ``launcher``, ``cluster`` and so on.
    """

    python: Path
    site_packages: Path
    project: Path


@dataclass(frozen=True)
class State:
    """Everything that a later command must know.

    Attributes:
        layout: directory and slot.
        users: the user in each role.
        program: interpreter and libraries.
        device_nodes: whether the GPUs are device nodes; else they are links to /dev/null.
        ready: whether ``up`` has completed.
        processes: programs that were started, by name.
    """

    layout: Layout
    users: Mapping[str, User]
    program: Program
    device_nodes: bool
    ready: bool = False
    processes: Mapping[str, Process] = field(default_factory=dict)

    @property
    def several_users(self) -> bool:
        """Whether each role is a user of its own; else one user plays all of them."""
        return self.users["root"].uid != self.users["alice"].uid


def state_text(state: State) -> str:
    """Write a state as JSON."""
    content = {"version": _VERSION, **asdict(state)}
    return json.dumps(content, indent=1, default=str) + "\n"


def parse_state(text: str) -> State:
    """Read ``state_text``'s JSON; SlicewiseError (SW-SANDBOX-STATE) if it is anything else."""
    try:
        return _state(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise SlicewiseError(
            Code.SANDBOX_STATE,
            f"The sandbox's state.json can't be read ({error!r}).",
            "Discard it all: slicewise sandbox down, or slicewise sandbox up --anew",
        ) from None


def _state(row: Mapping[str, Any]) -> State:
    if row["version"] != _VERSION:
        message = f"version {row['version']}"
        raise ValueError(message)
    return State(
        layout=Layout(Path(row["layout"]["directory"]), row["layout"]["slot"]),
        users={role: User(**user) for role, user in row["users"].items()},
        program=Program(**{key: Path(value) for key, value in row["program"].items()}),
        device_nodes=row["device_nodes"],
        ready=row["ready"],
        processes={name: Process(**process) for name, process in row["processes"].items()},
    )


def load(path: Path) -> State | None:
    """The state in that file; None if there is none."""
    try:
        return parse_state(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing the state in that file while the body runs."""
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def save(state: State) -> None:
    """Replace state.json in one step."""
    path = state.layout.state_file
    temporary = path.with_suffix(".new")
    temporary.write_text(state_text(state), encoding="utf-8")
    temporary.replace(path)
