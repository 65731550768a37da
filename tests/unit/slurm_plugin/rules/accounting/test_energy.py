"""Tests sums of joules: measured, modelled, nobody's, and counters that can't be right."""

from slicewise.cluster.language.gpus.energy import EnergyMeasure, Split
from slicewise.cluster.language.gpus.power import POWERS
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.rpc.energy_messages import ToldHour, ToldPart
from slicewise.slurm_plugin.rules.accounting.energy import (
    MJ_PER_KWH,
    EnergyRow,
    EnergySums,
    PricedType,
    UnmeasuredRow,
    counter_findings,
    energy_sums,
    meter_findings,
    modelled,
    with_unchecked,
)
from slicewise.slurm_plugin.rules.common.ledger_facts import CheckedBoard

MODEL = "H200-141GB"
TYPES = {"1g.18gb": PricedType(MODEL, Millislices(1000)), "odd": PricedType("?", Millislices(1))}


def row(tenant: str, energy_mj: int, split: str = "alone", measure: str = "counter") -> EnergyRow:
    return EnergyRow(
        day="2026-11-29",
        node="gpu01",
        tenant=tenant,
        person=tenant and f"{tenant}-user",
        service="",
        measure=measure,
        split=split,
        is_unknown=False,
        energy_mj=energy_mj,
    )


def unmeasured(tenant: str, gres_type: str = "1g.18gb") -> UnmeasuredRow:
    return UnmeasuredRow("2026-11-29", tenant, f"{tenant}-user", "", {gres_type: 2}, 100)


def test_each_figure_says_how_it_is_known() -> None:
    rows = (
        row("nlp", 5),
        row("nlp", 7, split="activity"),
        row("nlp", 11, measure="power"),
        row("nlp", 17, split="unchecked"),
        row("", 13, split="idle"),
    )
    sums = energy_sums("tenant", rows, (), TYPES, {})
    assert sums == {
        ("",): EnergySums(idle_mj=13),
        ("nlp",): EnergySums(counter_mj=29, power_mj=11, shared_mj=24),
    }
    assert sums["nlp",].runs_mj == 40


def test_the_table_of_watts_says_a_part_of_the_load_above_idle() -> None:
    board = POWERS[MODEL]
    found = modelled(unmeasured("nlp"), TYPES)
    assert found.model_mj == round(2 / 7 * (board.load_w - board.idle_w) * 100_000)
    assert modelled(unmeasured("nlp", "odd"), TYPES) == EnergySums()
    assert modelled(unmeasured("nlp", "gone"), TYPES) == EnergySums()


def test_what_no_meter_saw_is_of_no_node() -> None:
    sums = energy_sums("node", (row("nlp", 5),), (unmeasured("nlp"),), TYPES, {})
    assert sums["",].counter_mj == 0
    assert sums["",].model_mj > 0
    assert sums["gpu01",] == EnergySums(counter_mj=5)


def test_grams_are_of_all_joules_of_the_day() -> None:
    rows = (row("nlp", MJ_PER_KWH), row("", MJ_PER_KWH, split="idle"))
    sums = energy_sums("day", rows, (), TYPES, {"2026-11-29": 300.0})
    assert sums["2026-11-29",].carbon_g == 600.0


def test_a_counter_that_is_off_by_more_than_a_fifth_is_found() -> None:
    right = CheckedBoard("gpu01", "GPU-1", MODEL, 119_000_000, 100_000_000)
    wrong = CheckedBoard("gpu01", "GPU-2", MODEL, 121_000_000, 100_000_000)
    stands = CheckedBoard("gpu01", "GPU-3", MODEL, 0, 100_000_000)
    little = CheckedBoard("gpu01", "GPU-4", MODEL, 900_000, 100_000)
    assert [
        finding.what.split()[0] for finding in counter_findings((right, wrong, stands, little))
    ] == ["GPU-2", "GPU-3"]


def test_two_meters_of_a_board_are_named() -> None:
    one, two = (
        CheckedBoard("gpu01", "GPU-1", MODEL, 0, 0, most_covered_ms=minutes * 60_000)
        for minutes in (60, 118)
    )
    (said,) = meter_findings((one, two))
    assert said.code == "SW-ENERGY-TWICE"
    assert "118 minutes" in said.what


def test_of_a_board_with_a_finding_runs_parts_are_unchecked_and_add_up() -> None:
    parts = {
        (0, Split.IDLE): 5,
        (11, Split.ALONE): 7,
        (11, Split.ACTIVITY): 1,
        (12, Split.SLICES): 3,
    }
    hours = [
        ToldHour(
            hour_s=3600,
            gpu_uuid=f"GPU-{number}",
            measure=EnergyMeasure.COUNTER,
            model=MODEL,
            energy_mj=16,
            covered_ms=3_600_000,
            checked_mj=0,
            power_mj=0,
            parts=tuple(
                ToldPart(job_id=job_id, split=split, energy_mj=energy_mj)
                for (job_id, split), energy_mj in parts.items()
            ),
        )
        for number in range(3)
    ]
    off = CheckedBoard("gpu01", "GPU-0", MODEL, 121_000_000, 100_000_000)
    right = CheckedBoard("gpu01", "GPU-1", MODEL, 119_000_000, 100_000_000)
    twice = CheckedBoard("gpu01", "GPU-2", MODEL, 0, 0, most_covered_ms=7_200_000)
    noted = with_unchecked(hours, (off, right, twice))
    assert noted[1] == hours[1]
    for hour in (noted[0], noted[2]):
        assert [(part.job_id, part.split, part.energy_mj) for part in hour.parts] == [
            (0, Split.IDLE, 5),
            (11, Split.UNCHECKED, 8),
            (12, Split.UNCHECKED, 3),
        ]
