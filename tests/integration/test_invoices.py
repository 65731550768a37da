"""Invoices on a real PostgreSQL: they add up to the millionth, over changes of tariff and clock."""

import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product
from random import Random
from typing import Any

import psycopg
import pytest
from builders.tariffs import BERLIN, all_charges, charge_pages, local_s, tariff

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.api import charge_reads, usage_reads
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.usage_reads import token_usage
from slicewise.slurm_plugin.common.tariff_requests import ChargeCursor
from slicewise.slurm_plugin.common.usage_requests import TokenUsageRequest
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.quota_cycle.share_hours import share_hours
from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeLine, merged
from slicewise.slurm_plugin.rules.accounting.invoice import invoice_sums, payables
from slicewise.slurm_plugin.rules.accounting.money_budgets import (
    money_budget_statuses,
    spans_alike,
    tenant_costs,
)
from slicewise.slurm_plugin.rules.accounting.tariff import (
    MoneyBudget,
    Tariff,
    document,
    price_spans,
)
from slicewise.slurm_plugin.rules.accounting.tariff_file import EnteredTariff
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)
from slicewise.slurm_plugin.rules.quota.types import Policy, Quota, Tenant

pytestmark = pytest.mark.integration

SEED = 20261025
HOUR_S, DAY_S = 3600, 86_400
BEGIN_S, END_S = local_s("2026-10-01 00:00"), local_s("2026-11-01 00:00")
NIGHT = """
[[windows]]
name = "night"
begin = "22:00"
end = "06:00"
factor = 0.5
"""
CLASS = """
[classes.external]
tenants = ["optics"]
prices = { slice_hour = 0.9 }
"""
TOKENS = """
[prices]
slice_hour = 0.07
slice_hour_by_type = { "3g.40gb" = 0.11 }
million_prompt_tokens = 0.15
million_cached_prompt_tokens = 0.01
million_output_tokens = 0.6
thousand_requests = 0.003
"""
TARIFFS = (
    (BEGIN_S, tariff(NIGHT)),
    (local_s("2026-10-11 00:00"), tariff(NIGHT + CLASS, slice_hour="0.123457")),
    (local_s("2026-10-24 00:00"), tariff(TOKENS + NIGHT + CLASS.replace("0.9", "0.1"))),
)
POLICY: Policy = {
    name: Tenant(name, "", Quota(Millislices(1000))) for name in ("vision", "optics", "chem")
}


def enter(url: str, *found: tuple[int, Tariff]) -> None:
    """As if they had been entered before they began: the first may begin in the past anyway."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE slicewise.tariffs DISABLE TRIGGER check_tariff")
        for valid_from_s, each in found:
            connection.execute(
                "INSERT INTO slicewise.tariffs (cluster, valid_from_s, document, author, reason)"
                " VALUES ('testing', %s, %s, 'olga', 'prices')",
                (valid_from_s, json.dumps(dict(document(each)))),
            )
        connection.execute("ALTER TABLE slicewise.tariffs ENABLE TRIGGER check_tariff")


def settled(ledger: Ledger, run: Run, seconds: int) -> None:
    used, end_s = run.cost_millislices * seconds, run.key.start_s + seconds
    ledger.charges.post([Charge(run, 0, (Transfer(TransferKind.RESERVE, 10**12, end_s),))])
    steps = (TransferKind.POST, used), (TransferKind.VOID, 10**12 - used)
    ledger.charges.post([Charge(run, 1, tuple(Transfer(k, n, end_s) for k, n in steps))])


def a_run(job_id: int, start_s: int, tenant: str = "vision", **fields: Any) -> Run:
    user, payer = fields.get("user", "alice"), fields.get("payer", tenant)
    gres, cost = fields.get("gres", {"1g.10gb": 1}), Millislices(fields.get("cost", 1000))
    return Run(RunKey("testing", job_id, start_s), tenant, user, f"{job_id}_0", gres, cost, payer)


def tell(url: str, records: list[dict[str, Any]]) -> None:
    batch = {"cluster": "testing", "boot": "gateway", "zone": BERLIN, "records": records}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT slicewise.post_usage(%s)", (json.dumps(batch),))


def a_request(number: int, run: Run, payer: str, end_s: int, **fields: Any) -> dict[str, Any]:
    return {
        "number": number,
        "payer": payer,
        "person": "-",
        "key_id": "-",
        "service": "vision/chat",
        "array_job_id": run.key.job_id,
        "index": 0,
        "run_start_s": run.key.start_s,
        "start_ms": 1000 * (end_s - 60),
        "end_ms": 1000 * end_s,
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "output_tokens": 0,
        "outcome": "whole",
        **fields,
    }


def billed(ledger: Ledger, begin_s: int = BEGIN_S, end_s: int = END_S) -> tuple[ChargeLine, ...]:
    book = ledger.tariffs.book(BERLIN)
    spans = price_spans(book.records, begin_s, end_s, BERLIN)
    return merged(all_charges(ledger, WantedCharges(), spans, book, end_s))


MODEL, KWH = "H200-141GB", 3_600_000_000
Part = tuple[int, str, int]
"""A job, how its part was found, and millijoules."""


def metered(url: str, hour_s: int, *parts: Part, measure: str = "counter") -> None:
    """As a meter told it, in time."""
    board = ("testing", hour_s, "gpu01", "GPU-1", measure, "m1")
    taken = sum(energy_mj for *_, energy_mj in parts)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO slicewise.energy_boards VALUES (%s, %s, %s, %s, %s, %s, %s, %s, 1, 0, 0)",
            (*board, MODEL, taken),
        )
        for part in parts:
            connection.execute(
                "INSERT INTO slicewise.energy_hours VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (*board, *part),
            )


def folded(url: str, day: str, *parts: Part) -> None:
    """The same of a day whose hours are no longer kept."""
    with psycopg.connect(url, autocommit=True) as connection:
        for job_id, split, energy_mj in parts:
            connection.execute(
                "INSERT INTO slicewise.energy_days VALUES"
                " ('testing', %s, 'gpu01', 'GPU-1', 'counter', %s, %s, %s)",
                (day, job_id, split, energy_mj),
            )


ENERGY = """
[prices]
slice_hour = 0.36
kwh = 0.3
"""
SHARED = """
[prices]
slice_hour = 0
kwh = 0.25
shared_kwh = 0.123457
[classes.powered]
tenants = ["optics"]
prices = { kwh = 0.1 }
"""


def by_meter(lines: tuple[ChargeLine, ...]) -> dict[tuple[str, str, str], tuple[int, int | None]]:
    return {
        (line.of.day, line.of.tenant, line.of.meter): (line.amount, line.millionths)
        for line in lines
        if line.of.kind == "energy"
    }


def test_joules_are_charged_that_were_measured_by_the_tariff_of_their_day(
    ledger: Ledger, ledger_database: str
) -> None:
    """Over two changes of tariff and that of clocks. Free is what is nobody's, unchecked, or of no
    price.
    """
    enter(
        ledger_database,
        (BEGIN_S, tariff()),
        (local_s("2026-10-11 00:00"), tariff(ENERGY)),
        (local_s("2026-10-25 00:00"), tariff(SHARED)),
    )
    settled(ledger, a_run(1, BEGIN_S, payer="science"), 31 * DAY_S)
    settled(ledger, a_run(2, BEGIN_S, "optics", user="dora"), 31 * DAY_S)
    one, two = (1, "alone", KWH), (2, "activity", KWH)
    others = (0, "idle", KWH), (99, "alone", 7), (1, "unchecked", KWH)
    folded(ledger_database, "2026-10-10", one, two, *others)
    folded(ledger_database, "2026-10-11", one, two, *others)
    # Both hours from 2:00 to 3:00, the last one of the day before and the first of the day after.
    first_s = local_s("2026-10-25 00:00")
    for hour in (-1, 2, 3, 24, 25):
        metered(ledger_database, first_s + hour * HOUR_S, one, two, *others)
    metered(ledger_database, first_s + 26 * HOUR_S, (2, "alone", 333), measure="power")
    lines = billed(ledger)
    whole, shared = "millijoules", "shared-millijoules"
    assert by_meter(lines) == {
        ("2026-10-11", "vision", whole): (KWH, 300_000),
        ("2026-10-24", "vision", whole): (KWH, 300_000),
        ("2026-10-25", "vision", whole): (3 * KWH, 750_000),
        ("2026-10-25", "optics", shared): (3 * KWH, 3 * 123_457),
        ("2026-10-26", "vision", whole): (KWH, 250_000),
        ("2026-10-26", "optics", shared): (KWH, 123_457),
        # 0.00925 millionths.
        ("2026-10-26", "optics", whole): (333, 0),
    }
    assert {(line.of.payer, line.of.user) for line in lines if line.of.kind == "energy"} == {
        *(("science", "alice"), ("optics", "dora")),
    }
    bounds = [local_s(f"2026-10-{day} 00:00") for day in range(10, 31)]
    each_day = [by_meter(billed(ledger, *span)) for span in pairwise(bounds)]
    assert {key: value for found in each_day for key, value in found.items()} == by_meter(lines)
    # Of a tenant, and of its payer; who may read neither sees nothing of it.
    assert {key[1] for key in by_meter(seen_by(ledger, "vision"))} == {"vision"}
    assert not by_meter(seen_by(ledger, "chem"))
    sums = {each.payer: each for each in invoice_sums(lines, "tenant")}
    assert sums["science"].energy_mj == 6 * KWH
    owed = {each.payer: each.millionths for each in payables(lines, "EUR")}
    assert {payer: each.millionths for payer, each in sums.items()} == owed
    budgets_are_the_same(ledger, lines, "vision", "optics")


def test_pages_of_joules_follow_each_other(
    ledger: Ledger, ledger_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a few users, however many a tenant's day has: none is told twice or left out."""
    enter(ledger_database, (BEGIN_S, tariff(SHARED)))
    jobs = {job_id: ("vision", "optics")[job_id % 2] for job_id in range(1, 15)}
    for job_id, tenant in jobs.items():
        settled(ledger, a_run(job_id, BEGIN_S, tenant, user=f"user{job_id}"), 3 * DAY_S)
    days = "2026-10-01", "2026-10-02", "2026-10-03"
    for day in days:
        parts = ((job_id, split, KWH) for job_id in jobs for split in ("slices", "alone"))
        folded(ledger_database, day, *parts)
    in_one = billed(ledger)
    energy = [line.of for line in in_one if line.of.kind == "energy"]
    assert sorted((of.day, of.tenant, of.user) for of in energy) == sorted(
        2 * [(day, tenant, f"user{job_id}") for day in days for job_id, tenant in jobs.items()]
    )
    monkeypatch.setattr(charge_reads, "_PAGE_ROWS", 3)
    assert billed(ledger) == in_one
    # Both prices of one user are on one page.
    assert longest_page(ledger, WantedCharges(), "energy") == 4


def test_pages_of_requests_end_at_persons_whom_the_reader_may_see(
    ledger: Ledger, ledger_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(ledger_database, (BEGIN_S, tariff(TOKENS)))
    run, day_s = a_run(1, BEGIN_S), local_s("2026-10-27 12:00")
    of_all = product((0, 1), ("chem", "optics"), range(7), ("vision/chat", "vision/code"))
    tell(
        ledger_database,
        [
            a_request(
                number,
                run,
                payer,
                day_s + day * DAY_S,
                person=f"person{person}",
                service=service,
                output_tokens=number,
            )
            for number, (day, payer, person, service) in enumerate(of_all, 1)
        ],
    )
    in_one, seen_in_one = billed(ledger), seen_by(ledger, "chem")
    monkeypatch.setattr(charge_reads, "_PAGE_ROWS", 3)
    assert billed(ledger) == in_one
    # Tokens and requests of each.
    assert longest_page(ledger, WantedCharges(), "request") == 2 * 3
    assert seen_by(ledger, "chem") == seen_in_one
    assert cost(seen_in_one) == cost(tuple(line for line in in_one if line.of.tenant == "chem"))
    # Who may not see them is told a tenant's day at once, in one line for all, and no cursor.
    limited = WantedCharges(tenants={"chem"}, reader="dora")
    assert longest_page(ledger, limited, "request") == 2 * 2
    afters = [after for _, after in pages_of(ledger, limited) if after is not None]
    assert "person" not in "".join(after.model_dump_json() for after in afters if after.day)
    assert [after.day for after in afters if after.day]


def pages_of(
    ledger: Ledger, wanted: WantedCharges
) -> list[tuple[Sequence[ChargeLine], ChargeCursor | None]]:
    book = ledger.tariffs.book(BERLIN)
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    return list(charge_pages(ledger, wanted, spans, book, END_S))


def longest_page(ledger: Ledger, wanted: WantedCharges, kind: str) -> int:
    return max(sum(line.of.kind == kind for line in lines) for lines, _ in pages_of(ledger, wanted))


def cost(lines: tuple[ChargeLine, ...]) -> int:
    return sum(line.millionths or 0 for line in lines)


def test_a_night_of_nine_hours_and_a_change_of_tariff_are_exact(
    ledger: Ledger, ledger_database: str
) -> None:
    enter(ledger_database, *TARIFFS[:2])
    # From 20:00 to 08:00, 13 hours of which nine are the night's.
    settled(ledger, a_run(1, local_s("2026-10-24 20:00")), 13 * HOUR_S)
    # Two hours before the change of price at midnight, in the night, and two after it.
    settled(ledger, a_run(2, local_s("2026-10-10 22:00"), "optics"), 4 * HOUR_S)
    lines = billed(ledger)
    assert {sum_.payer: sum_.millionths for sum_ in invoice_sums(lines, "tenant")} == {
        "vision": 4 * 123_457 + 9 * 123_457 // 2 + 1,
        "optics": 2 * 180_000 + 2 * 450_000,
    }


def test_every_grouping_adds_up_in_a_month_with_two_tariffs_and_a_change_of_clocks(
    ledger: Ledger, ledger_database: str
) -> None:
    random = Random(SEED)  # noqa: S311 -- no secret
    enter(ledger_database, *TARIFFS)
    used, exact = Counter[str](), Fraction(0)
    for job_id in range(1, 201):
        run = a_run(
            job_id,
            random.randrange(BEGIN_S, END_S - 3 * DAY_S),
            random.choice(("vision", "optics", "chem")),
            user=random.choice(("alice", "bob", "carol")),
            payer=random.choice(("vision", "science")),
            gres={random.choice(("1g.10gb", "3g.40gb")): 1},
            cost=random.choice((1000, 1777, 3000)),
        )
        seconds = random.randrange(3 * DAY_S)
        settled(ledger, run, seconds)
        used[run.tenant] += run.cost_millislices * seconds
    # One that runs still.
    running = a_run(201, END_S - DAY_S, "optics", payer="science")
    ledger.charges.post([Charge(running, 0, (Transfer(TransferKind.RESERVE, 10**12, END_S),))])
    used["optics"] += running.cost_millislices * DAY_S
    # A replica of a service that others ask, over both nights around the change of clocks.
    start_s = local_s("2026-10-24 18:00")
    replica = a_run(1000, start_s, gres={"3g.40gb": 1}, cost=3001)
    settled(ledger, replica, 20 * HOUR_S)
    used["vision"] += 3001 * 20 * HOUR_S
    requests = [
        a_request(
            number,
            replica,
            random.choice(("optics", "chem", "vision")),
            start_s + random.randrange(60, 20 * HOUR_S),
            person=random.choice(("ann", "ben")),
            prompt_tokens=(prompt := random.randrange(10_000)),
            cached_prompt_tokens=prompt // 3,
            output_tokens=random.randrange(2000),
        )
        for number in range(400)
    ]
    tell(ledger_database, requests)
    found = share_hours(ledger, POLICY, "owner", (), start_s + DAY_S, zone=BERLIN)  # type: ignore[arg-type]
    assert found.booked
    lines = billed(ledger)

    owed = {each.payer: each.millionths for each in payables(lines, "EUR")}
    assert set(owed) == {"vision", "science", "optics", "chem"}
    for by in ("person", "service", "tenant", "day", "month"):
        sums = Counter[str]()
        for each in invoice_sums(lines, by):  # type: ignore[arg-type]
            sums[each.payer] += each.millionths
        assert sums == owed

    slices = tuple(line for line in lines if line.of.meter == "slice-seconds")
    assert sum(line.amount for line in slices) == sum(used.values())
    shares = tuple(line for line in slices if line.of.kind == "share")
    assert {line.of.tenant for line in shares} == {"vision", "optics", "chem"}
    assert cost(shares) == sum(line.amount for line in shares) == 0
    prices = {line.of.price for line in shares}
    assert {str(price) for price in prices} == {"0.11", "0.055"}

    for line in slices:
        if line.of.kind == "run":
            assert line.of.price is not None
            exact += Fraction(line.of.price) * line.amount * 10**6 / (HOUR_S * 1000)
    assert abs(exact - cost(slices)) <= Fraction(len(slices), 2)

    tokens = [line for line in lines if line.of.kind == "request"]
    for name, meter in (("output_tokens", "output-tokens"), ("prompt_tokens", "prompt-tokens")):
        told = sum(
            each[name] - (each["cached_prompt_tokens"] if name == "prompt_tokens" else 0)
            for each in requests
        )
        assert sum(line.amount for line in tokens if line.of.meter == meter) == told

    # Days on their own come to the same, and so does each tenant's part.
    days = {line.of.day for line in lines}
    starts = sorted(local_s(f"{day} 00:00") for day in days)
    each_day = [
        cost(billed(ledger, at_s, next_s))
        for at_s, next_s in zip(starts, [*starts[1:], END_S], strict=True)
    ]
    assert sum(each_day) == cost(lines)
    by_reader = [line for name in ("vision", "optics", "chem") for line in seen_by(ledger, name)]
    assert sum(line.millionths or 0 for line in by_reader) == cost(lines)
    assert {line.of.user for line in by_reader if line.of.kind == "request"} == {"-"}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charge_reads, "_PAGE_ROWS", 3)
        assert billed(ledger) == lines
    usage_is_the_same(ledger, cost(tuple(tokens)))
    budgets_are_the_same(ledger, lines, "vision", "optics", "chem")


def budgets_are_the_same(ledger: Ledger, lines: tuple[ChargeLine, ...], *tenants: str) -> None:
    # What is left in the month is what its lines leave, each rounded by itself.
    budgets = dict.fromkeys(tenants, MoneyBudget(amount=Decimal(9)))
    book = ledger.tariffs.book(BERLIN)
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    alike = spans_alike(spans, {BEGIN_S}, book)
    assert len({span.start_s for span in alike}) <= len(spans) / 5
    costs = tenant_costs(ledger.tariffs.spent(spans, alike, BERLIN, END_S), spans, book)
    for found in money_budget_statuses(budgets, costs, book, END_S - 1):
        own = tuple(line for line in lines if line.of.tenant == found.tenant)
        assert abs(found.used_millionths - cost(own)) <= len(own)
        assert cost(own) > 10**6


def usage_is_the_same(ledger: Ledger, tokens_cost: int) -> None:
    # The same requests in usage: what they cost is the same however it is grouped.
    everybody = Principal(0, "root", None)
    costs = {
        by: sum(line.millionths or 0 for line in answer.lines)
        for by in ("service", "day", "tenant", "month")
        for answer in [
            token_usage(TokenUsageRequest.of(by=by), everybody, ledger, BERLIN),
        ]
    }
    assert len({*costs.values()}) == 1
    # Beside tokens, the replica's time: by its own GPU type, on the mean of days with such nights.
    (line,) = token_usage(TokenUsageRequest.of(by="service"), everybody, ledger, BERLIN).lines
    slices = ((line.millionths or 0) - tokens_cost) * HOUR_S * 1000 / line.millislice_s
    assert 110_000 * (1 - 9 / 50) <= round(slices) <= 110_000 * (1 - 8 / 48)
    # Who owns the service sees what others used, and not what it cost them.
    owner = Principal(1, "dora", frozenset({"vision"}))
    shown = token_usage(TokenUsageRequest.of(by="tenant"), owner, ledger, BERLIN).lines
    assert [each.tenant for each in shown if each.millionths is None] == ["chem", "optics"]
    assert [each.tenant for each in shown if each.millionths] == ["vision"]
    pages = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage_reads, "_MOST_PARTS", 4)
        after = None
        while not pages or after is not None:
            request = TokenUsageRequest.of(by="tenant", after=after)
            answer = token_usage(request, everybody, ledger, BERLIN)
            pages.append(answer.lines)
            after = answer.more
    assert len(pages) > 1
    assert sum(each.millionths or 0 for page in pages for each in page) == costs["tenant"]


def seen_by(ledger: Ledger, tenant: str) -> tuple[ChargeLine, ...]:
    book = ledger.tariffs.book(BERLIN)
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    wanted = WantedCharges(tenants={tenant}, reader="dora")
    return merged(all_charges(ledger, wanted, spans, book, END_S))


def test_midnight_and_the_month_s_end_are_the_local_clock_s(
    ledger: Ledger, ledger_database: str
) -> None:
    """Runs are cut where a day ends, requests are of the day in which they ended."""
    enter(ledger_database, (BEGIN_S, tariff(TOKENS)))
    for day in ("2026-10-24", "2026-10-25", "2026-10-31"):
        # Three hours, of which one is of that day.
        settled(ledger, a_run(int(day[-2:]), local_s(f"{day} 23:00")), 3 * HOUR_S)
    replica = a_run(1000, local_s("2026-10-31 20:00"))
    settled(ledger, replica, 8 * HOUR_S)
    ends_s = (END_S - 1, END_S, END_S + 1)
    tell(
        ledger_database,
        [
            a_request(number, replica, "vision", end_s, output_tokens=10**6 * (number + 1))
            for number, end_s in enumerate(ends_s)
        ],
    )
    november_s = local_s("2026-12-01 00:00")
    october, november = billed(ledger), billed(ledger, END_S, november_s)

    def by_day(lines: tuple[ChargeLine, ...]) -> dict[str, tuple[int, int]]:
        return {
            each.key: (each.millislice_s // (1000 * HOUR_S), each.output_tokens // 10**6)
            for each in invoice_sums(lines, "day")
        }

    assert by_day(october) == {
        "2026-10-24": (1, 0),
        "2026-10-25": (3, 0),
        "2026-10-26": (2, 0),
        "2026-10-31": (1 + 4, 1),
    }
    assert by_day(november) == {"2026-11-01": (2 + 4, 2 + 3)}
    both = billed(ledger, BEGIN_S, november_s)
    assert cost(both) == cost(october) + cost(november)
    assert [each.key for each in invoice_sums(both, "month")] == ["2026-10", "2026-11"]


def test_tariffs_are_kept_and_none_prices_anew_what_was_used(
    ledger: Ledger, ledger_database: str
) -> None:
    first = ledger.tariffs.enter(EnteredTariff(BEGIN_S, tariff()), "olga", "first", BERLIN)
    later_s = local_s("2100-01-01 00:00")
    ledger.tariffs.enter(EnteredTariff(later_s, tariff(slice_hour="1")), "olga", "next", BERLIN)
    last = ledger.tariffs.enter(
        EnteredTariff(later_s, tariff(slice_hour="2")), "olga", "a slip", BERLIN
    )
    assert [each.tariff.prices.slice_hour for each in ledger.tariffs.records()][-1] == 2
    assert (first.tariff_id, last.reason) == (ledger.tariffs.records()[0].tariff_id, "a slip")
    with pytest.raises(InvalidInputError, match="past"):
        ledger.tariffs.enter(EnteredTariff(BEGIN_S, tariff()), "olga", "again", BERLIN)
    ledger.charges.seal()
    assert ledger.audit.verify().imbalance == 0
    with psycopg.connect(ledger_database, autocommit=True) as connection:
        into = "INSERT INTO slicewise.tariffs (cluster, valid_from_s, document, author, reason)"
        francs = "jsonb_set(document, '{currency}', to_jsonb('CHF'::text))"
        of_last = "author, reason FROM slicewise.tariffs ORDER BY id DESC LIMIT 1"
        for forbidden, why in (
            ("UPDATE slicewise.tariffs SET valid_from_s = 0", "append-only"),
            ("DELETE FROM slicewise.tariffs", "append-only"),
            (f"{into} SELECT cluster, 5, document, {of_last}", "in the past"),
            (f"{into} SELECT cluster, valid_from_s, {francs}, {of_last}", "another currency"),
        ):
            with pytest.raises(psycopg.Error, match=why):
                connection.execute(forbidden)
        connection.execute("ALTER TABLE slicewise.tariffs DISABLE TRIGGER USER")
        connection.execute("UPDATE slicewise.tariffs SET reason = 'forged' WHERE id = 1")
    (fault,) = ledger.audit.verify().faults
    assert "tariffs" in fault


def test_what_is_booked_between_two_pages_moves_no_line(
    ledger: Ledger, ledger_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charge_reads, "_PAGE_ROWS", 1)
    enter(ledger_database, *TARIFFS)
    run, day_s = a_run(1, BEGIN_S), local_s("2026-10-27 12:00")
    tell(
        ledger_database,
        [
            a_request(number, run, payer, day_s + day * DAY_S, person=person, output_tokens=5)
            for number, (day, payer, person) in enumerate(
                product((0, 1), ("chem", "optics"), ("ann", "ben"))
            )
        ],
    )
    book = ledger.tariffs.book(BERLIN)
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    lines = []
    for number, line in enumerate(all_charges(ledger, WantedCharges(), spans, book, END_S)):
        if not number:
            earlier = a_request(100, run, "chem", day_s - DAY_S, person="ann", output_tokens=5)
            tell(ledger_database, [earlier])
        lines += [(line.of.day, line.of.tenant, line.of.user)] * (line.of.meter != "requests")
    days = "2026-10-27", "2026-10-28"
    assert sorted(lines) == list(product(days, ("chem", "optics"), ("ann", "ben")))
