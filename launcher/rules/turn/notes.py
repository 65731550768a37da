"""Texts for a service's users about replicas that do not start, or do not load its model."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.launcher.rules.pools.types import RefusedModel

if TYPE_CHECKING:
    from slicewise.launcher.rules.turn.state import AbortedRoll

LONGEST = 500
"""Characters of a note that the daemon accepts."""
_USUAL = frozenset({"", "None", "Resources", "Priority", "BeginTime"})
_HELD_BY_SLURM = frozenset({"BadConstraints"})
"""Reasons of jobs that Slurm itself holds, since no node can ever run them."""


def failure_text(
    view: ServiceView, failures: int, *, falls_back: bool = False, late_s: int = 0
) -> str:
    """Describe failed starts in a row; "" if there are none.

    ``falls_back``: an earlier generation serves meanwhile. ``late_s``: the seconds within which the
    last start was not ready; 0 if it failed otherwise.
    """
    if not failures:
        return ""
    serves = "; the generation before it still serves" if falls_back else ""
    late = f"was not ready within {late_s} s (start_timeout_s)" if late_s else ""
    ended = _ended(late or last_said(view))
    return f"{starts_have(failures)} failed: slicewise service logs {view.name}{serves}{ended}"


def aborted_text(roll: "AbortedRoll") -> str:
    """Describe a roll-over that was aborted."""
    starts = "a failed start" if roll.failures == 1 else f"{roll.failures} failed starts in a row"
    aborted = f"the roll-over to array job {roll.array_job_id} was aborted after {starts}"
    return f"{aborted}{_ended(roll.said)}; the generation before it stays"


def starts_have(failures: int) -> str:
    """Return the subject of a sentence about failed starts in a row, with its verb."""
    return "1 start has" if failures == 1 else f"{failures} starts in a row have"


def last_said(view: ServiceView) -> str:
    """Return how a start of the generation ended; "" if that is not known."""
    return max((slot.last_failure for slot in view.slots), key=len, default="")


def _ended(words: str) -> str:
    return f"; the last one {words}" if words else ""


_IN_WORDS = {
    "QOSGrpBillingRunMinutes": "the budget does not allow a run this long now",
    "QOSGrpBilling": "its tenant is at its limit",
    "QOSGrpGRES": "its tenant's guaranteed part has no more instances of this type",
}
"""Slurm's reasons that come from a tenant's own quota and budget, as ``why`` says them."""


def waiting_text(view: ServiceView) -> str:
    """Return Slurm's own reasons why slots that should run wait, without the usual; "" if none."""
    stuck = [slot for slot in view.slots if _is_stuck(slot)]
    # If the same reason comes with and without details, the details win, as in "ReqNodeNotAvail,
    # UnavailableNodes:node[1-2]".
    reasons = {slot.reason.partition(",")[0]: slot.reason for slot in sorted(stuck, key=_detail)}
    if not reasons:
        return ""
    texts = "; ".join(_IN_WORDS.get(name, reasons[name]) for name in sorted(reasons))
    return f"Slurm: {texts} (explained by: slicewise why {view.array_job_id}_{stuck[0].index})"


def refused_text(model: str, refusals: Sequence[RefusedModel]) -> str:
    """Say which replicas of a pool could not load a model, and why the first could not."""
    if not refusals:
        return ""
    first = refusals[0]
    array, index = first.place
    others = f" and {len(refusals) - 1} more" if len(refusals) > 1 else ""
    logs = f"slicewise service logs {first.service.partition('/')[2]}"
    return (
        f"replica {array}_{index} of {first.service}{others} could not load {model}: {first.why}"
        f" (its log: {logs}); it is tried again while asked: mend its files, or raise model_mib or"
        f" memory_mib if it needs more"
    )


def replica_text(index: int, node: str) -> str:
    """Name a replica for people."""
    return f"replica {index} on {node}:" if node else f"replica {index}:"


def note(parts: Iterable[str]) -> str:
    """Join parts into one line that the daemon accepts."""
    text = "; ".join(filter(None, parts))
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in text)[:LONGEST]


def _detail(slot: SlotView) -> int:
    return len(slot.reason)


def _is_stuck(slot: SlotView) -> bool:
    if slot.state == "held":
        return slot.reason in _HELD_BY_SLURM
    return slot.state == "released" and slot.reason not in _USUAL
