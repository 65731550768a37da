"""Tests grams of CO2 by day and by moment, from a site's factor and from its file."""

from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.settings.energy import EnergySettings
from slicewise.slurm_plugin.api.carbon import grams_between, grams_per_kwh

DAYS = {"2026-11-28", "2026-11-29"}


def test_without_a_factor_there_are_no_grams() -> None:
    assert grams_per_kwh(EnergySettings(), DAYS, "UTC") == {}


def test_a_day_has_the_mean_of_its_hours_and_else_the_fixed_factor(tmp_path: Path) -> None:
    file = tmp_path / "grams.csv"
    file.write_text(
        "time,g_per_kwh\n2026-11-28T23:30:00Z,300\n2026-11-29T10:00:00+01:00,100\n",
        encoding="utf-8",
    )
    settings = EnergySettings(carbon_g_per_kwh=500, carbon_file=file, pue=1.5)
    found = grams_per_kwh(settings, DAYS, "Europe/Berlin")
    assert found == {"2026-11-28": 750.0, "2026-11-29": 300.0}


@pytest.mark.parametrize(
    "text",
    [
        "when,g_per_kwh\n2026-11-29T10:00:00Z,1\n",
        "time,g_per_kwh\n2026-11-29T10:00:00,1\n",
        "time,g_per_kwh\n2026-11-29T10:00:00Z,-1\n",
        "time,g_per_kwh\n2026-11-29T10:00:00Z,nan\n",
        "time,g_per_kwh\n2026-11-29T10:00:00Z\n",
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "grams.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"carbon_file.*SW-VALUE"):
        grams_per_kwh(EnergySettings(carbon_file=file), DAYS, "UTC")


def test_a_value_counts_until_the_next_and_for_a_day_at_most(tmp_path: Path) -> None:
    file = tmp_path / "grams.csv"
    file.write_text(
        "time,g_per_kwh\n1970-01-04T01:00:00Z,3\n1970-01-01T00:00:00Z,1\n"
        "1970-01-04T02:00:00+01:00,3\n1970-01-04T00:00:00Z,2\n",
        encoding="utf-8",
    )
    day_s, hour_s = 86_400, 3600
    settings = EnergySettings(carbon_file=file, carbon_g_per_kwh=9, pue=2)
    assert grams_between(settings, hour_s, 9 * day_s) == (
        (hour_s, day_s, 2.0),
        (3 * day_s, 3 * day_s + hour_s, 4.0),
        (3 * day_s + hour_s, 3 * day_s + 2 * hour_s, 6.0),
    )
    assert grams_between(settings, 4 * day_s, 9 * day_s) == ()


def test_a_fixed_factor_counts_for_all_of_the_time() -> None:
    settings = EnergySettings(carbon_g_per_kwh=300, pue=1.5)
    assert grams_between(settings, 5, 9) == ((5, 9, 450.0),)
    assert grams_between(EnergySettings(), 5, 9) == ()
