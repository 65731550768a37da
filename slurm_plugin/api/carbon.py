"""Grams of CO2 for a kilowatt-hour, by day or moment: a site's factor, or its time series."""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from zoneinfo import ZoneInfo

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.settings.energy import MOST_G_PER_KWH, EnergySettings

_MOST_FACTORS = 100_000
_DAY_S = 86_400


def grams_per_kwh(settings: EnergySettings, days: set[str], zone: str) -> Mapping[str, float]:
    """Grams of CO2 for a kilowatt-hour of boards, by day, with the PUE: none without a factor.

    Of a time series the mean of a day's values counts; a day without any has the fixed factor.
    Raises InvalidInputError (SW-VALUE) for a file that can't be read.
    """
    by_day = defaultdict[str, list[float]](list)
    if settings.carbon_file is not None:
        for at, grams in _series(settings.carbon_file):
            by_day[at.astimezone(ZoneInfo(zone)).date().isoformat()].append(grams)
    means = {day: fmean(values) for day, values in by_day.items()}
    factors = {day: means.get(day, settings.carbon_g_per_kwh) for day in days}
    return {day: factor * settings.pue for day, factor in factors.items() if factor is not None}


def grams_between(
    settings: EnergySettings, since_s: int, until_s: int
) -> Sequence[tuple[int, int, float]]:
    """The same from moment to moment, in Unix seconds: where each begins, where it ends, grams.

    A value of a time series counts until the next, for a day at most, and the last one as long as
    the one before it; where the series has none, there is none. Raises as ``grams_per_kwh`` does.
    """
    if settings.carbon_file is None:
        fixed = settings.carbon_g_per_kwh
        return () if fixed is None else ((since_s, until_s, fixed * settings.pue),)
    values = {int(at.timestamp()): grams for at, grams in _series(settings.carbon_file)}
    starts_s = sorted(values)
    lengths_s = [min(after_s - at_s, _DAY_S) for at_s, after_s in pairwise(starts_s)]
    ends_s = [at_s + length_s for at_s, length_s in zip(starts_s, lengths_s, strict=False)]
    if lengths_s:
        ends_s.append(starts_s[-1] + lengths_s[-1])
    return tuple(
        (max(at_s, since_s), min(end_s, until_s), values[at_s] * settings.pue)
        for at_s, end_s in zip(starts_s, ends_s, strict=False)
        if at_s < until_s and since_s < end_s
    )


def _series(path: Path) -> Sequence[tuple[datetime, float]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return tuple(_factors(csv.DictReader(file)))
    except (OSError, KeyError, TypeError, ValueError, csv.Error) as error:
        raise InvalidInputError(
            Code.VALUE,
            f"energy.carbon_file can't be read ({path}): {error}.",
            "It has the columns time (ISO 8601 with a zone) and g_per_kwh.",
        ) from None


def _factors(rows: Iterator[Mapping[str, str]]) -> Iterator[tuple[datetime, float]]:
    for line, row in enumerate(rows, 2):
        at, grams = datetime.fromisoformat(row["time"]), float(row["g_per_kwh"])
        if at.tzinfo is None:
            raise ValueError(f"line {line} has a time without a zone")
        if line > _MOST_FACTORS or not 0 <= grams < MOST_G_PER_KWH:
            raise ValueError(f"line {line} is one too many, or has grams that can't be")
        yield at, grams
