"""Says whether a change of quotas is in force in Slurm, and why it is not yet."""

from typing import TYPE_CHECKING

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.settings.file import Settings

if TYPE_CHECKING:
    from slicewise.cluster.rpc.messages import StatusAnswer
    from slicewise.slurm_plugin.ledger.store import Ledger


def force_text(ledger: "Ledger", settings: Settings, took_s: float | None) -> str:
    """Say whether a change is in force, after how long; None means not while it was waited for.

    Only then the daemon is asked.
    """
    if took_s is not None:
        return f"in force in Slurm ({took_s:.1f} s)"
    if ledger.limits.is_uninstalled():
        why_not = "Slicewise was taken out of Slurm (slicewise compile --again)"
    else:
        why_not = why_not_in_force(_status(settings))
    return f"recorded, and not in force yet: {why_not}"


def sets_no_limits(settings: Settings) -> bool:
    """Whether the daemon says that its mode leaves Slurm's limits as they are.

    It is not asked where slicewise.toml says enforce. Other hosts' files may not name the mode, so
    the file alone proves nothing.
    """
    if settings.daemon.mode == "enforce":
        return False
    status = _status(settings)
    return not isinstance(status, SlicewiseError) and status.mode != "enforce"


def _status(settings: Settings) -> "StatusAnswer | SlicewiseError":
    # Imported here: nearly every change is in force at once, and then the daemon is not asked.
    from slicewise.cluster.rpc.client import DaemonClient  # noqa: PLC0415
    from slicewise.cluster.rpc.messages import StatusRequest  # noqa: PLC0415

    try:
        return DaemonClient(settings.daemon).call(StatusRequest())
    except SlicewiseError as error:
        return error


def why_not_in_force(status: "StatusAnswer | SlicewiseError") -> str:
    """Say why limits do not follow the ledger, by the daemon's answer, or by its failure."""
    if isinstance(status, SlicewiseError):
        return (
            f"the daemon gives no answer ({status.refusal.code}); it follows when it runs again,"
            " or by slicewise compile"
        )
    daemon = f"the daemon on {status.host}"
    if status.is_uninstalled:
        return f"{daemon} found Slicewise taken out of Slurm (slicewise compile --again)"
    if not status.is_leader:
        return f"{daemon} stands by, and the one that leads gave no answer"
    if status.mode != "enforce":
        return f"{daemon} is in mode {status.mode}, in which Slurm's limits stay as they are"
    if not status.complete:
        return f"{daemon} has no complete look at Slurm: slicewise admission status"
    return f"{daemon} is busy; slicewise tenant show NAME says when"
