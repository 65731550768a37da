"""Tests sums of joules: measured, modelled, nobody's, and counters that can't be right."""

from slicewise.cluster.language.gpus.power import POWERS
from slicewise.cluster.language.units import Millislices
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
        row("", 13, split="idle"),
    )
    sums = energy_sums("tenant", rows, (), TYPES, {})
    assert sums == {
        ("",): EnergySums(idle_mj=13),
        ("nlp",): EnergySums(counter_mj=12, power_mj=11, shared_mj=7),
    }
    assert sums["nlp",].runs_mj == 23


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
