"""What a service's users are told about replicas that do not start."""

from cluster.wire import ServiceView, SlotView

_USUAL = frozenset({"", "None", "Resources", "Priority", "BeginTime"})
_HELD_BY_SLURM = frozenset({"BadConstraints"})
"""Slurm holds by itself what no node can ever run."""


def failure_text(view: ServiceView, failures: int) -> str:
    """After that many starts in a row that failed; "" after none."""
    if not failures:
        return ""
    starts = "1 start has" if failures == 1 else f"{failures} starts in a row have"
    log = f"{view.name}-{view.array_job_id}_*.log"
    return f"{starts} failed: see {log} in the directory where the service was applied"


def waiting_text(view: ServiceView) -> str:
    """Slurm's own reasons, other than the usual ones, for slots that should run; "" if none."""
    reasons = sorted({slot.reason for slot in view.slots if _is_stuck(slot)})
    return f"Slurm: {', '.join(reasons)}" if reasons else ""


def _is_stuck(slot: SlotView) -> bool:
    if slot.state == "held":
        return slot.reason in _HELD_BY_SLURM
    return slot.state == "released" and slot.reason not in _USUAL
