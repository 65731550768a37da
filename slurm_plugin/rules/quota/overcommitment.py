"""Says by how much quotas exceed the cluster, and since when."""

from collections.abc import Iterable
from dataclasses import dataclass

from slicewise.cluster.language.units import slices_text, slices_words
from slicewise.slurm_plugin.rules.quota.tenants import overcommitted_millislices
from slicewise.slurm_plugin.rules.quota.types import Policy

_SHOWN = 5


@dataclass(frozen=True)
class Overcommitment:
    """Nominals at the top that together exceed what the cluster has.

    Attributes:
        above_millislices: by how much.
        since_s: Unix seconds of the first look that showed it; what was before the daemon's start
            is not known.
        gone: names of the managed nodes that have gone from Slurm since the start.
    """

    above_millislices: int
    capacity_millislices: int
    since_s: float
    gone: frozenset[str] = frozenset()

    @property
    def words(self) -> str:
        """``quotas guarantee 2,058 slices, 42 more than the cluster has``, and what is gone."""
        return over_words(self.above_millislices, self.capacity_millislices, self.gone)


def over_words(above: int, capacity: int, gone: Iterable[str] = ()) -> str:
    """The same of millislices."""
    names = sorted(gone)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    went = f"; gone from Slurm: {', '.join(names[:_SHOWN])}{more}" if names else ""
    all_slices = slices_text(above + capacity)
    return f"quotas guarantee {all_slices} slices, {slices_words(above)} more than there are{went}"


def followed(
    before: Overcommitment | None,
    policy: Policy,
    capacity_millislices: int | None,
    gone: frozenset[str],
    now_s: float,
) -> Overcommitment | None:
    """What is so at this look; None while quotas fit, or if the capacity is not known."""
    above = overcommitted_millislices(policy, capacity_millislices or 0)
    if capacity_millislices is None or not above:
        return None
    since_s = now_s if before is None else before.since_s
    return Overcommitment(above, capacity_millislices, since_s, gone)
