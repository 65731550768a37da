"""Which price holds when, and what a tariff's file may say."""

import re
from decimal import Decimal
from itertools import pairwise

import pytest
from builders.tariffs import BERLIN, book_of, local_s, record, tariff

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.slurm_plugin.rules.accounting.tariff import (
    PriceBook,
    Tariff,
    document,
    in_force,
    list_price,
    price_spans,
    slice_hour_price,
    upward,
    usage_prices,
)
from slicewise.slurm_plugin.rules.accounting.tariff_file import (
    EXAMPLE,
    changes,
    check_entry,
    read_tariff,
    unknown_names,
)

NIGHTS = """
[[windows]]
name = "night"
begin = "22:00"
end = "06:00"
factor = 0.5
"""
OCTOBER = local_s("2026-10-01 00:00")


def test_a_night_is_as_long_as_the_clocks_make_it() -> None:
    book = book_of((OCTOBER, tariff(NIGHTS)))
    lengths = []
    for first, last in (("2026-10-24", "2026-10-25"), ("2027-03-27", "2027-03-28")):
        spans = price_spans(
            book.records, local_s(f"{first} 12:00"), local_s(f"{last} 12:00"), BERLIN
        )
        assert [(span.day, span.window) for span in spans] == [
            (first, ""),
            (first, "night"),
            (last, "night"),
            (last, ""),
        ]
        lengths.append(sum(span.end_s - span.start_s for span in spans if span.window) / 3600)
    assert lengths == [9, 7]


def test_spans_are_cut_at_days_and_tariffs_and_cover_the_time() -> None:
    change = local_s("2026-10-10 00:00")
    cheap, dear = tariff(NIGHTS), tariff(slice_hour="0.72")
    book = book_of((OCTOBER, cheap), (change, dear))
    from_s, until_s = local_s("2026-09-29 15:00"), local_s("2026-10-12 00:00")
    spans = price_spans(book.records, from_s, until_s, BERLIN)
    assert spans[0].start_s == from_s
    assert spans[-1].end_s == until_s
    assert all(a.end_s == b.start_s for a, b in pairwise(spans))
    assert [span.tariff for span in spans[:2]] == [None, None]
    assert not spans[0].begins_day
    assert {slice_hour_price(book, span, "vision", ("1g.10gb",)) for span in spans} == {
        None,
        Decimal("0.36"),
        Decimal("0.18"),
        Decimal("0.72"),
    }


def test_of_windows_the_first_counts_and_days_begin_them() -> None:
    found = tariff(
        """
[[windows]]
name = "weekend"
days = "sat-sun"
factor = 0.6
"""
        + NIGHTS
    )
    spans = price_spans(
        [record(1, OCTOBER, found)],
        local_s("2026-10-02 00:00"),
        local_s("2026-10-06 00:00"),
        BERLIN,
    )
    shown = [(span.day[-2:], span.window) for span in spans]
    assert shown[:6] == [
        *(("02", "night"), ("02", ""), ("02", "night"), ("03", "weekend")),
        *(("04", "weekend"), ("05", "night")),
    ]


def test_a_class_is_that_of_the_nearest_tenant_above_as_the_tree_was() -> None:
    found = tariff(
        """
[prices]
slice_hour = 0.36
slice_hour_by_type = { "3g.40gb" = 0.5 }
million_output_tokens = 2
[classes.external]
tenants = ["Acme"]
prices = { slice_hour = 0.9 }
[classes.big]
tenants = ["acme-lab"]
prices = { slice_hour_by_type = { "3g.40gb" = 0.8 }, million_prompt_tokens = 1 }
"""
    )
    moved_s = local_s("2026-10-20 00:00")
    parents = {"child": ((OCTOBER, "acme"), (moved_s, "")), "acme-lab": ((OCTOBER, "acme"),)}
    book = PriceBook([record(1, OCTOBER, found)], parents, BERLIN)
    before, *_, after = price_spans(book.records, moved_s - 86_400, moved_s + 86_400, BERLIN)

    def price(tenant: str, *types: str) -> Decimal | None:
        return slice_hour_price(book, before, tenant, types)

    assert price("child", "3g.40gb") == Decimal("0.9")
    assert slice_hour_price(book, after, "child", ("3g.40gb",)) == Decimal("0.5")
    assert price("acme-lab", "3g.40gb") == Decimal("0.8")
    assert price("acme-lab", "1g.10gb") == Decimal("0.36")
    assert price("other", "1g.10gb", "3g.40gb") == Decimal("0.5")
    assert usage_prices(book, before, "acme-lab")["cached-prompt-tokens"] == 1
    assert usage_prices(book, before, "acme-lab")["output-tokens"] == 2
    assert usage_prices(book, before, "other")["requests"] == 0
    assert "acme" in upward(book, "child", moved_s - 1)
    assert "acme" not in upward(book, "child", moved_s)


def test_of_tariffs_from_one_moment_the_newest_holds() -> None:
    records = [
        record(1, 100, tariff()),
        record(2, 300, tariff(slice_hour="9")),
        record(3, 200, tariff(slice_hour="2")),
        record(4, 300, tariff(slice_hour="3")),
    ]
    prices = [
        found and found.tariff.prices.slice_hour
        for found in (in_force(records, at_s) for at_s in (99, 100, 200, 299, 300))
    ]
    assert prices == [None, Decimal("0.36"), 2, 2, 3]


def test_the_example_is_a_tariff_also_with_all_that_is_a_comment() -> None:
    assert read_tariff("t.toml", EXAMPLE, BERLIN).valid_from_s == local_s("2027-01-01 00:00")
    whole = "".join(
        line[2:] if line.startswith("# ") and ("=" in line or line.startswith("# [")) else line
        for line in EXAMPLE.splitlines(keepends=True)
    )
    found = read_tariff("t.toml", whole, BERLIN).tariff
    assert [window.name for window in found.windows] == ["weekend", "night"]
    assert list_price(found, "science/chat") == Decimal("0.60")
    assert list_price(found, "vision/chat") is None
    assert found.budgets["vision"].warn_at == Decimal("0.8")
    assert Tariff.model_validate(document(found)) == found


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("valid_from = 2026-12-01T12:00:00", "valid_from: give a date"),
        ("valid_from = 0001-01-01", "valid_from: give a date"),
        ("valid_from = 9999-12-31", "valid_from: give a date"),
        ("currency = 'Euro'", "currency"),
        ("currency = 'EUT'", "currency: write a currency of ISO 4217"),
        ("time_zone = 'UTC'", "time_zone: it is that of the ledger"),
        ("prices = { slice_hour_by_type = { '3g.40gb ' = 1 } }", "leave out the blanks"),
        ("classes = { a = { tenants = [1, {a = 1}], prices = {} } }", "classes.a.tenants.0"),
        ("budgets = { Vision = { amount = 1 }, vision = { amount = 2 } }", "same tenant twice"),
        ("list_prices = { chat = 1 }", "list_prices.chat"),
        ("prices = { slice_hour = -1 }", "prices.slice_hour"),
        ("prices = { slice_hour = nan }", "prices.slice_hour"),
        ("prices = { slice_hour = true }", "prices.slice_hour: write a number"),
        ("prices = { slice_hour = 0.1234567 }", "prices.slice_hour"),
        ("prices = { slice_hour = 1e10 }", "prices.slice_hour: it should be less than"),
        ("prices = { slicehour = 1 }", "prices.slicehour: there is no such key"),
        ("prices = 3", "prices: write a table"),
        ("classes = { a = { tenants = 'x', prices = {} } }", "classes.a.tenants: write a list"),
        ("windows = [{ name = 'n' }]", "windows.n.factor: it is missing"),
        ("windows = [{ factor = 1 }, 2]", "windows.0.name: it is missing; windows.1: write a"),
        ("windows = [{ name = 'n', days = 'mo', factor = 1 }]", "not a day of the week"),
        (
            "windows = [{ name = 'n', begin = '25:00', factor = 1 }]",
            r"windows.n: begin '25:00' is not a time of day. Write it as 08:30\.$",
        ),
        ("windows = [{ name = 'n', factor = 1 }, { name = 'n', factor = 2 }]", "same name"),
        (
            (
                "classes = { a = { tenants = ['x'], prices = {} },"
                " b = { tenants = ['X'], prices = {} } }"
            ),
            "in two classes",
        ),
        ("budgets = { vision = { amount = 0 } }", "budgets.vision.amount"),
        ("budgets = { vision = { amount = 5, period = 'year' } }", "budgets.vision.period"),
        ("prices = [", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(line: str, fault: str) -> None:
    keys = {
        "valid_from": "valid_from = 2027-01-01",
        "currency": "currency = 'EUR'",
        "prices": "prices = {}",
    }
    keys[line.partition(" ")[0]] = line
    with pytest.raises(InvalidInputError) as caught:
        read_tariff("t.toml", "\n".join(keys.values()), BERLIN)
    assert re.search(fault, caught.value.refusal.message)


def test_nothing_that_was_used_is_priced_anew() -> None:
    entered = read_tariff("t.toml", EXAMPLE, BERLIN)
    check_entry(entered, (), entered.valid_from_s + 10**6, BERLIN)
    first = [record(1, 0, tariff())]
    check_entry(entered, first, entered.valid_from_s, BERLIN)
    with pytest.raises(InvalidInputError, match="past"):
        check_entry(entered, first, entered.valid_from_s + 1, BERLIN)
    francs = tariff().model_copy(update={"currency": "CHF"})
    with pytest.raises(InvalidInputError, match="no sum"):
        check_entry(entered, [record(1, 0, francs)], 0, BERLIN)
    # A slip that never held counts no more.
    slip = record(1, entered.valid_from_s, francs)
    check_entry(entered, [slip], 0, BERLIN)
    later_s = entered.valid_from_s + 86_400
    mended = record(3, later_s, tariff())
    check_entry(entered, [slip, record(2, later_s, francs), mended], 0, BERLIN)
    of_utc = tariff().model_copy(update={"time_zone": "UTC"})
    with pytest.raises(InvalidInputError, match="go by UTC"):
        check_entry(entered, [record(1, 0, of_utc)], 0, BERLIN)


def test_names_by_which_nothing_will_be_priced_are_told() -> None:
    seen = tariff(
        """
[prices]
slice_hour_by_type = { "3G.40GB" = 1, "1g.10gb" = 1 }
[classes.external]
tenants = ["acme", "vision"]
prices = { slice_hour_by_type = { "2g" = 1 } }
[list_prices]
"*" = 1
"vision/chat" = 1
"visio/chat" = 1
[budgets.optics]
amount = 1
"""
    )
    assert unknown_names(seen, {"vision"}, {"1g.10gb"}) == (
        "prices: 3G.40GB",
        "classes.external.prices: 2g",
        "classes.external: acme",
        "budgets: optics",
        "list_prices: visio/chat",
    )


def test_what_a_class_names_goes_before_all_that_stands_in_for_it() -> None:
    # As --example and the how-to say.
    text = """
[prices]
slice_hour_by_type = { "3g.40gb" = 0.4 }
million_prompt_tokens = 0.1
million_cached_prompt_tokens = 0.02
[classes.external]
tenants = ["acme"]
prices = { slice_hour = 0.9, million_prompt_tokens = 0.3 }
"""
    book = book_of((0, tariff(text)))
    (span,) = price_spans(book.records, OCTOBER, OCTOBER + 3600, BERLIN)
    assert slice_hour_price(book, span, "acme", ("3g.40gb",)) == Decimal("0.9")
    assert usage_prices(book, span, "acme")["cached-prompt-tokens"] == Decimal("0.3")
    assert usage_prices(book, span, "vision")["cached-prompt-tokens"] == Decimal("0.02")


def test_what_changes_is_told_key_by_key() -> None:
    entered = read_tariff("t.toml", EXAMPLE, BERLIN)
    found = changes(entered, [record(1, 0, tariff(NIGHTS, slice_hour="0.30"))])
    assert [(change.key, change.before, change.after) for change in found] == [
        ("prices.slice_hour", "0.30", "0.35"),
        ("prices.slice_hour_by_type.3g.40gb", None, "0.40"),
        ("windows.night.begin", "22:00", None),
        ("windows.night.days", "mon-sun", None),
        ("windows.night.end", "06:00", None),
        ("windows.night.factor", "0.5", None),
    ]
