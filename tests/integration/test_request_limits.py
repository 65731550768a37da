"""Tests limits on requests in a real PostgreSQL."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.usage_messages import AllowanceSubject
from slicewise.slurm_plugin.ledger.store import Ledger

pytestmark = pytest.mark.integration

LAB = AllowanceSubject(tenant="lab")
ANNA = AllowanceSubject(tenant="lab", person="anna")
KEY = AllowanceSubject(tenant="lab", key_id="a" * 12)


def test_the_newest_limits_of_each_subject_hold(ledger: Ledger, database: str) -> None:
    for subject, number in ((LAB, 9), (ANNA, 5), (KEY, 2), (ANNA, 4)):
        limits = RequestLimits(concurrent=number, models=("lab/chat",), tokens_per_month=2**52)
        ledger.request_limits.change_limits(
            subject, lambda _, made=limits: made, "olga", by_operator=True
        )
    shown = [
        (subject.person, subject.key_id, subject.limits.concurrent)
        for subject in ledger.request_limits.standing_limits()
    ]
    assert shown == [("", "", 9), ("", "a" * 12, 2), ("anna", "", 4)]
    assert ledger.request_limits.standing_limits()[0].limits.models == ("lab/chat",)
    ledger.request_limits.change_limits(LAB, lambda _: RequestLimits(), "olga", by_operator=True)
    assert [subject.person for subject in ledger.request_limits.standing_limits()] == ["", "anna"]
    with Ledger(database, "other") as other:
        assert other.request_limits.standing_limits() == ()


def test_two_changes_at_once_lose_neither(ledger: Ledger) -> None:
    def raised(number: int) -> None:
        def change(before: SubjectLimits) -> RequestLimits:
            held = before.limits
            if number:
                return held.model_copy(update={"concurrent": (held.concurrent or 0) + 1})
            minute = (held.requests_per_minute or 0) + 1
            return held.model_copy(update={"requests_per_minute": minute})

        ledger.request_limits.change_limits(ANNA, change, "olga", by_operator=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(raised, (0, 1) * 8))
    (subject,) = ledger.request_limits.standing_limits()
    assert (subject.limits.concurrent, subject.limits.requests_per_minute) == (8, 8)
