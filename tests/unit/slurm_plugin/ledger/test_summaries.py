"""Tests summaries of ledger and Slurm, for people and for a round of lending."""

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.scripted import ScriptedLedger, settings

from slicewise.slurm_plugin.ledger.summaries import held_lately
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding
from slicewise.slurm_plugin.rules.explain.headroom import situation
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of

NOW_S = 1_000_000


@pytest.mark.parametrize(("past_use", "held"), [(True, {"vision": 2000}), (False, {})])
def test_nobody_has_held_anything_lately_where_loans_do_not_go_by_it(
    *, past_use: bool, held: dict[str, int]
) -> None:
    always = Holding("vision", 2000, NOW_S - 10**9, None)
    ledger = ScriptedLedger(held_lately=(always,))
    lending = settings().lending.model_copy(update={"past_use": past_use})
    configured = settings().model_copy(update={"lending": lending})
    assert held_lately(ledger, configured, NOW_S) == held  # type: ignore[arg-type]


def test_while_no_gpu_is_seen_an_explanation_has_the_limits_that_are_compiled() -> None:
    ledger = ScriptedLedger(shown=policy_of(tenant("vision", 2000)))
    found = situation(world_of(ledger.view(NOW_S, "UTC"), settings(), SlurmView((), (), ())))
    assert found.standings["vision"].limit_millislices == 2000
