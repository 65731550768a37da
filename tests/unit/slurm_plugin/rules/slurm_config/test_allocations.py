"""Tests what limits on billing are said to be worth before and after other weights."""

from dataclasses import replace
from fractions import Fraction

import pytest
from builders.nodes import a_node

from slicewise.cluster.language.jobs import NodeView, PartitionView
from slicewise.cluster.language.slurm.billing_limits import BillingLimit
from slicewise.slurm_plugin.rules.slurm_config.allocations import (
    SliceBilling,
    allocation_findings,
    billed_per_slice,
    fitting_unit,
    raised,
)

COSTS = {"a100": 7000, "1g.10gb": 1000, "3g.40gb": 3500}
OF_PHYSICS = "sacctmgr modify account where name=physics cluster=hpc"
OF_ANN = "sacctmgr modify user where name=ann account=physics cluster=hpc partition=gpu"
GRANT = BillingLimit("GrpTRESMins", 500_000, 0, account="physics", cluster="hpc")


def billed(weights: dict[str, float], *nodes: NodeView, greatest: bool = False) -> Fraction | None:
    views = [PartitionView("cpu", {"cpu": 9.0}, ""), PartitionView("gpu", weights, "")]
    return billed_per_slice(nodes, views, ["gpu"], COSTS, takes_greatest=greatest)


WHOLE = a_node("n1", gpus={"a100": 4}, cpus=64, memory_mib=512 * 1024)
CUT = a_node("n2", gpus={"1g.10gb": 4, "3g.40gb": 1, "pad5": 2}, cpus=16, memory_mib=1024)


@pytest.mark.parametrize(
    ("weights", "nodes", "of_a_gpu"),
    [
        ({"gres/gpu": 16.0}, [WHOLE], 16),
        ({"gres/gpu:a100": 16.0, "cpu": 0.5}, [WHOLE], 16 + 8),
        ({"cpu": 1.0, "mem": 0.25 / 1024, "gres/gpu": 0.0}, [WHOLE], 16 + 32),
        ({}, [WHOLE], 16),
        # Five devices, pads do not count, on 7.5 slices.
        ({"gres/gpu": 15.0}, [CUT], 70),
        ({"gres/gpu": 15.0}, [CUT, WHOLE, a_node("n3", partitions=frozenset({"x"}))], None),
    ],
)
def test_what_a_gpu_bills_where_its_node_is_in_use(
    weights: dict[str, float], nodes: list[NodeView], of_a_gpu: int | None
) -> None:
    found = billed(weights, *nodes)
    assert found is not None
    wanted = of_a_gpu if of_a_gpu is not None else Fraction(9 * 15 * 7 * 2, 71)
    assert found * 7 == wanted


def test_with_max_tres_the_greatest_of_a_node_is_billed() -> None:
    found = billed({"cpu": 1.0, "gres/gpu": 10.0}, WHOLE, greatest=True)
    assert found == Fraction(64, 28)
    assert billed({"gres/gpu": 0.0}, WHOLE) is None


@pytest.mark.parametrize(
    ("now", "costs", "unit"),
    [
        (Fraction(16, 7), [7000], Fraction(16, 7)),
        (Fraction(1, 7), [7000], Fraction(1, 7)),
        (Fraction(16, 7), [7000, 1000, 3500], 2),
        (Fraction(1, 7), [1000, 3500], 2),
        (Fraction(7, 2), [1000, 3500], 4),
    ],
)
def test_the_unit_that_keeps_allocations_nearly_what_they_are(
    now: Fraction, costs: list[int], unit: Fraction
) -> None:
    assert fitting_unit(now, costs) == unit


def test_an_allocation_is_said_in_hours_of_both_units_before_it_is_eaten() -> None:
    """520 GPU-hours, and 8.3 slice-hours with 1000 for a slice."""
    billing = SliceBilling(Fraction(16, 7), Fraction(1000))
    (found,) = allocation_findings([GRANT], billing, {"a100": 7000})
    assert found.what == (
        "Account physics has GrpTRESMins=billing=500000 of the site's own, of which 500000 are"
        " left: 520.8 GPU-hours (3645.8 slice-hours) now, 1.19 GPU-hours (8.33 slice-hours) then"
    )
    assert [one.line for one in found.mends] == [
        'billing_per_slice = "16/7"    # in [cluster]',
    ]
    kept = SliceBilling(Fraction(16, 7), Fraction(16, 7))
    assert list(allocation_findings([GRANT], kept, {"a100": 7000})) == []


@pytest.mark.parametrize(
    ("limit", "lines"),
    [
        (
            GRANT,
            [f"{OF_PHYSICS} set GrpTRESMins=billing=437500"],
        ),
        (
            # What is used stays in the old unit.
            BillingLimit("GrpTRESMins", 1000, 200, "physics", "ann", "gpu", "hpc"),
            [f"{OF_ANN} set GrpTRESMins=billing=900"],
        ),
        (
            BillingLimit("GrpTRES", 64, 60, qos="long"),
            ["sacctmgr modify qos long set GrpTRES=billing=56"],
        ),
        (BillingLimit("GrpTRES", 64, 0, account="a;b", cluster="hpc"), []),
    ],
)
def test_where_no_unit_fits_the_command_that_keeps_a_limit_is_said(
    limit: BillingLimit, lines: list[str]
) -> None:
    billing = SliceBilling(Fraction(16, 7), Fraction(2))
    assert list(raised(limit, billing)) == lines
    (found,) = allocation_findings([limit], billing, {"1g.10gb": 1000, "3g.40gb": 3500})
    assert [one.line for one in found.mends] == lines


def test_a_limit_below_the_smallest_gpu_is_said() -> None:
    settled = SliceBilling(Fraction(1000), Fraction(1000))
    small = BillingLimit("GrpTRES", 999, 0, qos="long")
    (found,) = allocation_findings([small, GRANT], settled, COSTS)
    assert found.text.startswith("QOS long has GrpTRES=billing=999 of the site's own: the smallest")


def test_of_many_limits_all_commands_are_there() -> None:
    many = [replace(GRANT, account=f"a{number}") for number in range(30)]
    found = [*allocation_findings(many, SliceBilling(Fraction(16, 7), Fraction(2)), COSTS)]
    assert len(found) < len(many)
    assert len({mend.line for one in found for mend in one.mends}) == len(many)
    assert found[-1].what.startswith("10 more limits")


def test_slicewises_own_limits_are_no_allocations() -> None:
    ours = BillingLimit("GrpTRES", 4000, 0, qos="slicewise_vision")
    billing = SliceBilling(Fraction(2), Fraction(1000))
    assert list(allocation_findings([ours], billing, COSTS)) == []
