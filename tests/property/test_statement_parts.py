"""Property: statements of parts of time add up to the statement of the whole."""

from dataclasses import replace
from itertools import pairwise

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.charge_lines import run_lines
from slicewise.slurm_plugin.rules.accounting.statement import (
    Day,
    by_day,
    by_service,
    by_user,
    open_row,
    part,
    totals,
)
from slicewise.slurm_plugin.rules.accounting.tariff import PriceBook, PriceSpan
from slicewise.slurm_plugin.rules.accounting.types import (
    Reservation,
    Run,
    RunKey,
    ShareLine,
    StatementRow,
)

NOW_S, LONG_AGO_S = 1000, -(10**9)


def settled(job_id: int, start_s: int, seconds: int, cost: int, *, waived: bool) -> StatementRow:
    run = Run(RunKey("c", job_id, start_s), "t", "u", "1", {}, Millislices(cost), "t")
    amounts = (0, cost * seconds) if waived else (cost * seconds, 0)
    used, given_up = map(MillisliceSeconds, amounts)
    return StatementRow(run, start_s + seconds, used, given_up, MillisliceSeconds(0))


def running(job_id: int, start_s: int, limit_s: int, posted_s: int, cost: int) -> StatementRow:
    posted, left = cost * posted_s, cost * max(1, limit_s - posted_s)
    amounts = map(MillisliceSeconds, (left, posted))
    key = RunKey("c", job_id, start_s)
    return open_row(Reservation(key, "t", "u", "1", {}, Millislices(cost), "t", *amounts, 2), NOW_S)


ids, costs = st.integers(1, 5), st.integers(1, 5000)
starts, lengths = st.integers(0, NOW_S), st.integers(0, 500)
rows_of_any = st.lists(
    st.builds(settled, ids, starts, lengths, costs, waived=st.booleans())
    | st.builds(running, ids, starts, lengths, lengths, costs),
    max_size=8,
)


@settings(max_examples=examples(100, nightly=6000), deadline=None)
@given(rows_of_any, st.lists(st.integers(-10, 2 * NOW_S), max_size=6))
def test_any_parts_of_time_add_up_to_the_whole(rows: list[StatementRow], cuts: list[int]) -> None:
    bounds = [LONG_AGO_S, *sorted(cuts)]
    parts = [one for begin, end in pairwise(bounds) for one in part(rows, begin, end)]
    parts += part(rows, bounds[-1], None)
    for name in ("used_millislice_s", "waived_millislice_s", "reserved_millislice_s"):
        assert sum(getattr(one, name) for one in parts) == sum(getattr(one, name) for one in rows)
    assert {one.run.key for one in parts} == {one.run.key for one in rows}
    whole = part(rows, LONG_AGO_S, None)
    assert totals(whole) == totals(rows)


days = st.lists(st.integers(1, 2 * NOW_S), max_size=6, unique=True).map(sorted)


@settings(max_examples=examples(100, nightly=6000), deadline=None)
@given(rows_of_any, days)
def test_lines_add_up_to_the_totals(rows: list[StatementRow], midnights: list[int]) -> None:
    calendar = [Day(at_s, f"{at_s:05}") for at_s in (0, *midnights)]
    (whole,) = totals(rows) or (None,)
    for lines in (by_service(rows), by_user(rows), by_day(rows, calendar)):
        for name in ("used_millislice_s", "waived_millislice_s", "reserved_millislice_s"):
            assert sum(getattr(one, name) for one in lines) == getattr(whole, name, 0)
    assert all(
        [line.used_millislice_s for line in by_day(rows, calendar) if line.key == day.text]
        == [one.used_millislice_s for one in totals(part(rows, day.start_s, next_s))]
        for day, next_s in pairwise([*calendar, None])
        for next_s in [next_s.start_s if next_s else None]
    )


AMOUNTS = "used_millislice_s", "waived_millislice_s", "reserved_millislice_s", "runs", "running"


@settings(max_examples=examples(100, nightly=6000), deadline=None)
@given(rows_of_any, days, st.integers(0, 2 * NOW_S), st.none() | st.integers(1, 3 * NOW_S))
def test_days_of_a_part_of_time_are_the_days_on_which_the_use_was(
    rows: list[StatementRow], midnights: list[int], from_s: int, until_s: int | None
) -> None:
    calendar = [Day(at_s, f"{at_s:05}") for at_s in (0, *midnights)]
    lines = by_day(rows, calendar, from_s, until_s)
    for day, following in pairwise([*calendar, None]):
        begin_s = max(day.start_s, from_s)
        ends = {at_s for at_s in (following and following.start_s, until_s) if at_s is not None}
        end_s = min(ends, default=None)
        then = part(rows, begin_s, end_s) if end_s is None or begin_s < end_s else ()
        assert [
            [getattr(one, name) for name in AMOUNTS] for one in lines if one.key == day.text
        ] == [[getattr(one, name) for name in AMOUNTS] for one in totals(then)]


@settings(max_examples=examples(100, nightly=6000), deadline=None)
@given(rows_of_any, days, st.integers(0, 2 * NOW_S), st.integers(1, 3 * NOW_S))
def test_what_is_billed_adds_up_to_what_was_used_then(
    rows: list[StatementRow], midnights: list[int], from_s: int, lasting_s: int
) -> None:
    calendar = [Day(at_s, f"{at_s:05}") for at_s in (0, *midnights)]
    until_s = from_s + lasting_s
    cut = [max(from_s, min(day.start_s, until_s)) for day in calendar] + [until_s]
    spans = [
        PriceSpan(start_s, end_s, day.text, None)
        for day, (start_s, end_s) in zip(calendar, pairwise(cut), strict=True)
        if start_s < end_s
    ]
    lines = run_lines(rows, spans, PriceBook((), {}, "UTC"))
    (total,) = totals(part(rows, from_s, until_s)) or (None,)
    assert sum(one.amount for one in lines) == getattr(total, "used_millislice_s", 0)
    bounds = {from_s, until_s, *midnights}
    assert all({one.of.start_s, one.of.end_s} <= bounds for one in lines)
    assert all(from_s <= one.of.start_s < one.of.end_s <= until_s for one in lines)


def a_share(day: int, tenant: str, service: str, shared: int, relieved: int) -> ShareLine:
    amounts = MillisliceSeconds(shared), MillisliceSeconds(relieved)
    return ShareLine(day * 100, f"day {day}", tenant, "p", service, *amounts, 3, 50, 20, 7)


tenants = st.sampled_from(("t", "u"))
shares_of_any = st.lists(
    st.builds(
        a_share,
        st.integers(0, 9),
        tenants,
        st.sampled_from(("t/chat", "u/chat", "u/code")),
        st.integers(0, 1000),
        st.integers(0, 1000),
    ),
    max_size=8,
)


@settings(max_examples=examples(100, nightly=6000), deadline=None)
@given(rows_of_any, shares_of_any)
def test_shares_add_up_in_every_line(rows: list[StatementRow], shares: list[ShareLine]) -> None:
    calendar = [Day(number * 100, f"day {number}") for number in range(20)]
    whole = totals(rows, shares)
    charged = {total.tenant: total.charged_millislice_s for total in whole}
    for lines in (
        by_service(rows, shares),
        by_user(rows, shares),
        by_day(rows, calendar, shares=shares),
    ):
        for total in whole:
            mine = [line for line in lines if line.tenant == total.tenant]
            assert sum(line.charged_millislice_s for line in mine) == charged[total.tenant]
            assert sum(line.output_tokens for line in mine) == total.output_tokens
    for total in whole:
        assert total.charged_millislice_s == (
            total.used_millislice_s - total.relieved_millislice_s + total.shared_millislice_s
        )


@settings(max_examples=examples(100, nightly=6000), deadline=None)
@given(
    rows_of_any,
    st.lists(st.tuples(st.integers(0, 9), st.integers(-1000, 1000), st.integers(0, 1)), max_size=8),
)
def test_what_services_of_a_pool_used_of_each_other_changes_their_lines_alone(
    rows: list[StatementRow], moves: list[tuple[int, int, int]]
) -> None:
    moved = [
        replace(
            a_share(day, "t", f"t/{name}", 0, 0),
            requests=requests if name == "chat" else 0,
            pooled_millislice_s=amount,
        )
        for day, more, requests in moves
        for name, amount in (("chat", MillisliceSeconds(more)), ("code", MillisliceSeconds(-more)))
    ]
    calendar = [Day(number * 100, f"day {number}") for number in range(20)]
    used = sum(row.used_millislice_s for row in rows)
    assert sum(total.charged_millislice_s for total in totals(rows, moved)) == used
    services = {line.key: line.charged_millislice_s for line in by_service(rows, moved)}
    assert sum(services.values()) == used
    assert services.get("chat", 0) == sum(more for _, more, _ in moves) == -services.get("code", 0)
    assert by_user(rows, [share for share in moved if share.is_in_pool]) == by_user(rows)
    assert sum(line.charged_millislice_s for line in by_user(rows, moved)) == used
    assert sum(line.charged_millislice_s for line in by_day(rows, calendar, shares=moved)) == used


def test_another_s_service_has_its_owner_s_name_and_the_own_one_has_none() -> None:
    lines = by_service((), [a_share(1, "t", "u/chat", 5, 0), a_share(1, "u", "u/chat", 0, 5)])
    assert [(line.tenant, line.key, line.charged_millislice_s) for line in lines] == [
        ("t", "u/chat", 5),
        ("u", "chat", -5),
    ]


def test_the_days_of_a_long_run_from_a_later_day_on() -> None:
    calendar = [Day(number * 10, f"day {number}") for number in range(10)]
    rows = [settled(1, 0, 100, 1, waived=False)]
    lines = by_day(rows, calendar, from_s=85, until_s=99)
    assert [(one.key, one.used_millislice_s) for one in lines] == [("day 8", 5), ("day 9", 9)]


def test_a_line_for_each_user_and_day() -> None:
    rows = [settled(1, 100, 60, 1000, waived=False), settled(2, 150, 10, 500, waived=True)]
    first, second = by_day(rows, [Day(0, "2026-01-31"), Day(140, "2026-02-01")])
    assert (first.key, first.runs, first.used_millislice_s) == ("2026-01-31", 1, 40_000)
    assert (second.key, second.runs, second.used_millislice_s) == ("2026-02-01", 2, 20_000)
    assert second.waived_millislice_s == 5000
    chat = replace(rows[0], service="chat")
    assert [(one.key, one.used_millislice_s) for one in by_service([chat, rows[1]])] == [
        ("", 0),
        ("chat", 60_000),
    ]
    bobs = replace(rows[1], run=replace(rows[1].run, user="bob"))
    assert [(one.key, one.runs) for one in by_user([bobs, rows[0]])] == [("bob", 1), ("u", 1)]


def test_a_run_over_the_end_of_a_month_is_in_both() -> None:
    row = settled(1, 100, 60, 1000, waived=False)
    before, after = part([row], 0, 140), part([row], 140, 200)
    assert [one.used_millislice_s for one in (*before, *after)] == [40_000, 20_000]
    assert part([row], 160, 200) == part([row], 0, 100) == ()


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(settled(1, 140, 0, 1000, waived=False), id="a run without length"),
        pytest.param(settled(1, 140, 0, 1000, waived=True), id="a waived run without length"),
        pytest.param(running(1, NOW_S, 60, 0, 1000), id="a run that has only just begun"),
    ],
)
def test_a_run_in_the_second_of_a_boundary_is_in_the_later_month_alone(row: StatementRow) -> None:
    boundary_s = row.run.key.start_s
    assert part([row], 0, boundary_s) == ()
    assert part([row], boundary_s, boundary_s + 100) == (row,)


def test_what_a_run_has_reserved_is_in_the_month_that_begins_now_alone() -> None:
    row = running(1, NOW_S - 60, 100, 0, 1000)
    before, after = part([row], 0, NOW_S), part([row], NOW_S, None)
    assert [(one.used_millislice_s, one.reserved_millislice_s) for one in before] == [(60_000, 0)]
    assert [(one.used_millislice_s, one.reserved_millislice_s) for one in after] == [(0, 40_000)]
