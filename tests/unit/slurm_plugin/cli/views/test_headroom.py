from fractions import Fraction

from builders.nodes import a_node
from builders.tenants import tenant
from printed_text import printed_text

from slicewise.cluster.language.jobs import NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.cli.commands.costs import profile_costs
from slicewise.slurm_plugin.cli.views.headroom import costs_table, explanation
from slicewise.slurm_plugin.rules.common.free_instances import free_instances
from slicewise.slurm_plugin.rules.explain.headroom import Explanation, Situation, explain
from slicewise.slurm_plugin.rules.quota.demand import Held
from slicewise.slurm_plugin.rules.quota.standings import standings

POLICY = {"bio": tenant("bio", 3000)}


def explained(available: dict[str, int] | None = None) -> Explanation:
    return explain(
        "bio",
        Situation(
            policy=POLICY,
            standings=standings(POLICY, ()),
            held={"bio": Held({"1g.10gb": 2}, {"1g.10gb": 2})},
            free={"1g.10gb": 5, "3g.40gb": 1},
            costs={"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)},
            models={},
            available_millislice_s=available or {},
        ),
    )


def test_an_explanation_says_how_many_and_why_not_more_on_one_narrow_screen():
    text = printed_text(explanation(explained()), 80)
    assert "bio holds 2 slices of its limit of 3" in text
    assert "bio may borrow nothing: its borrowing limit is 0" in text
    assert "(QOSGrpBilling)" in text
    assert "No budget limits it." in text
    row = next(line for line in text.splitlines() if "1g.10gb" in line)
    assert row.split() == ["1g.10gb", "1", "own", "qos", "0", "borrowing", "limit", "–"]
    assert len(text.splitlines()) < 24


def test_each_reason_is_given_once():
    text = printed_text(explanation(explained()), 200)
    assert text.count("bio holds 2 of 3 guaranteed slices") == 1


def test_gpus_of_nodes_out_of_use_are_not_free_but_still_listed():
    def node(*states: str) -> NodeView:
        gpus, allotted = {"1g.10gb": 7}, {"1g.10gb": 3}
        return a_node("n", *states, gpus=gpus, gpus_allotted=allotted)

    assert free_instances([node("MIXED"), node("IDLE", "DRAIN")]) == {"1g.10gb": 4}
    assert free_instances([node("DOWN")]) == {"1g.10gb": 0}


def test_a_models_weight_is_in_its_costs():
    found = {
        cost.profile: cost.cost_millislices for cost in profile_costs("A100-80GB", Fraction(2))
    }
    assert (found["1g.10gb"], found["1g.20gb"], found["7g.80gb"]) == (2000, 3500, 14_000)
    assert "3.5" in printed_text(costs_table(list(profile_costs("A100-80GB", Fraction(1)))), 80)
