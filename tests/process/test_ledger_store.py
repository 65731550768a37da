"""Tests that a command imports those parts of the ledger that it uses, and no others."""

import subprocess
import sys

import pytest

from slicewise.slurm_plugin.ledger.store import Ledger

LATE = ("audit", "generations", "keys", "orders", "rebalances", "repartitions")


def test_parts_that_most_commands_do_not_use_are_imported_late() -> None:
    program = "import slicewise.slurm_plugin.ledger.store, sys; print(*sys.modules)"
    ran = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, check=True
    )
    imported = set(ran.stdout.split())
    assert "slicewise.slurm_plugin.ledger.tenants" in imported
    assert [part for part in LATE if f"slicewise.slurm_plugin.ledger.{part}" in imported] == []


@pytest.mark.parametrize("part", LATE)
def test_a_late_part_is_made_once(part: str) -> None:
    with Ledger("postgresql://nobody@/nothing", "c") as ledger:
        assert getattr(ledger, part) is getattr(ledger, part)
        assert type(getattr(ledger, part)).__name__.lower() == part
