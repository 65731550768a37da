"""Tests limits on requests in a real PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from slicewise.cluster.rpc.limit_messages import LimitChangeRequest, LimitRank, RequestLimits
from slicewise.cluster.rpc.usage_messages import AllowanceSubject
from slicewise.slurm_plugin.ledger.store import Ledger

pytestmark = pytest.mark.integration

LAB = AllowanceSubject(tenant="lab")
ANNA = AllowanceSubject(tenant="lab", person="anna")
KEY = AllowanceSubject(tenant="lab", key_id="a" * 12)
LIFTED = LimitChangeRequest(lifted=frozenset({"concurrent", "models", "tokens_per_month"}))


def change(
    ledger: Ledger,
    subject: AllowanceSubject,
    rank: LimitRank = "operator",
    lifted: LimitChangeRequest | None = None,
    **limits: object,
) -> None:
    made = lifted or LimitChangeRequest(limits=RequestLimits.model_validate(limits))
    ledger.request_limits.change_limits(subject, made, "olga", rank)


def test_the_newest_limits_of_each_subject_hold(ledger: Ledger, database: str) -> None:
    for subject, number in ((LAB, 9), (ANNA, 5), (KEY, 2), (ANNA, 4)):
        more = {"models": ("lab/chat",), "tokens_per_month": 2**52}
        change(ledger, subject, concurrent=number, **more)
    shown = [
        (subject.person, subject.key_id, subject.limits.concurrent)
        for subject in ledger.request_limits.standing_limits()
    ]
    assert shown == [("", "", 9), ("", "a" * 12, 2), ("anna", "", 4)]
    assert ledger.request_limits.standing_limits()[0].limits.models == ("lab/chat",)
    change(ledger, LAB, lifted=LIFTED)
    assert [subject.person for subject in ledger.request_limits.standing_limits()] == ["", "anna"]
    with Ledger(database, "other") as other:
        assert other.request_limits.standing_limits() == ()


def test_what_ranks_have_set_holds_together(ledger: Ledger) -> None:
    def held() -> tuple[int | None, tuple[str, ...] | None]:
        (subject,) = ledger.request_limits.standing_limits()
        return subject.limits.concurrent, subject.limits.models

    change(ledger, KEY, "person", concurrent=5, models=("lab/a", "lab/b"))
    change(ledger, KEY, "manager", concurrent=7, models=("lab/b", "lab/c"))
    change(ledger, KEY, "person", concurrent=99)
    assert held() == (7, ("lab/b", "lab/c"))
    change(ledger, KEY, "operator", concurrent=3)
    for rank in ("person", "manager"):
        change(ledger, KEY, rank, concurrent=99)
        change(ledger, KEY, rank, lifted=LIFTED)
    assert held() == (3, None)


def test_two_changes_at_once_lose_neither(ledger: Ledger) -> None:
    def changed(number: int) -> None:
        name = ("concurrent", "requests_per_minute", "tokens_per_minute", "tokens_per_month")
        change(ledger, ANNA, **{name[number % 4]: number})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(changed, range(16)))
    (subject,) = ledger.request_limits.standing_limits()
    assert None not in subject.limits.model_dump(exclude={"models"}).values()
