"""Tests a month of a statement: its borders, sums and rows."""

from stand_ins.web_answers import MONTH_S, NOW_S, Answers

from slicewise.slurm_plugin.common.ledger_requests import StatementRequest
from slicewise.slurm_plugin.rules.pages.statement import month_of, monthly_statement, months

DAY_S = 86_400


RUNS = Answers(2).statement(StatementRequest()).rows


def test_months_begin_with_the_zone_s_and_the_newest_is_first():
    known = months(NOW_S, "UTC")
    assert [one.name for one in known[:2]] == ["2026-11", "2026-10"]
    assert (known[0].start_s, known[0].end_s) == (MONTH_S, MONTH_S + 30 * DAY_S)
    assert known[1].end_s == known[0].start_s
    assert months(NOW_S, "Europe/Berlin")[0].start_s == MONTH_S - 3600


def test_a_month_that_may_not_be_chosen_is_the_one_of_now():
    assert month_of("2026-10", NOW_S, "UTC").name == "2026-10"
    for other in ("", "1999-01", "2026-12", "<script>"):
        assert month_of(other, NOW_S, "UTC").name == "2026-11"


def test_sums_by_service_and_tenant_add_up_to_the_runs():
    found = monthly_statement(RUNS, month_of("2026-11", NOW_S, "UTC"))
    used = sum(row.used_millislice_s for row in found.rows)
    assert len(found.rows) == 8
    assert sum(one.used_millislice_s for one in found.lines) == used
    assert sum(one.used_millislice_s for one in found.totals) == used


def test_runs_of_other_months_are_not_in_it():
    assert monthly_statement(RUNS, month_of("2026-10", NOW_S, "UTC")).rows == ()
