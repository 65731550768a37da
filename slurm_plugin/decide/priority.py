"""Priority: what Slicewise adds to Slurm's own formula, by way of site_factor."""

SITE_FACTOR_MAX = 1000
"""Bound of what is added. Slurm's own weights decide how much that is worth at a site."""


def site_factor(nominal: int, used: int) -> int:
    """How far a tenant is below its nominal quota now: 1000 × (nominal − used) / nominal.

    In 0..SITE_FACTOR_MAX: 1000 for a tenant that holds nothing, 500 at half of its quota, 0 at or
    above it and for one whose nominal is 0. Rounded down.
    """
    if nominal <= 0:
        return 0
    return max(0, min(SITE_FACTOR_MAX, SITE_FACTOR_MAX * (nominal - used) // nominal))
