"""What the kernel says of processes."""

from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """Pids of what that process has started and what has not ended; none if it has ended itself."""
    with suppress(OSError):
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []
