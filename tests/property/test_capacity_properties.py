"""Property: the capacity that quotas are measured by does not depend on how GPUs are cut."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.language.jobs import NodeView
from cluster.language.mig_profiles import board, cost_millislices, whole_board
from cluster.language.units import Millislices
from cluster.mig.layouts import Layout, geometry
from slurm_plugin.quota.ceilings import ceilings
from slurm_plugin.quota.demand import capacity
from slurm_plugin.quota.lending import lend
from slurm_plugin.quota.types import Quota, Tenant

MODELS = ("A100-80GB", "A30-24GB")
MANAGED = frozenset({"gpu"})


def prices(model: str, weight: Fraction) -> Mapping[str, Millislices]:
    on = board(model)
    return {kind: cost_millislices(on, kind, weight) for kind in on.profiles}


def node(name: str, model: str, layouts: Sequence[Layout]) -> NodeView:
    """As Slurm has it, with pads."""
    gpus = Counter(one.profile for layout in layouts for one in layout)
    gpus["pad1"] = board(model).compute_slices * len(layouts) - gpus.total()
    return NodeView(name, name, frozenset(), gpus, {}, MANAGED)


@given(st.data(), st.sampled_from(MODELS), st.sampled_from([Fraction(1), Fraction(3, 2)]))
@settings(max_examples=examples(30))
def test_no_way_to_cut_a_node_s_gpus_makes_it_less_than_its_boards(
    data: st.DataObject, model: str, weight: Fraction
):
    layouts = data.draw(st.lists(st.sampled_from(geometry(board(model)).layouts), min_size=1))
    costs, whole = prices(model, weight), whole_board(board(model), weight)
    shown = node("n", model, layouts)
    found = capacity([shown], MANAGED, costs, dict.fromkeys(costs, whole))
    boards = len(layouts) * whole.cost_millislices
    now = sum(costs[one.profile] for layout in layouts for one in layout)
    assert found == max(boards, now)


@given(st.lists(st.sampled_from(geometry(board("A100-80GB")).layouts), min_size=4, max_size=4))
@settings(max_examples=examples(20))
def test_what_tenants_may_hold_and_lend_does_not_hang_on_the_cut(layouts: list[Layout]):
    policy = {
        name: Tenant(name, "", Quota(*map(Millislices, (7_000, 28_000, 7_000)))) for name in "abcd"
    }
    costs = prices("A100-80GB", Fraction(1))
    boards = dict.fromkeys(costs, whole_board(board("A100-80GB"), Fraction(1)))
    nodes = [node(str(number), "A100-80GB", [layout]) for number, layout in enumerate(layouts)]
    whole = capacity(nodes, MANAGED, costs, boards)
    loans = lend(policy, {"a": 14_000, "b": 7_000, "c": 7_000}, (), whole)
    assert [(one.lender, one.borrower, one.amount_millislices) for one in loans] == [
        ("d", "a", 7_000)
    ]
    found = ceilings(policy, loans, whole)
    assert {name: one.ceiling_millislices for name, one in found.items()} == {
        "a": 14_000,
        "b": 7_000,
        "c": 7_000,
        "d": 0,
    }
