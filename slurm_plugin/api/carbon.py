"""Grams of CO2 for a kilowatt-hour, by the day: a site's factor, or its time series."""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from statistics import fmean
from zoneinfo import ZoneInfo

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.settings.energy import MOST_G_PER_KWH, EnergySettings

_MOST_FACTORS = 100_000


def grams_per_kwh(settings: EnergySettings, days: set[str], zone: str) -> Mapping[str, float]:
    """Grams of CO2 for a kilowatt-hour of boards, by day, with the PUE: none without a factor.

    Of a time series the mean of a day's values counts; a day without any has the fixed factor.
    Raises InvalidInputError (SW-VALUE) for a file that can't be read.
    """
    means = dict[str, float]()
    if settings.carbon_file is not None:
        means = {day: fmean(values) for day, values in _series(settings.carbon_file, zone).items()}
    factors = {day: means.get(day, settings.carbon_g_per_kwh) for day in days}
    return {day: factor * settings.pue for day, factor in factors.items() if factor is not None}


def _series(path: Path, zone: str) -> Mapping[str, list[float]]:
    values = defaultdict[str, list[float]](list)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for day, grams in _factors(csv.DictReader(file), zone):
                values[day].append(grams)
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise InvalidInputError(
            Code.VALUE,
            f"energy.carbon_file can't be read ({path}): {error}.",
            "It has the columns time (ISO 8601 with a zone) and g_per_kwh.",
        ) from None
    return values


def _factors(rows: Iterator[Mapping[str, str]], zone: str) -> Iterator[tuple[str, float]]:
    for line, row in enumerate(rows, 2):
        at, grams = datetime.fromisoformat(row["time"]), float(row["g_per_kwh"])
        if at.tzinfo is None:
            raise ValueError(f"line {line} has a time without a zone")
        if line > _MOST_FACTORS or not 0 <= grams < MOST_G_PER_KWH:
            raise ValueError(f"line {line} is one too many, or has grams that can't be")
        yield at.astimezone(ZoneInfo(zone)).date().isoformat(), grams
