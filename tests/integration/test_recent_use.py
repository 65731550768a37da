"""What was held lately, out of a real ledger."""

import pytest

from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

pytestmark = pytest.mark.integration

START_S = 1_800_000_000
COST = 3500


def run(job_id: int, after: int, *transfers: Transfer, cluster: str = "testing") -> Charge:
    key = RunKey(cluster, job_id, START_S)
    gres = {"3g.40gb": 1}
    whose = Run(key, "vision", "alice", str(job_id), gres, Millislices(COST), "vision")
    return Charge(whose, after, transfers)


def transfer(kind: TransferKind, lasting_s: int, until_s: int) -> Transfer:
    return Transfer(kind, MillisliceSeconds(COST * lasting_s), until_s)


def reserve(job_id: int) -> Charge:
    """For an hour."""
    return run(job_id, 0, transfer(TransferKind.RESERVE, 3600, START_S + 3600))


def ended(job_id: int, after_s: int) -> tuple[Charge, ...]:
    end_s = START_S + after_s
    used = transfer(TransferKind.POST, after_s, end_s)
    left = transfer(TransferKind.VOID, 3600 - after_s, end_s)
    return reserve(job_id), run(job_id, 1, used, left)


def test_every_run_that_is_open_or_ended_lately_is_told_once(ledger: Ledger) -> None:
    waived = (
        transfer(TransferKind.WAIVE, 900, START_S + 900),
        transfer(TransferKind.VOID, 3600, START_S + 900),
    )
    charges = (
        *ended(1, 1000),
        *ended(2, 100),
        reserve(3),
        reserve(4),
        run(4, 1, *waived),
        run(5, 0, *reserve(5).transfers, cluster="another"),
    )
    for charge in charges:
        assert ledger.charges.post((charge,))
    lately = ledger.charges.holdings(START_S + 900)
    assert {(run.tenant, run.amount_millislices, run.start_s) for run in lately} == {
        ("vision", COST, START_S)
    }
    assert sorted(str(run.end_s) for run in lately) == [
        str(START_S + 900),
        str(START_S + 1000),
        "None",
    ]
    assert len(ledger.charges.holdings(START_S)) == 4
