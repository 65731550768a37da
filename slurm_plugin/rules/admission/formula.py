"""The priority formula that a site's settings choose."""

from slicewise.cluster.settings.file import PrioritySettings
from slicewise.slurm_plugin.rules.admission.priority import Formula

_HOUR_S = 3600
_QUANTA = 100
"""Changes below this part of the highest site_factor are not written to Slurm: while a job waits,
each of them would cost slurmctld its job lock, and change no order that anybody sees."""


def formula_of(settings: PrioritySettings) -> Formula:
    """The settings of [priority] as the deciding functions take them."""
    return Formula(
        class_weight=settings.class_weight,
        share_weight=settings.share_weight,
        urgency_weight=settings.urgency_weight,
        smallness_weight=settings.smallness_weight,
        max=settings.max,
        wait_full_s=settings.wait_full_h * _HOUR_S,
        wait_full_limits=settings.wait_full_limits,
        quantum=max(1, settings.max // _QUANTA),
    )
