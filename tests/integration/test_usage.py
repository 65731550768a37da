"""Usage of tokens on a real PostgreSQL: booked once, in every sum, and found if it was changed."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import psycopg
import pytest
from ledger_locks import wait_for_a_lock
from psycopg.types.json import Jsonb
from sqlalchemy.dialects import postgresql

from slicewise.cluster.language.meters import (
    CACHED_PROMPT_TOKENS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REQUESTS,
    USAGE,
)
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.usage_messages import (
    MOST_RUNS,
    EngineCounters,
    TokenAllowance,
    UsageRecord,
    WantedAllowance,
)
from slicewise.slurm_plugin.common.usage_requests import (
    LINE_FIELDS,
    TokenUsageRequest,
    UsageGroup,
)
from slicewise.slurm_plugin.ledger import replay, schema_revisions, usage_reads, usage_replay
from slicewise.slurm_plugin.ledger.allowances import AllowanceTime
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.usage_reads import UsageReader

pytestmark = pytest.mark.integration

NOW_MS = 1_764_450_000_000
"""In November 2025: records may be of any time here, the daemon checks them before."""


def a_record(number: int, **fields: object) -> UsageRecord:
    fields_of_one = {
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
    return UsageRecord.model_validate(fields_of_one | fields)


def post(ledger: Ledger, boot: str, records: Sequence[UsageRecord]) -> frozenset[int]:
    return ledger.usage.post(boot, records, "Europe/Berlin")


def used(ledger: Ledger, tenant: str = "vision") -> tuple[int, ...]:
    """Prompt, cached prompt, output and all tokens, and requests, on a tenant's accounts."""
    balances = [ledger.budgets.balances(meter.name).get(tenant) for meter in USAGE]
    return tuple(balance.used if balance else 0 for balance in balances)


def is_sound(ledger: Ledger) -> bool:
    ledger.charges.seal()
    found = ledger.audit.verify()
    assert found.faults == ()
    return found.imbalance == 0


def forget(ledger: Ledger, person: str, tenant: str | None = None) -> int:
    """Have a person forgotten, day by day; return in how many records."""
    ledger.usage.bar_person(person, tenant)
    records, gone = 0, ledger.usage.forget_person(person, tenant, None)
    while gone.day is not None:
        records += gone.records
        gone = ledger.usage.forget_person(person, tenant, gone.day)
    return records


def rows(database: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(database) as connection:
        return connection.execute(query).fetchall()  # type: ignore[arg-type]


def test_a_batch_is_booked_on_every_meter_with_one_transfer_each(ledger: Ledger, database: str):
    batch = [a_record(number) for number in range(5)]
    assert post(ledger, "boot-1", batch) == frozenset(range(5))
    assert used(ledger) == (500, 200, 35, 535, 5)
    kinds = rows(database, "SELECT kind, count(*) FROM slicewise.transfers GROUP BY 1")
    assert kinds == [("use", 5)]
    assert is_sound(ledger)


def test_a_replay_in_any_order_or_company_changes_nothing(ledger: Ledger):
    post(ledger, "boot-1", [a_record(0), a_record(1)])
    again = [a_record(2), a_record(1), a_record(0)]
    assert post(ledger, "boot-1", again) == {2}
    assert post(ledger, "boot-1", again) == frozenset()
    assert used(ledger) == (300, 120, 21, 321, 3)
    assert post(ledger, "boot-2", again) == {0, 1, 2}
    assert used(ledger) == (600, 240, 42, 642, 6)
    assert is_sound(ledger)


def test_writers_of_the_same_and_of_other_batches_never_wait_for_each_other(ledger: Ledger):
    payers = ("vision", "speech", "chemistry")

    def post_some(turn: int) -> int:
        numbers: Iterable[int] = range(60) if turn % 2 else reversed(range(60))
        batch = [a_record(number, payer=payers[number % 3]) for number in numbers]
        return len(post(ledger, f"boot-{turn % 3}", batch))

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(post_some, range(24))) == 180
    assert [used(ledger, payer)[4] for payer in payers] == [60, 60, 60]
    assert is_sound(ledger)


def test_each_meter_is_the_payer_s_own(ledger: Ledger):
    post(ledger, "b", [a_record(0), a_record(1, payer="speech", cached_prompt_tokens=0)])
    for meter, amount in ((PROMPT_TOKENS, 100), (OUTPUT_TOKENS, 7), (REQUESTS, 1)):
        assert ledger.budgets.balances(meter.name)["speech"].used == amount
    assert ledger.budgets.balances(CACHED_PROMPT_TOKENS.name)["speech"].used == 0


def counted(prompt_tokens: int, output_tokens: int, after_s: float = 120) -> EngineCounters:
    return EngineCounters(
        array_job_id=814,
        index=3,
        run_start_s=1_764_000_000,
        service="science/chat",
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        seen_s=NOW_MS / 1000 + after_s,
    )


def test_what_engines_counted_only_rises(ledger: Ledger, database: str):
    for counters in (counted(100, 5), counted(120, 9), counted(110, 7)):
        ledger.usage.note_counters([counters, counters])
    found = "SELECT prompt_tokens, output_tokens FROM slicewise.engine_counters"
    assert rows(database, found) == [(120, 9)]


def test_what_ended_after_an_engine_was_seen_last_is_not_compared_with_it(ledger: Ledger):
    """As of a replica that was killed: the next launcher tells its counters again, much later."""
    post(ledger, "b", [a_record(0)])
    for _ in range(2):
        ledger.usage.note_counters([counted(5, 1, after_s=-1)])
    assert is_sound(ledger)
    ledger.usage.note_counters([counted(5, 1)])
    ledger.charges.seal()
    assert ledger.audit.verify().faults


def test_services_that_are_left_out_of_what_is_unattributed_are_counted(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    services = [f"science/chat{number}" for number in range(5)]
    ledger.usage.note_counters(
        [
            counted(7, 8).model_copy(update={"service": name, "index": index})
            for index, name in enumerate(services)
        ]
    )
    request, reader = TokenUsageRequest(), UsageReader("root", None)
    told, left_out = ledger.usage_reads.unattributed(request, reader)
    assert ([each.service for each in told], left_out) == (services, 0)
    monkeypatch.setattr(usage_reads, "_MOST_SERVICES", 3)
    told, left_out = ledger.usage_reads.unattributed(request, reader)
    assert ([each.service for each in told], left_out) == (services[:3], 2)


def test_of_an_engine_that_counts_no_cached_tokens_its_records_have_them(ledger: Ledger):
    """Whether or not the launcher that tells its counters has heard the records."""
    without_cached = counted(7, 8).model_copy(update={"counts_cached": False})
    ledger.usage.note_counters([without_cached])
    tokens = {"prompt_tokens": 9, "cached_prompt_tokens": 5, "output_tokens": 7}
    post(ledger, "b", [a_record(0, **tokens)])
    request, reader = TokenUsageRequest(), UsageReader("root", None)
    (rest,), _ = ledger.usage_reads.unattributed(request, reader)
    assert (rest.prompt_tokens, rest.output_tokens) == (3, 1)
    # All of this one's prompt was in the cache.
    post(ledger, "b", [a_record(1, prompt_tokens=9, cached_prompt_tokens=9, output_tokens=1)])
    (rest,), _ = ledger.usage_reads.unattributed(request, reader)
    assert (rest.prompt_tokens, rest.output_tokens) == (3, 0)
    assert is_sound(ledger)


def test_a_person_is_forgotten_and_every_sum_stays(ledger: Ledger, database: str):
    batch = [
        a_record(0),
        a_record(1, key_id="fedcba987654"),
        a_record(2, person="-", key_id="-"),
        a_record(3, payer="speech"),
        a_record(4, person="bob"),
    ]
    post(ledger, "b", batch)
    assert forget(ledger, "alice", "vision") == 2
    days = (
        "SELECT payer, person, key_id, sum(requests)::int FROM slicewise.usage_days"
        " GROUP BY 1, 2, 3 ORDER BY 1, 2"
    )
    assert rows(database, days) == [
        ("speech", "alice", "0123456789ab", 1),
        ("vision", "-", "-", 3),
        ("vision", "bob", "0123456789ab", 1),
    ]
    assert forget(ledger, "alice") == 1
    assert forget(ledger, "-") == 0
    assert post(ledger, "b", batch) == frozenset()
    assert used(ledger) == (400, 160, 28, 428, 4)
    assert is_sound(ledger)


def test_who_is_forgotten_twice_at_once_is_forgotten_once(ledger: Ledger, database: str):
    post(ledger, "b", [a_record(0), a_record(1, key_id="fedcba987654")])
    with psycopg.connect(database) as first, ThreadPoolExecutor(1) as threads:
        first.execute(
            "SELECT slicewise.forget_person(cluster, '', 'alice', NULL)"
            " FROM slicewise.usage_gateways"
        )
        second = threads.submit(forget, ledger, "alice")
        wait_for_a_lock(database)
        first.commit()
        assert second.result() == 0
    days = "SELECT person, key_id, sum(requests)::int FROM slicewise.usage_days GROUP BY 1, 2"
    assert rows(database, days) == [("-", "-", 2)]
    assert is_sound(ledger)


def test_days_are_forgotten_one_by_one_and_each_leaves_the_books_whole(ledger: Ledger):
    day_ms = 86_400_000
    batch = [
        a_record(n, start_ms=NOW_MS, end_ms=NOW_MS + n * day_ms, key_id=f"k{n % 2}")
        for n in range(40)
    ]
    post(ledger, "b", batch)
    day, days = None, 0
    while (gone := ledger.usage.forget_person("alice", None, day)).day is not None:
        assert gone.records == 1
        day, days = gone.day, days + 1
        assert is_sound(ledger)
    assert days == 40


def test_a_gateway_that_tells_late_brings_no_forgotten_person_back(ledger: Ledger, database: str):
    later_ms = 4_000_000_000_000
    post(ledger, "b", [a_record(0)])
    ledger.usage.bar_person("alice", "vision")
    post(
        ledger,
        "b",
        [
            a_record(1),
            a_record(2, payer="speech"),
            a_record(3, person="bob"),
            a_record(4, start_ms=later_ms, end_ms=later_ms),
        ],
    )
    forget(ledger, "alice", "vision")
    named = "SELECT number, person, key_id <> '-' FROM slicewise.usage_records ORDER BY 1"
    assert rows(database, named) == [
        (0, "-", False),
        (1, "-", False),
        (2, "alice", True),
        (3, "bob", True),
        (4, "-", False),
    ]
    # What ends after that is the person's own again.
    post(ledger, "b", [a_record(5, start_ms=later_ms, end_ms=later_ms)])
    assert rows(database, named)[-1] == (5, "alice", True)
    assert is_sound(ledger)
    # The mark itself names nobody, and goes once no such record would be booked any more.
    assert rows(database, "SELECT person FROM slicewise.forgotten_persons") == [
        (sha256(b"alice").digest(),)
    ]
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE slicewise.forgotten_persons SET before_ms = 0")
    ledger.usage.forget(0, 1)
    assert rows(database, "SELECT count(*) FROM slicewise.forgotten_persons") == [(0,)]


def test_records_are_deleted_once_they_are_old_and_sums_stay(ledger: Ledger, database: str):
    recent_ms = 4_000_000_000_000
    post(ledger, "b", [a_record(0), a_record(1, start_ms=recent_ms, end_ms=recent_ms)])
    assert ledger.usage.forget(5_000_000_000, 10) == 1
    assert rows(database, "SELECT number FROM slicewise.usage_records") == [(1,)]
    assert used(ledger) == (200, 80, 14, 214, 2)
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
    post(ledger, "b", [a_record(0, start_ms=recent_ms, end_ms=recent_ms)])
    refused = pytest.raises(psycopg.errors.RestrictViolation)
    with psycopg.connect(database) as connection, refused:
        connection.execute(change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE slicewise.usage_hours SET output_tokens = 6", "hours have 6"),
        ("DELETE FROM slicewise.usage_hours", "hours have 0"),
        ("UPDATE slicewise.usage_days SET first_token_ms = 1", "or their tokens differ"),
        ("UPDATE slicewise.usage_runs SET output_tokens = 6", "differ by 1 tokens"),
        ("UPDATE slicewise.engine_counters SET output_tokens = 6", "its engine had counted"),
        ("UPDATE slicewise.usage_months SET tokens = 6", "has 6 tokens"),
        ("UPDATE slicewise.usage_months SET person = 'mallory'", "has 0 tokens, its days 107"),
        ("UPDATE slicewise.usage_months SET month = '2025-12-01'", "month of 2025-11-01 has 0"),
        ("UPDATE slicewise.usage_days SET day = '2025-12-01'", "of 2025-11-01 has 107"),
        (
            """DELETE FROM slicewise.usage_records;
            UPDATE slicewise.usage_days SET day = '2025-12-01';
            UPDATE slicewise.usage_months SET month = '2025-12-01'""",
            "the sums of its hours and of its persons differ",
        ),
    ],
)
def test_verify_says_what_was_changed_by_hand(
    ledger: Ledger, database: str, change: str, fault: str
):
    post(ledger, "b", [a_record(0)])
    ledger.usage.note_counters([counted(100, 7)])
    assert is_sound(ledger)
    with psycopg.connect(database) as connection:
        connection.execute(change)  # type: ignore[arg-type]
    found = ledger.audit.verify()
    assert found.imbalance
    assert any(fault in words for words in found.faults)


AT = AllowanceTime(NOW_MS / 1000 + 2, "Europe/Berlin", 10.0)


def limited(limits: RequestLimits, **subject: str) -> SubjectLimits:
    return SubjectLimits.model_validate({"tenant": "vision", **subject, "limits": limits})


def allowed(
    ledger: Ledger, boot: str, limit: SubjectLimits, wanted: int = 0, at: AllowanceTime = AT
) -> TokenAllowance:
    subject = {"tenant": limit.tenant, "person": limit.person, "key_id": limit.key_id}
    wish = WantedAllowance(**subject, tokens=wanted)
    (allowance,) = ledger.allowances.give(boot, [wish], [limit], at)
    return allowance


MINUTE, MONTH = RequestLimits(tokens_per_minute=1000), RequestLimits(tokens_per_month=1000)


@pytest.mark.parametrize("limits", [MINUTE, MONTH])
@pytest.mark.parametrize("subject", [{}, {"person": "alice"}, {"key_id": "0123456789ab"}])
def test_what_is_posted_is_held_no_longer_and_left_no_more(
    ledger: Ledger, limits: RequestLimits, subject: dict[str, str]
):
    limit = limited(limits, **subject)
    assert allowed(ledger, "one", limit, 900).tokens == 900
    assert allowed(ledger, "two", limit, 900).tokens == 100
    post(ledger, "one", [a_record(0, prompt_tokens=600, output_tokens=100)])
    # 700 are posted, the first gateway holds 200 of its 900 still, the second all of its 100.
    assert allowed(ledger, "two", limit, 900).tokens == 100
    assert allowed(ledger, "one", limit, 0).tokens == 100
    assert allowed(ledger, "two", limit, 900).tokens == 200
    post(ledger, "two", [a_record(0, prompt_tokens=180, output_tokens=20)])
    post(ledger, "one", [a_record(1, prompt_tokens=50, output_tokens=50)])
    ended = allowed(ledger, "one", limit, 10)
    assert (ended.tokens, ended.retry_s > AT.expires_s) == (0, True)


def test_what_a_killed_gateway_held_is_free_at_its_expiry(ledger: Ledger, database: str):
    limit = limited(MONTH)
    assert allowed(ledger, "killed", limit, 1000).tokens == 1000
    refused = allowed(ledger, "next", limit, 1)
    assert (refused.tokens, refused.retry_s) == (0, 10)
    assert (refused.limit, refused.used_up_until) == ("tokens_per_month", None)
    later = AllowanceTime(AT.now_s + 10, AT.zone, AT.expires_s)
    assert allowed(ledger, "next", limit, 1000, later).tokens == 1000
    held = rows(database, "SELECT count(*) FROM slicewise.allowances")
    assert held == [(1,)]


def test_many_gateways_that_pass_one_check_get_no_more_than_is_left(ledger: Ledger):
    """Of LiteLLM's races: requests that all see the same sum (#34732)."""
    limit = limited(MONTH)
    with ThreadPoolExecutor(8) as threads:
        given = threads.map(lambda turn: allowed(ledger, f"g{turn}", limit, 400), range(8))
        assert sum(allowance.tokens for allowance in given) <= 1000


def test_the_first_request_of_somebody_unknown_finds_tokens(ledger: Ledger):
    """#40095."""
    (allowance,) = ledger.allowances.give("one", [], [limited(MONTH, person="new")], AT)
    assert allowance.tokens == 500


def test_no_window_is_begun_anew(ledger: Ledger):
    """#34733: two writers at the reset of a window. A minute is the last sixty seconds at every
    moment, and a month has a sum of its own.
    """
    batch = [a_record(0, prompt_tokens=900, output_tokens=0)]
    post(ledger, "one", batch)
    limit = limited(MINUTE)
    end_s = batch[0].end_ms / 1000
    before, after = (AllowanceTime(end_s + later_s, AT.zone, 10.0) for later_s in (59, 61))
    assert allowed(ledger, "one", limit, 1000, before).tokens == 100
    assert allowed(ledger, "one", limit, 1000, after).tokens == 1000
    next_month = AllowanceTime(end_s + 31 * 86_400, AT.zone, 10.0)
    assert allowed(ledger, "one", limited(MONTH), 1000).tokens == 100
    assert allowed(ledger, "one", limited(MONTH), 1000, next_month).tokens == 1000


def test_two_writers_at_the_turn_of_a_month_lose_no_token_and_count_none_twice(ledger: Ledger):
    """#34733: requests end on both sides of it, told by four gateways at once."""
    turn = datetime(2026, 2, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    turn_ms = int(1000 * turn.timestamp())

    def told(gateway: int) -> None:
        for number in range(20):
            end_ms = turn_ms + (-1 if number % 2 else 1) * (gateway + number)
            times = {"start_ms": end_ms - 5, "end_ms": end_ms}
            one = a_record(number, prompt_tokens=2, cached_prompt_tokens=0, output_tokens=1)
            post(ledger, f"g{gateway}", [one.model_copy(update=times)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(told, range(4)))
    limit = limited(MONTH)
    for day_s in (-86_400, 86_400):
        at = AllowanceTime(turn.timestamp() + day_s, "Europe/Berlin", 10.0)
        assert allowed(ledger, f"at{day_s}", limit, 1000, at).tokens == 1000 - 40 * 3
    assert used(ledger)[-1] == 80
    assert is_sound(ledger)


def test_a_replay_lowers_no_allowance_twice(ledger: Ledger):
    """pierreb-devkit/Node#3931: what is above a limit is taken off once."""
    limit = limited(MONTH)
    allowed(ledger, "one", limit, 1000)
    batch = [a_record(0, prompt_tokens=300, output_tokens=0)]
    for _ in range(3):
        post(ledger, "one", batch)
    assert allowed(ledger, "two", limit, 1000).tokens == 0
    assert allowed(ledger, "one", limit, 1000).tokens == 700


def test_a_subject_without_limits_of_tokens_has_no_allowance(ledger: Ledger):
    assert ledger.allowances.give("one", [], [limited(RequestLimits(concurrent=3))], AT) == ()


def test_the_database_has_the_meters_that_are_declared(ledger: Ledger, database: str):
    assert rows(database, "SELECT slicewise.usage_meters()") == [([meter.name for meter in USAGE],)]


def test_a_meter_on_which_nothing_was_used_has_no_run(ledger: Ledger, database: str):
    nothing = {"prompt_tokens": 0, "cached_prompt_tokens": 0, "output_tokens": 0}
    post(ledger, "b", [a_record(0, **nothing, outcome="failed")])
    assert rows(database, "SELECT meter FROM slicewise.runs") == [("requests",)]
    assert is_sound(ledger)


def test_the_daemon_s_role_may_book_and_set_aside_and_change_no_record(
    ledger: Ledger, database: str
):
    role = f"daemon_{uuid4().hex}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role}")
        try:
            schema_revisions.grant(database, role, "daemon")
            connection.execute(f"SET ROLE {role}")
            batch = {"cluster": "testing", "boot": "b", "zone": "UTC", "records": []}
            batch["records"] = [a_record(0).model_dump()]
            posted = connection.execute("SELECT slicewise.post_usage(%s)", (Jsonb(batch),))
            assert posted.fetchone() == ([0],)
            for statement in (
                "INSERT INTO slicewise.usage_gateways (cluster, boot) VALUES ('testing', 'c')",
                "INSERT INTO slicewise.allowances VALUES (1, 'vision', '', '', 5, 7)",
                "DELETE FROM slicewise.allowances",
            ):
                connection.execute(statement)
            for statement in (
                "INSERT INTO slicewise.usage_hours SELECT * FROM slicewise.usage_hours",
                "UPDATE slicewise.usage_months SET tokens = 0",
                "DELETE FROM slicewise.usage_records",
                "UPDATE slicewise.engine_counters SET output_tokens = 0",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(statement)
        finally:
            connection.execute("RESET ROLE")
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")


def test_who_is_given_tokens_and_who_posts_never_wait_for_each_other(ledger: Ledger, database: str):
    limits = [limited(MONTH, tenant=tenant) for tenant in ("speech", "vision")]
    for limit in reversed(limits):
        allowed(ledger, limit.tenant, limit, 10)
    with psycopg.connect(database) as connection:
        # As rows of one gateway lie once others' places were taken again.
        connection.execute("UPDATE slicewise.allowances SET gateway_id = 1 WHERE gateway_id = 2")
    first, second = (
        f"SELECT FROM slicewise.allowances WHERE tenant = '{limit.tenant}' FOR UPDATE"
        for limit in limits
    )
    with psycopg.connect(database) as poster, ThreadPoolExecutor(1) as threads:
        poster.execute(first)  # type: ignore[arg-type]
        given = threads.submit(ledger.allowances.give, "vision", [], limits, AT)
        wait_for_a_lock(database)
        poster.execute(second)  # type: ignore[arg-type]
        poster.commit()
        assert len(given.result()) == 2


def test_verify_sees_an_old_day_given_to_another_while_its_records_are_kept(
    ledger: Ledger, database: str
):
    post(ledger, "b", [a_record(0)])
    with psycopg.connect(database) as connection:
        connection.execute("UPDATE slicewise.usage_days SET person = 'mallory'")
    assert any("its records are 1" in fault for fault in ledger.audit.verify().faults)


def test_engines_that_count_beyond_all_hide_nobody_s_counts(ledger: Ledger):
    counters = [
        EngineCounters(
            array_job_id=number,
            index=0,
            run_start_s=1,
            service="science/chat",
            prompt_tokens=2**53 - 1,
            output_tokens=0,
            seen_s=NOW_MS / 1000,
        )
        for number in range(1, 1202)
    ]
    for start in range(0, 1201, MOST_RUNS):
        ledger.usage.note_counters(counters[start : start + MOST_RUNS])
    request = TokenUsageRequest()
    (line,), _ = ledger.usage_reads.unattributed(request, UsageReader("root", None))
    assert line.prompt_tokens == 2**53 - 1


@pytest.mark.parametrize("group", LINE_FIELDS)
def test_a_page_begins_after_any_line(ledger: Ledger, group: UsageGroup):
    post(ledger, "b", [a_record(0)])
    for word, count in (("", 1), ("~", 0)):
        request = TokenUsageRequest(by=group, after=(word,) * len(LINE_FIELDS[group]))
        lines = ledger.usage_reads.lines(request, UsageReader("alice", ()), "UTC", 10)
        assert len(lines) == count


def test_verify_reads_records_once_however_many_runs_engines_counted(ledger: Ledger, database: str):
    post(ledger, "b", [a_record(0)])
    with psycopg.connect(database) as connection:
        connection.execute(
            "INSERT INTO slicewise.usage_records (gateway_id, day, number, payer, person, key_id,"
            " service, array_job_id, index, run_start_s, start_ms, end_ms, prompt_tokens,"
            " cached_prompt_tokens, output_tokens, outcome) SELECT 1, '1970-01-01', n, 'vision',"
            " 'p', 'k', 'science/chat', n % 100, 0, 1, 1, n, 1, 0, 1, 'whole'"
            " FROM generate_series(1, 5000) n"
        )
        connection.execute(
            "INSERT INTO slicewise.engine_counters (cluster, array_job_id, index, run_start_s,"
            " service, prompt_tokens, output_tokens, counts_cached, seen_at)"
            " SELECT cluster, n, 0, 1, 'science/chat', 1, 1, true, now()"
            " FROM generate_series(0, 99) n, slicewise.usage_gateways"
        )
        connection.execute("ANALYZE")
        connection.execute(replay.SETTING)
        for check in usage_replay.CHECKS:
            explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {check}"
            (plan,) = connection.execute(explain).fetchone() or ()  # type: ignore[arg-type]
            assert loops_of(plan[0]["Plan"], "usage_records") <= 1


def loops_of(plan: dict[str, Any], table: str) -> int:
    """How often a table was read."""
    own = plan["Actual Loops"] if plan.get("Relation Name") == table else 0
    return own + sum(loops_of(part, table) for part in plan.get("Plans", ()))


def scanned(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Each table that is read, with how many rows."""
    if "Relation Name" in plan:
        read = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        yield plan["Relation Name"], read * plan["Actual Loops"]
    for part in plan.get("Plans", ()):
        yield from scanned(part)


@pytest.mark.parametrize("group", LINE_FIELDS)
def test_a_month_is_read_from_sums_by_the_day_however_many_hours_and_runs_it_has(
    ledger: Ledger, database: str, group: UsageGroup, monkeypatch: pytest.MonkeyPatch
):
    """8 persons ask a service of 3 runs in each hour of 3 days: 6 * 24 rows of hours a day."""
    batch = [
        a_record(
            72 * (3 * person + run) + hour,
            payer=f"t{person % 2}",
            person=f"p{person}",
            index=run,
            start_ms=NOW_MS,
            end_ms=NOW_MS + hour * 3_600_000,
        )
        for person in range(8)
        for run in range(3)
        for hour in range(72)
    ]
    post(ledger, "b", batch)
    asked = list[Any]()
    monkeypatch.setattr(ledger.usage_reads, "_page", _noting(ledger.usage_reads._page, asked))
    ledger.usage_reads.lines(TokenUsageRequest(by=group), UsageReader("root", None), "UTC", 10)
    query = asked[0].compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True})
    with psycopg.connect(database) as connection:
        (plan,) = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query}").fetchone() or ()  # type: ignore[arg-type]
    read = Counter[str]()
    for table, count in scanned(plan[0]["Plan"]):
        read[table] += count
    assert read.keys() <= {"usage_days", "share_days", "pool_days"}
    assert read["usage_days"] <= 8 * 4


def _noting(of: Callable[..., Any], noted: list[Any]) -> Callable[..., Any]:
    def note(*words: Any, **named: Any) -> Any:
        noted.append(of(*words, **named))
        return noted[-1]

    return note
