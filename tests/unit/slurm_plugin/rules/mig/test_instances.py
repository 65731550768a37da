"""Tests instances for loads, and the GPUs that hold them, on small cases with known answers."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.gpus.mig_profiles import board, cost_millislices
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from slicewise.slurm_plugin.rules.mig.covers import ServingNeed, cheapest_cover
from slicewise.slurm_plugin.rules.mig.instances import (
    LATENCY_SHARE,
    InstancePlan,
    Measured,
    ServiceLoad,
    fewest_gpus,
    fewest_slices,
)
from slicewise.slurm_plugin.rules.mig.packing import pack
from tests.instance_checker import broken_rules, demand_of, measured, price_of

A100 = board("A100-80GB")
SLO_US = 100_000
SMALL = measured("1g.10gb", 100_000)
HALF = measured("3g.40gb", 410_000)


def load(rate_mrps: int, *rows: Measured, slo_us: int = SLO_US) -> ServiceLoad:
    return ServiceLoad(rate_mrps, slo_us, rows)


def planned(**services: ServiceLoad) -> InstancePlan:
    plan = fewest_gpus(services, A100)
    assert broken_rules(plan, services, A100, LATENCY_SHARE) == []
    return plan


class TestInstances:
    def test_seven_small_ones_fill_a_gpu(self) -> None:
        plan = planned(a=load(700_000, SMALL))
        assert (plan.gpus, plan.instances) == (1, {"a": {SMALL: 7}})

    def test_one_request_more_takes_a_second_gpu_that_is_nearly_empty(self) -> None:
        plan = planned(a=load(701_000, SMALL))
        assert plan.gpus == plan.at_least == 2
        assert sorted(len(layout) for layout in plan.layouts) == [1, 7]

    def test_a_profile_that_does_more_than_its_slices_is_chosen(self) -> None:
        # Two of 3g are a GPU and serve 820; one and four of 1g serve 810, seven of 1g 700.
        assert planned(a=load(820_000, SMALL, HALF)).instances == {"a": {HALF: 2}}

    def test_services_share_gpus(self) -> None:
        assert planned(a=load(400_000, SMALL), b=load(300_000, SMALL)).gpus == 1

    def test_of_a_profile_only_its_fastest_configuration_in_time_is_used(self) -> None:
        slower, late = measured("1g.10gb", 50_000), measured("1g.10gb", 900_000, 45_000)
        assert planned(a=load(200_000, slower, SMALL, late)).instances == {"a": {SMALL: 2}}

    def test_of_two_that_are_as_fast_the_one_with_less_latency(self) -> None:
        sooner = measured("1g.10gb", 100_000, 500)
        assert planned(a=load(1, sooner, SMALL)).instances == {"a": {sooner: 1}}

    def test_no_instance_is_there_that_nobody_needs(self) -> None:
        whole = measured("7g.80gb", 700_000)
        assert planned(a=load(1, whole, SMALL)).instances == {"a": {SMALL: 1}}

    def test_without_load_nothing_is_needed_whatever_the_slo(self) -> None:
        plan = planned(a=load(0, SMALL, slo_us=1), b=load(0))
        assert (plan.instances, plan.gpus, plan.at_least) == ({"a": {}, "b": {}}, 0, 0)

    def test_nothing_is_asked_of_no_services(self) -> None:
        assert planned().layouts == {}

    def test_a_profile_of_another_board_does_not_count(self) -> None:
        assert planned(a=load(1, measured("1g.5gb", 9_000), SMALL)).instances == {"a": {SMALL: 1}}


COSTS = {name: cost_millislices(A100, name, Fraction(1)) for name in A100.profiles}


def cheapest(wanted: ServiceLoad) -> InstancePlan:
    plan = fewest_slices("a", wanted, A100, COSTS)
    assert broken_rules(plan, {"a": wanted}, A100, LATENCY_SHARE) == []
    return plan


class TestFewestSlices:
    def test_what_costs_less_is_chosen_though_it_is_more_instances(self) -> None:
        assert cheapest(load(300_000, SMALL, HALF)).instances == {"a": {SMALL: 3}}
        assert cheapest(load(400_000, SMALL, HALF)).instances == {"a": {HALF: 1}}

    def test_though_other_instances_would_fit_on_fewer_gpus(self) -> None:
        # Seven of 1g and one more cost 8 slices; the two halves of a GPU cost 7 and serve 820.
        rows = SMALL, measured("7g.80gb", 800_000), measured("3g.40gb", 330_000)
        assert cheapest(load(701_000, *rows)).instances == {"a": {rows[1]: 1}}
        assert cheapest(load(900_000, *rows)).gpus == 2

    @given(
        st.integers(1, 2_000),
        st.dictionaries(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb"]), st.integers(50, 900)),
    )
    def test_nothing_is_cheaper(self, rate: int, rates: dict[str, int]) -> None:
        wanted = load(rate, measured("7g.80gb", 700), *map(measured, rates, rates.values()))
        (chosen,) = cheapest(wanted).instances.values()
        price = sum(COSTS[row.profile] * count for row, count in chosen.items())
        assert price == price_of(demand_of(wanted, LATENCY_SHARE), COSTS)

    def test_without_load_nothing_is_needed(self) -> None:
        assert cheapest(load(0)).instances == {"a": {}}

    def test_an_slo_that_nothing_meets(self) -> None:
        with pytest.raises(InvalidInputError, match="SW-SLO-UNREACHABLE"):
            cheapest(load(1, SMALL, slo_us=1))


class TestUnreachable:
    def test_the_latency_has_to_be_below_its_share_not_at_it(self) -> None:
        exact = measured("1g.10gb", 100_000, 45_000)
        with pytest.raises(InvalidInputError) as refused:
            planned(a=load(1, exact))
        assert str(refused.value) == (
            "No measured configuration of 'a' meets its SLO of 100 ms: its latency must be below"
            " 0.45 of that, and the least measured is 45 ms. Raise the SLO, or measure the "
            "model with smaller batches or on larger profiles. [SW-SLO-UNREACHABLE]"
        )
        assert fewest_gpus({"a": load(1, exact)}, A100, Fraction(46, 100)).gpus == 1

    @pytest.mark.parametrize("row", [measured("1g.5gb", 9_000), measured("1g.10gb", 0)])
    def test_a_table_without_a_usable_row(self, row: Measured) -> None:
        with pytest.raises(
            InvalidInputError, match="'a' was not measured on any profile of A100-80GB"
        ):
            planned(a=load(1, row))


class TestPack:
    def test_a_load_that_is_missed_by_less_than_the_solver_sees_is_served(self) -> None:
        # One of each serve all but a thousandth of a request, and would fit on one GPU.
        rows = measured("4g.40gb", 3_600_000_000), measured("3g.40gb", 3_300_000_000)
        assert planned(a=load(6_900_000_001, *rows)).gpus == 2
        assert planned(a=load(6_900_000_000, *rows)).gpus == 1

    def test_where_parts_of_gpus_would_do_with_fewer_the_whole_numbers_decide(self) -> None:
        # Four of seven things on each GPU: 7/4 GPUs in parts, but any two leave one thing out.
        lines = ("013", "124", "235", "346", "450", "561", "602")
        fillings = [{thing: 1 for thing in "0123456" if thing not in line} for line in lines]
        packing = pack([ServingNeed(1, {thing: 1}) for thing in "0123456"], fillings)
        assert (sum(packing.gpus), packing.at_least) == (3, 3)

    def test_a_program_that_nothing_serves_has_no_answer(self) -> None:
        program = LinearProgram([1])
        program.add(1, {0: -1})
        with pytest.raises(OutsideError, match=r"Infeasible.*SW-INTERNAL"):
            program.solve()


class TestCheapestCover:
    def test_kinds_are_mixed_where_that_wastes_less(self) -> None:
        # 7 = 5 + 2 for 7.5; two of 5 cost 10, four of 2 cost 10.
        priced = cheapest_cover(ServingNeed(7, {"five": 5, "two": 2}), {"five": 50, "two": 25})
        assert (priced.cover, priced.price, priced.floor) == ({"five": 1, "two": 1}, 75, 75)

    def test_a_search_that_grows_long_says_what_is_certain(self) -> None:
        # Four kinds of nearly one efficiency, and thousands of instances.
        rates = {"1": 1_000, "2": 2_003, "3": 2_997, "4": 4_001}
        prices = {"1": 1_000_000, "2": 2_000_001, "3": 3_000_002, "4": 3_999_999}
        demand = ServingNeed(10_000_001, rates)
        priced = cheapest_cover(demand, prices)
        assert sum(rates[p] * n for p, n in priced.cover.items()) >= demand.load_mrps
        assert priced.floor < priced.price < priced.floor * 1.001
