"""Holds the ledger with which the daemon is tried to the real one."""

from inspect import Parameter, signature

import pytest
from stand_ins.scripted import ScriptedLedger

from slicewise.slurm_plugin.ledger.store import Ledger

NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.POSITIONAL_ONLY)
PARTS = {
    name: part
    for name, part in vars(Ledger("postgresql://nobody@/nowhere", "testing")).items()
    if not name.startswith("_") and hasattr(ScriptedLedger(), name)
}


@pytest.mark.parametrize("name", PARTS)
def test_each_method_takes_what_the_real_one_takes(name: str) -> None:
    scripted = getattr(ScriptedLedger(), name)
    for method in vars(type(PARTS[name])):
        own = getattr(scripted, method, None)
        if method.startswith("_") or not callable(own):
            continue
        wanted = list(signature(getattr(PARTS[name], method)).parameters.values())
        places = [None for one in wanted if one.kind in NAMED]
        words = {one.name: None for one in wanted if one.kind is Parameter.KEYWORD_ONLY}
        signature(own).bind(*places, **words)


def test_no_part_that_loops_of_the_daemon_ask_lacks() -> None:
    assert {"charges", "generations", "history", "loans", "repartitions", "usage"} <= PARTS.keys()
