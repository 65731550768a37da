"""Tests what is asked of the daemon how often, and how pages of an answer are put together."""

import asyncio
from dataclasses import replace

import pytest
from stand_ins.scripted import settings
from stand_ins.web_answers import Answers
from waiting import until_true

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import BUDGETED
from slicewise.cluster.rpc.overview_messages import OverviewRequest
from slicewise.slurm_plugin.common.ledger_requests import (
    StatementAnswer,
    StatementRequest,
    TenantsAnswer,
    TenantsRequest,
)
from slicewise.slurm_plugin.common.tariff_requests import (
    ChargeCursor,
    ChargesAnswer,
    ChargesRequest,
)
from slicewise.slurm_plugin.page import daemon_reads
from slicewise.slurm_plugin.page.daemon_reads import DaemonReads, SummedCharges, joined

pytestmark = pytest.mark.usefixtures("clock")


def reads(made: Answers) -> DaemonReads:
    one = DaemonReads(settings().daemon)
    one._asked = made.ask  # type: ignore[method-assign]
    return one


async def test_what_two_ask_at_once_is_asked_once_for_each_user():
    made = Answers()
    one = reads(made)
    await asyncio.gather(*(one.ask(user, OverviewRequest()) for user in ("a", "a", "b")))
    assert [user for user, _ in made.asked] == ["a", "b"]


async def test_a_refusal_is_not_kept():
    made = Answers()
    one = reads(made)
    made.refused[OverviewRequest] = InvalidInputError("SW-FORBIDDEN", "No.")
    with pytest.raises(InvalidInputError):
        await one.ask("a", OverviewRequest())
    made.refused.clear()
    await one.ask("a", OverviewRequest())


async def test_the_tree_of_tenants_is_put_together():
    found = await reads(Answers(1200)).whole("a", TenantsRequest())
    assert isinstance(found, TenantsAnswer)
    assert len(found.tenants) == 1200
    assert found.more is None


def test_two_pages_are_one_tree_with_each_budget_once():
    first, second = (Answers(600).tenants(TenantsRequest(after=after)) for after in (0, 500))
    both = joined(first, second.model_copy(update={"budgets": first.budgets[:1]}))
    assert isinstance(both, TenantsAnswer)
    assert len(both.tenants) == 600
    assert len(both.loans) == len(first.loans) + len(second.loans)
    assert len(both.budgets) == len(first.budgets)
    assert set(both.budgets) == set(first.budgets)
    assert both.more is None


def test_of_two_pages_budgets_of_slices_come_before_those_of_tokens():
    answer = Answers(600).tenants(TenantsRequest())
    slices, tokens = (
        next(status for status in answer.budgets if status.budget.meter == meter)
        for meter in BUDGETED
    )
    pages = (
        answer.model_copy(
            update={"budgets": (replace(slices, tenant=name), replace(tokens, tenant=name))}
        )
        for name in ("a", "b")
    )
    both = joined(*pages)
    assert isinstance(both, TenantsAnswer)
    shown = [(status.budget.meter, status.tenant) for status in both.budgets]
    assert shown == [(meter, name) for meter in BUDGETED for name in ("a", "b")]


def test_pages_of_a_statement_are_put_together_in_their_order():
    one, after = (Answers(tenants).statement(StatementRequest()) for tenants in (2, 3))
    both = joined(one, after)
    assert isinstance(both, StatementAnswer)
    assert both.rows == one.rows + after.rows
    assert both.more == after.more


async def test_a_statement_ends_where_it_is_too_long_and_says_so():
    made = Answers(10_000)
    found = await reads(made).whole("a", StatementRequest())
    assert isinstance(found, StatementAnswer)
    assert len(found.rows) == 20_000
    assert found.more is not None


async def test_long_answers_that_are_read_once_take_no_memory(monkeypatch: pytest.MonkeyPatch):
    one = reads(Answers())
    await one.whole("a", StatementRequest())
    assert not one._kept
    monkeypatch.setattr(daemon_reads, "_FRESH_S", -60.0)
    monkeypatch.setattr(daemon_reads, "_FRESH_FOR_S", {TenantsRequest: -60.0})
    await one.ask("a", OverviewRequest())
    await one.ask("b", OverviewRequest())
    assert len(one._kept) <= 1


def charges_of(day: int) -> ChargesRequest:
    return ChargesRequest.of(since_s=day * 86_400, until_s=(day + 1) * 86_400)


async def test_charges_are_added_up_once_for_all_who_look_again():
    one = reads(Answers(3))
    first, again = [await one.whole("a", charges_of(1)) for _ in range(2)]
    assert isinstance(first, SummedCharges)
    assert again is first
    assert {owed.payer for owed in first.invoice.payables} == {"vision", "nlp", "speech"}
    assert "invoice" not in first.model_dump()


async def test_of_charges_that_are_cut_no_part_is_added_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(daemon_reads._MOST_PAGES, ChargesRequest, 2)
    made = Answers(3)
    whole = made.charges

    def first(request: ChargesRequest) -> ChargesAnswer:
        after = ChargeCursor(part="shares", now_s=1)
        return whole(request).model_copy(update={"more": after})

    made.charges = first  # type: ignore[method-assign]
    found = await reads(made).whole("a", charges_of(1))
    assert isinstance(found, SummedCharges)
    assert found.more is not None
    assert (found.lines, found.invoice.payables) == ((), ())
    assert len(found.budgets) == 1


async def test_of_many_long_answers_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch):
    made = Answers(3)
    lines = len(made.charges(charges_of(0)).lines)
    monkeypatch.setattr(daemon_reads, "_KEPT_LINES", 2 * lines)
    one = reads(made)
    await one.ask("a", OverviewRequest())
    for day in range(4):
        await one.whole("a", charges_of(day))
    assert sorted(kept.lines for kept in one._kept.values()) == [0, lines, lines]
    asked = len(made.asked)
    await one.whole("a", charges_of(3))
    assert len(made.asked) == asked


async def test_a_long_answer_goes_when_nobody_gets_it_any_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(daemon_reads, "_FRESH_FOR_S", {ChargesRequest: 0.05})
    one = reads(Answers(3))
    await one.whole("a", charges_of(0))
    assert await until_true(lambda: not one._kept)
