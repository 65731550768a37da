"""Property: invoices add up to the millionth, however they are grouped, cut or paged."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from builders.tariffs import BERLIN, book_of, local_s, tariff
from effort import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.currencies import minor_digits
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.charge_lines import (
    ChargeLine,
    EnergyDay,
    PassedOn,
    PooledDay,
    RequestDay,
    energy_lines,
    merged,
    pool_lines,
    request_lines,
    run_lines,
    share_lines,
)
from slicewise.slurm_plugin.rules.accounting.invoice import (
    invoice_sums,
    list_per_million_tokens,
    money_places,
    money_text,
    payables,
    per_million_tokens,
)
from slicewise.slurm_plugin.rules.accounting.tariff import PriceBook, money, price_spans
from slicewise.slurm_plugin.rules.accounting.types import Run, RunKey, StatementRow

BEGIN_S, END_S = local_s("2026-10-23 00:00"), local_s("2026-10-28 00:00")
CLASS = """
[classes.external]
tenants = ["optics"]
prices = { slice_hour = 0.777777 }
"""
NIGHT = """
[[windows]]
name = "night"
begin = "22:15"
end = "06:00"
factor = 0.333333
"""
ENERGY = """
[classes.powered]
tenants = ["chem"]
prices = {{ kwh = {0}, shared_kwh = 0.1 }}
"""
names = st.sampled_from(("vision", "optics", "chem"))
prices = st.decimals("0", "3", places=6).map(str)
books = st.builds(
    lambda a, b, c: book_of(
        (BEGIN_S - 10**6, tariff(NIGHT + CLASS, slice_hour=a)),
        (local_s("2026-10-24 00:00"), tariff(CLASS + TOKENS, slice_hour=b)),
        (local_s("2026-10-26 00:00"), tariff(NIGHT + ENERGY.format(c), slice_hour=c)),
    ),
    prices,
    prices,
    prices,
)
TOKENS = """
[list_prices]
"*" = 0.6
"""


def a_row(
    job_id: int, start_s: int, seconds: int, cost: int, who: tuple[str, str, str]
) -> StatementRow:
    tenant, payer, user = who
    key = RunKey("c", job_id, BEGIN_S - 86_400 + start_s)
    run = Run(key, tenant, user, "1", {"1g.10gb": 1}, Millislices(cost), payer)
    used = MillisliceSeconds(cost * seconds)
    service = "chat" if cost % 2 else ""
    return StatementRow(run, key.start_s + seconds, used, *2 * (MillisliceSeconds(0),), service)


rows_of_any = st.lists(
    st.builds(
        a_row,
        st.integers(1, 9),
        st.integers(0, 6 * 86_400),
        st.integers(0, 3 * 86_400),
        st.integers(1, 9000),
        st.tuples(names, names, st.sampled_from(("alice", "bob"))),
    ),
    max_size=8,
)
days = st.sampled_from([f"2026-10-{day}" for day in range(23, 28)])
tokens = st.integers(0, 10**7)
requests_of_any = st.lists(
    st.builds(
        lambda day, tenant, person, count, prompt, output: RequestDay(
            day, tenant, person, "vision/chat", count, prompt, prompt // 3, output
        ),
        days,
        names,
        st.sampled_from(("alice", "bob", "-")),
        st.integers(1, 99),
        tokens,
        tokens,
    ),
    max_size=6,
)


energy_of_any = st.lists(
    st.builds(
        EnergyDay,
        days,
        names,
        names,
        st.sampled_from(("", "chat")),
        st.sampled_from(("alice", "bob")),
        st.booleans(),
        st.integers(1, 10**13),
    ),
    max_size=6,
    unique_by=lambda day: (day.day, day.payer, day.tenant, day.service, day.user, day.is_shared),
)


def whole(
    rows: list[StatementRow],
    requests: list[RequestDay],
    book: PriceBook,
    energy: Sequence[EnergyDay] = (),
) -> tuple[ChargeLine, ...]:
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    return merged(
        (
            *run_lines(rows, spans, book),
            *request_lines(requests, spans, book),
            *energy_lines(energy, spans, book),
        )
    )


@settings(max_examples=examples(60, nightly=3000), deadline=None)
@given(rows_of_any, requests_of_any, energy_of_any, books)
def test_every_grouping_adds_up_to_what_is_payable(
    rows: list[StatementRow],
    requests: list[RequestDay],
    energy: list[EnergyDay],
    book: PriceBook,
) -> None:
    lines = whole(rows, requests, book, energy)
    owed = {each.payer: each.millionths for each in payables(lines, "EUR")}
    for by in ("person", "service", "tenant", "day", "month"):
        sums: Counter[str] = Counter()
        for found in invoice_sums(lines, by):  # type: ignore[arg-type]
            sums[found.payer] += found.millionths or 0
        assert dict(sums) == owed
    for each in payables(lines, "EUR"):
        whole_millionths = each.millionths + each.rounding_millionths
        assert Decimal(each.payable) * 10**6 == whole_millionths
        assert whole_millionths % 10_000 == 0
        assert each.payable != "-0.00"
        assert abs(each.rounding_millionths) <= 5000


@settings(max_examples=examples(60, nightly=3000), deadline=None)
@given(rows_of_any, books, st.integers(0, 8))
def test_pages_change_nothing_and_each_line_is_rounded_once(
    rows: list[StatementRow], book: PriceBook, place: int
) -> None:
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    paged = merged((*run_lines(rows[:place], spans, book), *run_lines(rows[place:], spans, book)))
    lines = whole(rows, [], book)
    assert paged == lines
    for line in lines:
        assert line.of.price is not None
        exact = Fraction(line.of.price) * line.amount * 10**6 / 3_600_000
        assert abs(exact - (line.millionths or 0)) <= Fraction(1, 2)


@settings(max_examples=examples(60, nightly=3000), deadline=None)
@given(rows_of_any, books)
def test_days_on_their_own_add_up_to_the_month(rows: list[StatementRow], book: PriceBook) -> None:
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    bounds = [span.start_s for span in spans if span.begins_day] + [END_S]
    lines = [
        line
        for start_s, end_s in pairwise(bounds)
        for line in merged(run_lines(rows, price_spans(book.records, start_s, end_s, BERLIN), book))
    ]
    assert lines == list(whole(rows, [], book))


def passed_on(day: str, *others: Any) -> PassedOn:
    return PassedOn(("1g.10gb",), day, local_s(f"{day} 00:00"), "vision", *others)


parts_of_any = st.lists(
    st.builds(
        lambda day, tenant, payer, amount: passed_on(
            day, "science", "chat", tenant, payer, "chat", amount
        ),
        days,
        st.sampled_from(("optics", "chem")),
        names,
        st.integers(-(10**7), 10**7),
    ),
    max_size=8,
)


@settings(max_examples=examples(60, nightly=3000), deadline=None)
@given(parts_of_any, books)
def test_an_owner_is_relieved_of_exactly_what_the_others_pay(
    parts: list[PassedOn], book: PriceBook
) -> None:
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    every = merged(share_lines(parts, spans, book, None))
    assert sum(line.millionths or 0 for line in every) == 0
    assert sum(line.amount for line in every) == 0
    apart = [
        line
        for name in ("vision", "optics", "chem")
        for line in merged(share_lines(parts, spans, book, {name}))
    ]
    assert sorted(map(repr, apart)) == sorted(map(repr, every))


@settings(max_examples=examples(60, nightly=3000), deadline=None)
@given(st.lists(st.tuples(days, st.integers(1, 10**9), st.integers(1, 10**9)), max_size=5), books)
def test_services_of_a_pool_cost_their_tenant_nothing_more(
    moves: list[tuple[str, int, int]], book: PriceBook
) -> None:
    pooled = [
        PooledDay(day, "vision", "vision", (gres_type,), f"vision/{name}", amount)
        for day, one, two in sorted({day: (day, a, b) for day, a, b in moves}.values())
        for gres_type in ("1g.10gb", "3g.40gb")
        for name, amount in (("a", one), ("b", two), ("c", -one - two))
    ]
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    lines = pool_lines(pooled, spans, book)
    sums: Counter[str] = Counter()
    for line in lines:
        sums[line.of.day] += line.millionths or 0
    assert not any(sums.values())
    assert len(lines) == len(pooled)


@given(st.integers(-(10**20), 10**20), st.fractions(0, 10**9, max_denominator=10**12))
@example(9, Fraction(1, 5))
@example(-9, Fraction(1, 5))
@example(27, Fraction(1, 5))
def test_money_is_rounded_once_half_to_even(amount: int, price: Fraction) -> None:
    assert money("slice-seconds", amount, price) == round(price * amount * 10**6 / 3_600_000)


def test_what_rounds_to_nothing_is_no_less_than_nothing() -> None:
    book = book_of((0, tariff()))
    part = passed_on("2026-10-23", "vision", "chat", "chem", "chem", "chat", 30_000)
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    owed = payables(merged(share_lines([part], spans, book, None)), "EUR")
    assert [(each.payer, each.millionths, each.payable) for each in owed] == [
        ("chem", 3000, "0.00"),
        ("vision", -3000, "0.00"),
    ]


def test_of_a_pool_the_types_of_the_replicas_are_priced() -> None:
    book = book_of((0, tariff('prices = { slice_hour_by_type = { "3g.40gb" = 1 } }')))
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    pooled = [
        PooledDay("2026-10-24", "vision", "vision", types, f"vision/{name}", amount)
        for types in (("1g.10gb",), ("3g.40gb",))
        for name, amount in (("a", -7_200_000), ("b", 7_200_000))
    ]
    found = [(line.of.service, line.millionths) for line in pool_lines(pooled, spans, book)]
    assert found == [("a", 0), ("b", 0), ("a", -2_000_000), ("b", 2_000_000)]


def test_a_million_tokens_are_of_those_that_have_a_price() -> None:
    text = """
prices = { million_output_tokens = 2 }
[list_prices]
"vision/chat" = 5
"""
    book = book_of((local_s("2026-10-24 00:00"), tariff(text)))
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    used = [
        RequestDay(day, "chem", "ann", service, 1, 0, 0, 1_000_000)
        for day in ("2026-10-23", "2026-10-24")
        for service in ("vision/chat", "vision/other")
    ]
    lines = merged(request_lines(used, spans, book))
    (whole,) = invoice_sums(lines, "tenant")
    assert (whole.output_tokens, whole.priced_tokens, whole.listed_tokens) == (
        *(4_000_000, 2_000_000, 1_000_000),
    )
    assert per_million_tokens(whole) == 2_000_000
    assert list_per_million_tokens(whole) == 5_000_000
    free, priced = invoice_sums(lines, "day")
    assert (free.millionths, per_million_tokens(free)) == (None, None)
    assert priced.millionths == 4_000_000


@settings(max_examples=examples(60, nightly=3000), deadline=None)
@given(energy_of_any, books)
def test_joules_cost_their_price_of_the_day_and_nothing_without_one(
    energy: list[EnergyDay], book: PriceBook
) -> None:
    lines = whole([], [], book, energy)
    last = book.records[-1].tariff.classes["powered"].prices
    exact = {
        day: Fraction(price) * day.energy_mj * 10**6 / (3_600_000 * 1000)
        for day in energy
        if day.tenant == "chem" and day.day >= "2026-10-26"
        if (price := last.shared_kwh if day.is_shared else last.kwh)
    }
    assert sum(line.amount for line in lines) == sum(day.energy_mj for day in exact)
    assert len(lines) == len(exact)
    assert abs(sum(exact.values()) - sum(line.millionths or 0 for line in lines)) * 2 <= len(exact)
    assert sum(each.energy_mj for each in invoice_sums(lines, "service")) == sum(
        day.energy_mj for day in exact
    )


def test_no_name_of_a_person_changes_what_is_owed() -> None:
    book = book_of(
        (0, tariff("prices = { million_prompt_tokens = 0.1, thousand_requests = 0.01 }"))
    )
    spans = price_spans(book.records, BEGIN_S, END_S, BERLIN)
    seen = [
        RequestDay("2026-10-24", "chem", name, "vision/chat", 7, 1005, 5, 0)
        for name in ("alice", "bob", "carol")
    ]
    hidden = [replace(each, person="-") for each in seen]
    for found in (seen, hidden):
        lines = merged(request_lines(found, spans, book))
        # 100 + 0 (half of a millionth, to even) + 70 millionths, three times.
        assert sum(line.millionths or 0 for line in lines) == 3 * 170


def test_amounts_are_written_in_the_currency_s_own_digits() -> None:
    assert [minor_digits(currency) for currency in ("EUR", "JPY", "KWD")] == [2, 0, 3]
    assert money_places((1_250_000, None, 125)) == 6
    assert money_text(1_250_000, 6) == "1.250000"
    assert [money_text(n) for n in (1_234_500_000, 125, -1_000_000)] == [
        "1,234.50",
        "0.000125",
        "-1.00",
    ]
