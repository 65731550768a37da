"""The priority formula that a site's settings choose."""

from cluster.settings.file import PrioritySettings
from slurm_plugin.admission.priority import Formula

_HOUR_S = 3600


def formula_of(settings: PrioritySettings) -> Formula:
    """The settings of [priority] as the deciding functions take them."""
    return Formula(
        class_weight=settings.class_weight,
        share_weight=settings.share_weight,
        urgency_weight=settings.urgency_weight,
        smallness_weight=settings.smallness_weight,
        max=settings.max,
        wait_full_s=settings.wait_full_h * _HOUR_S,
        quantum=settings.quantum,
    )
