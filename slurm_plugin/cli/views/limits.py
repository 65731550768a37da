"""What differs between ledger and Slurm, for people."""

from collections.abc import Sequence

from slicewise.cluster.runtime.console import FittingTable, column
from slicewise.slurm_plugin.rules.limits.desired import Difference
from slicewise.slurm_plugin.rules.limits.drift import OutOfBandChange

_UNSET = "-"


def differences_table(differences: Sequence[Difference]) -> FittingTable:
    """One line per setting, in Slurm's own words and units."""
    return FittingTable(
        (
            column("entity", (difference.entity for difference in differences), rank=1),
            column("name", (_name(difference) for difference in differences)),
            column("setting", (difference.key.field for difference in differences)),
            column("now", (difference.now or _UNSET for difference in differences)),
            column("desired", (difference.wanted or _UNSET for difference in differences)),
            column("why", (difference.why for difference in differences), folds=True, rank=2),
        )
    )


def out_of_band_text(change: OutOfBandChange) -> str:
    """Describe a change made outside Slicewise.

    An example: ``account vision: grptres=billing was 6000, changed outside Slicewise to 9000``.
    """
    was, now = change.was or "not set", change.now or "not set"
    key = change.key
    return f"{key.entity} {key.name}: {key.field} was {was}, changed outside Slicewise to {now}"


def _name(difference: Difference) -> str:
    return f"{difference.user} in {difference.key.name}" if difference.user else difference.key.name
