"""Property: the capacity that quotas are measured by does not depend on how GPUs are cut."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction

from builders.nodes import a_node
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.gpus.layouts import Layout, geometry
from slicewise.cluster.language.gpus.mig_profiles import (
    board,
    boards,
    cost_millislices,
    whole_board,
)
from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.quota.lending import lend
from slicewise.slurm_plugin.rules.quota.nodes import capacity
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.types import Quota, Tenant

MODELS = ("A100-80GB", "A30-24GB")
MANAGED = frozenset({"gpu"})


def prices(model: str, weight: Fraction) -> Mapping[str, Millislices]:
    on = board(model)
    return {kind: cost_millislices(on, kind, weight) for kind in on.profiles}


def node(name: str, model: str, layouts: Sequence[Layout]) -> NodeView:
    """As Slurm has it, with pads."""
    gpus = Counter(one.profile for layout in layouts for one in layout)
    gpus["pad1"] = board(model).compute_slices * len(layouts) - gpus.total()
    return a_node(name, gpus=gpus, partitions=MANAGED)


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


AMD = sorted(
    (name, one) for name, on in boards().items() if on.vendor == "AMD" for one in on.profiles
)


def site(weight: Fraction) -> Settings:
    """A site of all of AMD's models and of A100s."""
    models = [on for name, on in boards().items() if on.vendor == "AMD" or name == "A100-80GB"]
    gpus = {
        on.model: {
            "weight": float(weight),
            "types": [f"{on.model}_{one}" for one in on.profiles],
            "whole": [f"whole_{on.model}"],
        }
        for on in models
    }
    cluster = {"name": "test", "partitions": ["gpu"], "billing_per_slice": 1000}
    return Settings.model_validate({"cluster": cluster, "gpus": gpus})


@given(st.data(), st.sampled_from([Fraction(1), Fraction(3, 2)]))
@settings(max_examples=examples(30))
def test_amd_s_gpus_are_worth_the_same_in_each_mode(data: st.DataObject, weight: Fraction):
    """One mode for each GPU; parts that don't divide a GPU's price are rounded up."""
    known = site(weight)
    gpus = data.draw(st.lists(st.sampled_from(AMD), min_size=1, max_size=8))
    shown = Counter[str]()
    for model, profile in gpus:
        shown[f"{model}_{profile}"] += board(model).profiles[profile].max_instances
    one = a_node("n", gpus=shown, partitions=MANAGED)
    found = capacity([one], MANAGED, known.costs, known.whole_boards)
    whole = len(gpus) * int(7_000 * weight)
    assert whole <= found < whole + shown.total()
    assert found == sum(known.costs[kind] * count for kind, count in shown.items())


def test_a_node_of_pads_is_worth_its_boards_beside_amd_s_models():
    """Those have no pads, so their eight partitions don't say how many devices a board has."""
    known = site(Fraction(1))
    one = a_node("n", gpus={"pad0": 56}, partitions=MANAGED)
    assert capacity([one], MANAGED, known.costs, known.whole_boards) == 8 * 7_000


@given(st.lists(st.sampled_from(geometry(board("A100-80GB")).layouts), min_size=4, max_size=4))
@settings(max_examples=examples(20))
def test_what_tenants_may_hold_and_lend_does_not_hang_on_the_cut(layouts: list[Layout]):
    costs = prices("A100-80GB", Fraction(1))
    boards = dict.fromkeys(costs, whole_board(board("A100-80GB"), Fraction(1)))
    nodes = [node(str(number), "A100-80GB", [layout]) for number, layout in enumerate(layouts)]
    whole = capacity(nodes, MANAGED, costs, boards)
    assert_lent(whole)


@given(st.lists(st.sampled_from(sorted(board("MI300X-192GB").profiles)), min_size=4, max_size=4))
@settings(max_examples=examples(20))
def test_what_tenants_may_hold_and_lend_does_not_hang_on_amd_s_modes(modes: list[str]):
    known, on = site(Fraction(1)), board("MI300X-192GB")
    nodes = [
        a_node(str(number), gpus={f"{on.model}_{one}": count}, partitions=MANAGED)
        for number, one in enumerate(modes)
        for count in (on.profiles[one].max_instances,)
    ]
    assert_lent(capacity(nodes, MANAGED, known.costs, known.whole_boards))


def assert_lent(whole: int) -> None:
    """Of four tenants with a GPU each, one that needs none lends it to one that needs two."""
    policy = {
        name: Tenant(name, "", Quota(*map(Millislices, (7_000, 28_000, 7_000)))) for name in "abcd"
    }
    loans = lend(policy, {"a": 14_000, "b": 7_000, "c": 7_000}, (), whole)
    assert [(one.lender, one.borrower, one.amount_millislices) for one in loans] == [
        ("d", "a", 7_000)
    ]
    found = standings(policy, loans)
    assert {name: one.limit_millislices for name, one in found.items()} == {
        "a": 14_000,
        "b": 7_000,
        "c": 7_000,
        "d": 0,
    }
