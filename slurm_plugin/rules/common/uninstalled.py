"""The refusal of everything that would set limits after Slicewise was taken out of Slurm."""

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, Refusal

UNINSTALLED = Refusal(
    Code.UNINSTALLED,
    "Slicewise was taken out of Slurm: no limits are set.",
    "To set limits again: slicewise compile --again. To keep Slicewise out: disable what still"
    " runs (slicewise-daemon, the timer, cron's line).",
)


def require_installed(is_uninstalled: bool) -> None:
    """Raise InvalidInputError (SW-UNINSTALLED) if Slicewise is uninstalled."""
    if is_uninstalled:
        raise InvalidInputError(UNINSTALLED.code, UNINSTALLED.message, UNINSTALLED.hint)
