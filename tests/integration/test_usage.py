"""Usage of tokens on a real PostgreSQL: booked once, in every sum, and found if it was changed."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from slicewise.cluster.language.meters import (
    CACHED_PROMPT_TOKENS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REQUESTS,
    USAGE,
)
from slicewise.cluster.rpc.usage_messages import EngineCounters, UsageRecord
from slicewise.slurm_plugin.ledger.store import Ledger

pytestmark = pytest.mark.integration

NOW_MS = 1_764_450_000_000
"""In November 2025: records may be of any time here, the daemon checks them before."""


def a_record(number: int, **fields: object) -> UsageRecord:
    known = {
        "number": number,
        "payer": "vision",
        "person": "alice",
        "key_id": "0123456789ab",
        "service": "science/chat",
        "array_job_id": 814,
        "index": 3,
        "run_start_s": 1_764_000_000,
        "start_ms": NOW_MS,
        "end_ms": NOW_MS + 1500,
        "prompt_tokens": 100,
        "cached_prompt_tokens": 40,
        "output_tokens": 7,
        "first_token_ms": 200,
    }
    return UsageRecord.model_validate(known | fields)


def used(ledger: Ledger, tenant: str = "vision") -> tuple[int, ...]:
    """Prompt, cached prompt and output tokens and requests on a tenant's accounts."""
    balances = [ledger.budgets.balances(meter.name).get(tenant) for meter in USAGE]
    return tuple(balance.used if balance else 0 for balance in balances)


def is_sound(ledger: Ledger) -> bool:
    ledger.charges.seal()
    found = ledger.audit.verify()
    assert found.faults == ()
    return found.imbalance == 0


def rows(database: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def test_a_batch_is_booked_on_every_meter_with_one_transfer_each(ledger: Ledger, database: str):
    batch = [a_record(number) for number in range(5)]
    assert ledger.usage.post("boot-1", batch) == frozenset(range(5))
    assert used(ledger) == (500, 200, 35, 5)
    kinds = rows(database, "SELECT kind, count(*) FROM slicewise.transfers GROUP BY 1")
    assert kinds == [("use", 4)]
    assert is_sound(ledger)


def test_a_replay_in_any_order_or_company_changes_nothing(ledger: Ledger):
    ledger.usage.post("boot-1", [a_record(0), a_record(1)])
    again = [a_record(2), a_record(1), a_record(0)]
    assert ledger.usage.post("boot-1", again) == {2}
    assert ledger.usage.post("boot-1", again) == frozenset()
    assert used(ledger) == (300, 120, 21, 3)
    assert ledger.usage.post("boot-2", again) == {0, 1, 2}
    assert used(ledger) == (600, 240, 42, 6)
    assert is_sound(ledger)


def test_writers_of_the_same_and_of_other_batches_never_wait_for_each_other(ledger: Ledger):
    payers = ("vision", "speech", "chemistry")

    def post(turn: int) -> int:
        numbers: Iterable[int] = range(60) if turn % 2 else reversed(range(60))
        batch = [a_record(number, payer=payers[number % 3]) for number in numbers]
        return len(ledger.usage.post(f"boot-{turn % 3}", batch))

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(post, range(24))) == 180
    assert [used(ledger, payer)[3] for payer in payers] == [60, 60, 60]
    assert is_sound(ledger)


def test_each_meter_is_the_payer_s_own(ledger: Ledger):
    ledger.usage.post("b", [a_record(0), a_record(1, payer="speech", cached_prompt_tokens=0)])
    for meter, amount in ((PROMPT_TOKENS, 100), (OUTPUT_TOKENS, 7), (REQUESTS, 1)):
        assert ledger.budgets.balances(meter.name)["speech"].used == amount
    assert ledger.budgets.balances(CACHED_PROMPT_TOKENS.name)["speech"].used == 0
    (line,) = (
        line
        for line in ledger.audit.meter_lines(PROMPT_TOKENS.name, 0, 2**40)
        if line.tenant == "speech"
    )
    assert (line.used, line.task, line.runs) == (100, "usage", 1)


def test_what_engines_counted_only_rises(ledger: Ledger, database: str):
    def counted(prompt_tokens: int, output_tokens: int) -> EngineCounters:
        return EngineCounters(
            array_job_id=814,
            index=3,
            run_start_s=1_764_000_000,
            service="science/chat",
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )

    for one in (counted(100, 5), counted(120, 9), counted(110, 7)):
        ledger.usage.note_counters([one, one])
    found = "SELECT prompt_tokens, output_tokens FROM slicewise.engine_counters"
    assert rows(database, found) == [(120, 9)]


def test_a_person_is_forgotten_and_every_sum_stays(ledger: Ledger, database: str):
    batch = [
        a_record(0),
        a_record(1, key_id="fedcba987654"),
        a_record(2, person="-", key_id="-"),
        a_record(3, payer="speech"),
        a_record(4, person="bob"),
    ]
    ledger.usage.post("b", batch)
    assert ledger.usage.forget_person("alice", "vision") == 2
    hours = (
        "SELECT payer, person, key_id, sum(requests)::int FROM slicewise.usage_hours"
        " GROUP BY 1, 2, 3 ORDER BY 1, 2"
    )
    assert rows(database, hours) == [
        ("speech", "alice", "0123456789ab", 1),
        ("vision", "-", "-", 3),
        ("vision", "bob", "0123456789ab", 1),
    ]
    assert ledger.usage.forget_person("alice") == 1
    assert ledger.usage.forget_person("-") == 0
    assert ledger.usage.post("b", batch) == frozenset()
    assert used(ledger) == (400, 160, 28, 4)
    assert is_sound(ledger)


def test_records_are_deleted_once_they_are_old_and_sums_stay(ledger: Ledger, database: str):
    recent_ms = 4_000_000_000_000
    ledger.usage.post("b", [a_record(0), a_record(1, start_ms=recent_ms, end_ms=recent_ms)])
    assert ledger.usage.forget(5_000_000_000, 10) == 1
    assert rows(database, "SELECT number FROM slicewise.usage_records") == [(1,)]
    assert used(ledger) == (200, 80, 14, 2)
    assert is_sound(ledger)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE slicewise.usage_records SET output_tokens = 0",
        "UPDATE slicewise.usage_records SET person = 'mallory'",
        "DELETE FROM slicewise.usage_records WHERE end_ms > 2000000000000",
        "TRUNCATE slicewise.usage_records",
        "DELETE FROM slicewise.usage_gateways",
    ],
)
def test_records_refuse_changes(ledger: Ledger, database: str, change: str):
    recent_ms = 4_000_000_000_000
    ledger.usage.post("b", [a_record(0, start_ms=recent_ms, end_ms=recent_ms)])
    refused = pytest.raises(psycopg.errors.RestrictViolation)
    with psycopg.connect(database) as connection, refused:
        connection.execute(change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE slicewise.usage_hours SET output_tokens = 6", "hours have 6"),
        ("DELETE FROM slicewise.usage_hours", "hours have 0"),
        ("UPDATE slicewise.usage_hours SET first_token_ms = 1", "or their tokens differ"),
        ("UPDATE slicewise.engine_counters SET output_tokens = 6", "its engine had counted"),
    ],
)
def test_verify_says_what_was_changed_by_hand(
    ledger: Ledger, database: str, change: str, fault: str
):
    ledger.usage.post("b", [a_record(0)])
    counters = {"array_job_id": 814, "index": 3, "run_start_s": 1_764_000_000}
    counted = EngineCounters(**counters, service="science/chat", prompt_tokens=100, output_tokens=7)
    ledger.usage.note_counters([counted])
    assert is_sound(ledger)
    with psycopg.connect(database) as connection:
        connection.execute(change)  # type: ignore[arg-type]
    found = ledger.audit.verify()
    assert found.imbalance
    assert any(fault in words for words in found.faults)
