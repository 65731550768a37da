"""Property: instances for loads keep all rules and need the fewest GPUs, with a proven floor."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.gpus.layouts import geometry
from slicewise.cluster.language.gpus.mig_profiles import Board, board
from slicewise.slurm_plugin.rules.mig.covers import ServingNeed, cheapest_cover
from slicewise.slurm_plugin.rules.mig.instances import LATENCY_SHARE, ServiceLoad, fewest_gpus
from tests.effort import examples
from tests.instance_checker import broken_rules, demand_of, fewest, measured, price_of, proven

BOARDS = (board("A100-80GB"), board("A30-24GB"), board("MI300A-128GB"))
SLO_US = 100_000


@st.composite
def services(draw: st.DrawFn, on: Board, most: int, most_load: int) -> dict[str, ServiceLoad]:
    """Tables that scale well or badly, each with at least one row in time."""
    found: dict[str, ServiceLoad] = {}
    plain = sorted(name for name in on.profiles if "+" not in name)
    for number in range(draw(st.integers(1, most))):
        profiles = draw(st.lists(st.sampled_from(plain), min_size=1, unique=True))
        rows = [
            measured(p, draw(st.integers(3, 12)), draw(st.integers(0, 44_999))) for p in profiles
        ]
        rows += [measured(p, draw(st.integers(0, 99)), 45_000) for p in profiles]
        found[f"s{number}"] = ServiceLoad(draw(st.integers(0, most_load)), SLO_US, tuple(rows))
    return found


@st.composite
def worlds(draw: st.DrawFn, most: int, most_load: int) -> tuple[Board, dict[str, ServiceLoad]]:
    on = draw(st.sampled_from(BOARDS))
    return on, draw(services(on, most, most_load))


@given(worlds(most=3, most_load=14))
@settings(max_examples=examples(30), deadline=None)
def test_no_plan_needs_fewer_gpus(world: tuple[Board, dict[str, ServiceLoad]]) -> None:
    on, asked = world
    plan = fewest_gpus(asked, on)
    fillings = {
        frozenset(Counter(one.profile for one in layout).items())
        for layout in geometry(on).maximal
        if not any("+" in one.profile for one in layout)
    }
    demands = [demand_of(load, LATENCY_SHARE) for load in asked.values() if load.rate_mrps]
    assert plan.gpus == plan.at_least == fewest(demands, map(dict, fillings))


@given(worlds(most=12, most_load=300))
@settings(max_examples=examples(30), deadline=None)
def test_rules_are_kept_and_the_floor_is_proven(
    world: tuple[Board, dict[str, ServiceLoad]],
) -> None:
    on, asked = world
    plan = fewest_gpus(asked, on)
    assert broken_rules(plan, asked, on, LATENCY_SHARE) == []
    demands = [demand_of(load, LATENCY_SHARE) for load in asked.values() if load.rate_mrps]
    assert plan.at_least <= plan.gpus
    assert 0 <= plan.at_least - proven(demands, plan, on) <= 1


@given(
    st.integers(1, 200),
    st.dictionaries(
        st.sampled_from("abcd"), st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1
    ),
)
def test_no_cover_is_cheaper(load_mrps: int, kinds: dict[str, tuple[int, int]]) -> None:
    demand = ServingNeed(load_mrps, {name: rate for name, (rate, _) in kinds.items()})
    prices = {name: price for name, (_, price) in kinds.items()}
    priced = cheapest_cover(demand, prices)
    assert sum(demand.rates_mrps[name] * n for name, n in priced.cover.items()) >= load_mrps
    assert sum(prices[name] * n for name, n in priced.cover.items()) == priced.price
    assert priced.floor == priced.price == price_of(demand, prices)
