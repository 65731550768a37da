"""Sums of usage on a real PostgreSQL: every one adds up, and nobody sees another person's."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from slicewise.cluster.language.meters import USAGE
from slicewise.cluster.rpc.usage_messages import EngineCounters, UsageRecord
from slicewise.slurm_plugin.api import usage_reads
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.usage_reads import token_usage
from slicewise.slurm_plugin.common.usage_requests import (
    TokenLine,
    TokenUsageAnswer,
    TokenUsageRequest,
    Unattributed,
)
from slicewise.slurm_plugin.ledger.store import Ledger

pytestmark = pytest.mark.integration

START_MS = 1_764_450_000_000
HOUR_MS = 3_600_000
ZONE = "Europe/Berlin"
ROOT = Principal(0, "root", None)
Amounts = tuple[int, int, int, int]


def a_record(
    number: int, payer: str, person: str, service: str, *, hours: int = 0, tokens: int = 10
) -> UsageRecord:
    end_ms = START_MS + hours * HOUR_MS
    return UsageRecord(
        number=number,
        payer=payer,
        person=person,
        key_id="-" if person == "-" else f"{person}key",
        service=service,
        array_job_id=814,
        index=number % 3,
        run_start_s=1_764_000_000,
        start_ms=end_ms - 1000,
        end_ms=end_ms,
        prompt_tokens=tokens,
        cached_prompt_tokens=tokens // 3,
        output_tokens=tokens // 2,
        first_token_ms=100 + number % 7,
    )


def asked(ledger: Ledger, principal: Principal, **fields: object) -> TokenUsageAnswer:
    return token_usage(TokenUsageRequest.of(**fields), principal, ledger, ZONE)


def all_lines(ledger: Ledger, principal: Principal, **fields: object) -> list[TokenLine]:
    lines, after = list[TokenLine](), None
    while True:
        answer = asked(ledger, principal, after=after, **fields)
        lines += answer.lines
        if answer.more is None:
            return lines
        after = answer.more


def amounts(line: TokenLine) -> Amounts:
    return (line.requests, line.prompt_tokens, line.cached_prompt_tokens, line.output_tokens)


KEYS: dict[str, tuple[Callable[[UsageRecord], object], Callable[[TokenLine], object]]] = {
    "service": (lambda record: record.service, lambda line: line.service),
    "tenant": (lambda record: record.payer, lambda line: line.tenant),
    "person": (
        lambda record: (record.payer, record.person),
        lambda line: (line.tenant, line.person),
    ),
    "key": (
        lambda record: (record.payer, record.person, record.key_id),
        lambda line: (line.tenant, line.person, line.key_id),
    ),
}


def test_two_hundred_persons_of_fifty_tenants_add_up_in_every_sum(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """20,000 requests to 10 shared services, some of them without a key, some posted twice."""
    monkeypatch.setattr(usage_reads, "PAGE_LINES", 37)
    dice = random.Random(42)  # noqa: S311
    persons = [(f"t{number % 50}", f"p{number}") for number in range(200)]
    records = []
    for number in range(20_000):
        payer, person = dice.choice(persons)
        records.append(
            a_record(
                number,
                payer,
                "-" if dice.random() < 0.1 else person,
                f"t{dice.randrange(5)}/m{dice.randrange(2)}",
                hours=dice.randrange(72),
                tokens=dice.randrange(4000),
            )
        )
    booked = 0
    for start in range(0, len(records), 250):
        batch = records[max(0, start - 50) : start + 250]
        booked += len(ledger.usage.post("boot", batch, ZONE))
    assert booked == len(records)

    for by, (of_record, of_line) in KEYS.items():
        wanted = dict[object, Counter[int]]()
        for record in records:
            sums = wanted.setdefault(of_record(record), Counter())
            used = (record.prompt_tokens, record.cached_prompt_tokens, record.output_tokens)
            sums.update(dict(enumerate((1, *used))))
        lines = all_lines(ledger, ROOT, by=by)
        assert len(lines) == len(wanted)
        assert {of_line(line): amounts(line) for line in lines} == {
            key: tuple(sums[field] for field in range(4)) for key, sums in wanted.items()
        }
    days = [
        amounts(line)
        for day in range(4)
        for line in asked(
            ledger,
            ROOT,
            by="tenant",
            tenant="t7",
            since_s=START_MS // 1000 + 86_400 * day,
            until_s=START_MS // 1000 + 86_400 * day + 1,
        ).lines
    ]
    whole = tuple(map(sum, zip(*days, strict=True)))
    balances = (ledger.budgets.balances(meter.name)["t7"].used for meter in USAGE)
    prompts, cached, outputs, _, requests = balances
    assert whole == (requests, prompts, cached, outputs)
    ledger.charges.seal()
    assert ledger.audit.verify().faults == ()


@pytest.fixture
def shared(ledger: Ledger) -> Ledger:
    """Science owns a service that vision's alice and bob ask, too; vision has one of its own."""
    batch = [
        a_record(0, "vision", "alice", "science/chat"),
        a_record(1, "vision", "bob", "science/chat", hours=24),
        a_record(2, "science", "carol", "science/chat"),
        a_record(3, "vision", "bob", "vision/own"),
        a_record(4, "vision", "-", "vision/own"),
    ]
    ledger.usage.post("b", batch, ZONE)
    counters = {"array_job_id": 814, "index": 0, "run_start_s": 1_764_000_000}
    counted = EngineCounters(
        **counters,
        service="science/chat",
        prompt_tokens=100,
        output_tokens=100,
        seen_s=START_MS / 1000 + 7200,
    )
    ledger.usage.note_counters([counted])
    return ledger


ALICE = Principal(1, "alice", frozenset({"vision"}))
CAROL = Principal(2, "carol", frozenset({"science"}))
GUEST = Principal(3, "guest", frozenset({"nlp"}))


def named(lines: list[TokenLine]) -> dict[tuple[str, str, str], int]:
    return {(line.tenant, line.person, line.key_id): line.requests for line in lines}


def test_a_person_sees_own_requests_and_of_others_none(shared: Ledger):
    assert named(all_lines(shared, ALICE, by="key", service="science/chat")) == {
        ("vision", "alice", "alicekey"): 1
    }
    assert all_lines(shared, GUEST, by="key") == []
    assert all_lines(shared, ALICE, by="key", person="bob") == []
    assert all_lines(shared, ALICE, by="person", key_id="bobkey") == []


def test_a_service_s_owner_sees_who_pays_and_no_persons(shared: Ledger):
    assert named(all_lines(shared, CAROL, by="key")) == {
        ("science", "carol", "carolkey"): 1,
        ("vision", "-", "-"): 2,
    }
    assert named(all_lines(shared, CAROL, by="tenant")) == {
        ("science", "", ""): 1,
        ("vision", "", ""): 2,
    }
    # Members of the tenant whose service it is: how much it is used, not by whom.
    own = named(all_lines(shared, ALICE, by="person", service="vision/own"))
    assert own == {("vision", "-", ""): 2}


def test_operators_see_all(shared: Ledger):
    assert named(all_lines(shared, ROOT, by="person")) == {
        ("science", "carol", ""): 1,
        ("vision", "-", ""): 1,
        ("vision", "alice", ""): 1,
        ("vision", "bob", ""): 2,
    }
    days = {line.day: line.requests for line in all_lines(shared, ROOT, by="day")}
    assert days == {"2025-11-29": 4, "2025-11-30": 1}


@pytest.mark.parametrize(("principal", "is_shown"), [(ROOT, True), (CAROL, True), (ALICE, False)])
def test_what_no_request_has_is_shown_to_who_owns_the_service(
    shared: Ledger, principal: Principal, is_shown: bool
):
    found = asked(shared, principal).unattributed
    # Of the run with index 0 record 0 and record 3 are posted: 10 prompt and 5 output tokens each.
    rest = Unattributed(service="science/chat", prompt_tokens=80, output_tokens=90)
    assert found == ((rest,) if is_shown else ())
    assert asked(shared, principal, person="alice").unattributed == ()
