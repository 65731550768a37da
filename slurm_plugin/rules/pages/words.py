"""Figures of the page in words."""

from slicewise.cluster.language.meters import SLICES, meter_named
from slicewise.slurm_plugin.rules.accounting.energy import MJ_PER_KWH

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_FEW = 10
_MILLION = 1_000_000
_MOST = 400
"""Characters of one text: names and reasons are far shorter."""


def age_text(seconds: float) -> str:
    """``under a minute``, ``12 min``, ``3.5 h``, ``2.1 d``: no word changes within a minute."""
    if seconds < _MINUTE_S:
        return "under a minute"
    if seconds < _HOUR_S:
        return f"{seconds // _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h" if seconds < _DAY_S else f"{seconds / _DAY_S:.1f} d"


def hours_text(millislice_s: int) -> str:
    """Slice-hours with one decimal; below ten with three, for runs of seconds."""
    hours = millislice_s / 1000 / _HOUR_S
    return f"{hours:,.3f}" if 0 < abs(hours) < _FEW else f"{hours:,.1f}"


def amount_text(amount: int, meter: str) -> str:
    """An amount of what a budget is of: slice-hours as above, ``1,000,000 tokens``."""
    if meter == SLICES.name:
        return hours_text(amount)
    budgeted = meter_named(meter)
    return f"{budgeted.text(amount)} {shortened(budgeted.unit)}"


def kwh_text(energy_mj: int | None) -> str:
    """Kilowatt-hours with three decimals; a dash for what is not known."""
    return "–" if energy_mj is None else f"{energy_mj / MJ_PER_KWH:,.3f}"


def measured_text(measured_mj: int, energy_mj: int | None) -> str:
    """The part that meters saw, as ``97%``; "" of nothing."""
    return f"{measured_mj / energy_mj:.0%}" if energy_mj else ""


def kwh_per_million_text(energy_mj: int, tokens: int | None) -> str:
    """Kilowatt-hours for a million tokens; "" where none were counted."""
    return kwh_text(round(energy_mj * _MILLION / tokens)) if tokens and energy_mj else ""


def shortened(text: str) -> str:
    """The text, cut off where it is longer than any that helps."""
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"
