"""What a service's users are told about replicas that do not start."""

from collections.abc import Iterable

from cluster.wire import ServiceView, SlotView

LONGEST = 500
"""Characters of a note that the daemon takes."""
_USUAL = frozenset({"", "None", "Resources", "Priority", "BeginTime"})
_HELD_BY_SLURM = frozenset({"BadConstraints"})
"""Slurm holds by itself what no node can ever run."""


def failure_text(view: ServiceView, failures: int, *, falls_back: bool = False) -> str:
    """After that many starts in a row that failed; "" after none.

    ``falls_back``: an earlier generation serves meanwhile.
    """
    if not failures:
        return ""
    starts = "1 start has" if failures == 1 else f"{failures} starts in a row have"
    serves = "; the generation before it serves on" if falls_back else ""
    words = max((slot.said for slot in view.slots), key=len, default="")
    ended = f"; the last one {words}" if words else ""
    return f"{starts} failed: slicewise service logs {view.name}{serves}{ended}"


def waiting_text(view: ServiceView) -> str:
    """Slurm's own reasons, other than the usual ones, for slots that should run; "" if none."""
    stuck = [slot for slot in view.slots if _is_stuck(slot)]
    # Of the same reason the one with details: "ReqNodeNotAvail, UnavailableNodes:node[1-2]".
    reasons = {slot.reason.partition(",")[0]: slot.reason for slot in sorted(stuck, key=_detail)}
    if not reasons:
        return ""
    said = "; ".join(reasons[name] for name in sorted(reasons))
    return f"Slurm: {said} (in words: slicewise why {view.array_job_id}_{stuck[0].index})"


def note(parts: Iterable[str]) -> str:
    """One line that the daemon takes."""
    text = "; ".join(filter(None, parts))
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)[:LONGEST]


def _detail(slot: SlotView) -> int:
    return len(slot.reason)


def _is_stuck(slot: SlotView) -> bool:
    if slot.state == "held":
        return slot.reason in _HELD_BY_SLURM
    return slot.state == "released" and slot.reason not in _USUAL
