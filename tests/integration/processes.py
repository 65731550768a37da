"""What the kernel says of processes."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def children_of(pid: int) -> list[int]:
    """Pids of what that process has started and what has not ended; none if it has ended itself."""
    with suppress(OSError):
        return [int(child) for child in (_PROC / f"{pid}/task/{pid}/children").read_text().split()]
    return []


def waited_s(pids: Iterable[int]) -> Mapping[Path, float]:
    """How long each thread of theirs was ready to run and had no processor.

    None where the kernel does not count that.
    """
    found: dict[Path, float] = {}
    for thread in (task for pid in pids for task in _PROC.glob(f"{pid}/task/*")):
        with suppress(OSError):
            found[thread] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found
