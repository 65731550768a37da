"""Tests reading recorded rows of sprio, and slurm.conf's weights."""

from pathlib import Path

import pytest

from slicewise.cluster.language.slurm.parse import parse_config
from slicewise.cluster.language.slurm.priorities import (
    PRIORITY_FORMAT,
    factor_weights,
    parse_priorities,
    weight_points,
)
from slicewise.cluster.language.slurm.unread import Unread, ignored

ASSETS = Path(__file__).parents[4] / "assets" / "slurm"
RECORDED = (ASSETS / "22.05.8" / "sprio-o.txt").read_text(encoding="utf-8")
"""Of ``sprio -h -o PRIORITY_FORMAT``, with weights and nice."""


def test_the_format_is_the_recorded_one() -> None:
    assert PRIORITY_FORMAT == "%i|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T"


def test_parts_and_site_factor_add_up_to_the_priority() -> None:
    rows = parse_priorities(RECORDED, (1302, 1303, 1304, 1306), ignored)
    for row in rows:
        others = sum(part for name, part in row.parts.items() if name != "nice")
        assert row.site + others - row.parts["nice"] == pytest.approx(row.priority, abs=2)
    assert [(row.job_id, row.site) for row in rows] == [
        (1302, 6500),
        (1303, 0),
        (1304, -20),
        (1306, 10_000),
    ]
    assert rows[0].parts["nice"] == 50
    assert rows[1].parts["tres"] == 16 + 3 + 136


def test_only_jobs_that_are_asked_for_are_told() -> None:
    assert [row.job_id for row in parse_priorities(RECORDED, (1304, 99), ignored)] == [1304]


def test_of_a_job_in_two_partitions_the_highest_priority_counts() -> None:
    low, high = "7|10|5|0|0|0|0|5|0|0|", "7|25|5|0|0|0|0|20|0|0|"
    for text in (f"{low}\n{high}\n", f"{high}\n{low}\n"):
        (row,) = parse_priorities(text, (7,), ignored)
        assert (row.priority, row.site, row.parts["partition"]) == (25, 5, 20)


@pytest.mark.parametrize("text", ["7|1|2\n", "JOBID\n", "7|1|x|0|0|0|0|0|0|0|\n"])
def test_what_no_version_prints_costs_its_own_row(text: str) -> None:
    told: list[Unread] = []
    good = "8|1|2|0|0|0|0|0|0|0|\n"
    (row,) = parse_priorities(text + good, (7, 8), told.append)
    assert (row.job_id, [one.record for one in told]) == (8, ["priority"])


@pytest.mark.parametrize("version", ["22.05.8", "24.11.5", "26.05.5"])
def test_weights_of_the_recorded_configuration(version: str) -> None:
    text = (ASSETS / version / "scontrol-show-config.txt").read_text(encoding="utf-8")
    weights = factor_weights(parse_config(text))
    assert weights.keys() == parse_priorities(RECORDED, (1302,), ignored)[0].parts.keys() - {"nice"}
    assert all(weight_points(weight) >= 0 for weight in weights.values())


@pytest.mark.parametrize(
    ("weight", "points"),
    [("", 0), ("0", 0), ("2000", 2000), ("CPU=1000,Mem=2000,GRES/gpu=3000", 6000)],
)
def test_what_a_weight_can_add(weight: str, points: int) -> None:
    assert weight_points(weight) == points
