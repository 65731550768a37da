import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from printed_text import printed_text

from slicewise.cluster.language.meters import SLICES, TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.runtime.console import plain, time_text
from slicewise.slurm_plugin.cli.views import budgets, ledger, tenants
from slicewise.slurm_plugin.cli.views.texts import slice_hours_text, slice_seconds_text
from slicewise.slurm_plugin.rules.accounting.overview import (
    Details,
    TenantStatus,
    token_budget_status,
)
from slicewise.slurm_plugin.rules.accounting.run_csv import gres_text, run_line, runs_csv
from slicewise.slurm_plugin.rules.accounting.statement import Day, by_day, by_user, open_row, totals
from slicewise.slurm_plugin.rules.accounting.types import (
    BalanceLine,
    BudgetEntry,
    InvoiceLine,
    Reservation,
    Run,
    RunKey,
    StatementRow,
)
from slicewise.slurm_plugin.rules.pages.words import amount_text
from slicewise.slurm_plugin.rules.quota.quota_texts import budget_text
from slicewise.slurm_plugin.rules.quota.standings import Standing
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
    Budget,
    Loan,
    Quota,
    QuotaChange,
    Tenant,
    TenantUpdate,
)

_GRES = {"3g.40gb": 1, "1g.10gb": 2}


def a_run(tenant: str, job_id: int) -> Run:
    key = RunKey("c", job_id, 1000)
    return Run(key, tenant, "alice", str(job_id), _GRES, Millislices(5500), payer=tenant)


def held(job_id: int, reserved: int, posted: int = 0) -> Reservation:
    run = a_run("nlp", job_id)
    fields = {name: getattr(run, name) for name in run.__dataclass_fields__}
    amounts = (MillisliceSeconds(reserved), MillisliceSeconds(posted))
    return Reservation(
        **fields, reserved_millislice_s=amounts[0], posted_millislice_s=amounts[1], transfers=1
    )


NOTHING = MillisliceSeconds(0)
SETTLED = StatementRow(a_run("vision", 1), 1010, MillisliceSeconds(55_000), NOTHING, NOTHING)
WAIVED = StatementRow(a_run("vision", 3), 1010, NOTHING, MillisliceSeconds(55_000), NOTHING)
RUNNING = open_row(held(2, 330_000), 1003)


def test_a_running_run_has_used_what_passed_and_holds_the_rest():
    assert (RUNNING.end_s, RUNNING.used_millislice_s, RUNNING.reserved_millislice_s) == (
        None,
        16_500,
        313_500,
    )


def test_totals_add_up_by_tenant():
    first, second = totals([SETTLED, RUNNING, SETTLED])
    assert (first.tenant, first.runs, first.running, first.used_millislice_s) == (
        "nlp",
        1,
        1,
        16_500,
    )
    assert (second.tenant, second.runs, second.running, second.used_millislice_s) == (
        "vision",
        2,
        0,
        110_000,
    )


def test_slice_seconds_are_shown_to_the_last_thousandth():
    assert slice_seconds_text(12_345_500) == "12,345.500"
    assert slice_seconds_text(1) == "0.001"
    assert slice_hours_text(3_600_000 * 7) == "7.00"


def test_gpus_as_people_write_them():
    assert gres_text({"3g.40gb": 1, "1g.10gb": 2}) == "2 × 1g.10gb + 3g.40gb"


def shown(rows: Sequence[StatementRow]) -> Any:
    return plain(
        ledger.StatementShown(
            now_s=1003,
            by="user",
            lines=by_user(rows),
            tenants=totals(rows),
        )
    )


def test_a_statement_in_integers():
    rows = (SETTLED, RUNNING)
    content = shown(rows)
    first, second = (plain(run_line(row, 1003)) for row in rows)
    assert first["used_millislice_s"] == 55_000
    assert (first["cluster"], first["job_id"], first["start_s"], first["end_s"]) == (
        "c",
        1,
        1000,
        1010,
    )
    assert (first["seconds"], second["seconds"], second["end_s"]) == (10, 3, None)
    assert second["reserved_millislice_s"] == 313_500
    assert content["tenants"][0]["tenant"] == "nlp"


def test_a_statement_for_people():
    text = printed_text(ledger.runs_table([SETTLED, RUNNING], 1003))
    assert "55.000" in text
    assert "running" in text
    assert "5.5" in text


def test_a_statement_on_a_narrow_terminal_keeps_times_and_amounts_whole():
    wide, narrow = (printed_text(ledger.runs_table([SETTLED, RUNNING], 1003), w) for w in (200, 80))
    start = time_text(1000)
    assert start in wide
    assert "seconds" in wide.replace("slice-seconds", "")
    assert start not in narrow
    assert start.partition("-")[2] in narrow
    assert [word for word in ("vision", "running", "55.000") if word not in narrow] == []
    assert "seconds" not in narrow.replace("slice-seconds", "")


def test_waived_use_has_a_column_only_where_there_is_some():
    assert "waived" not in printed_text(ledger.runs_table([SETTLED], 1003))
    assert "waived" in printed_text(ledger.runs_table([SETTLED, WAIVED], 1003))
    assert "waived" in printed_text(ledger.totals_table(totals([SETTLED, WAIVED])))


def test_a_statement_as_csv_has_the_same_integers_as_json():
    rows = (SETTLED, RUNNING)
    first, second = csv.DictReader(io.StringIO(runs_csv(rows, 1003)))
    assert first["used_millislice_s"] == "55000"
    assert (second["gres"], second["end_s"]) == ("2 × 1g.10gb + 3g.40gb", "")
    assert list(first) == list(plain(run_line(rows[0], 1003)))
    lines = by_user(rows)
    content = shown(rows)
    in_csv = list(csv.DictReader(io.StringIO(ledger.lines_csv(lines, InvoiceLine))))
    assert [{name: str(value) for name, value in line.items()} for line in content["lines"]] == (
        in_csv
    )
    assert in_csv[1]["key"] == "alice"


def test_an_invoice_is_whole_on_a_narrow_terminal():
    lines = by_day([SETTLED, WAIVED, RUNNING], [Day(0, "1970-01-01")])
    for width in (80, 120):
        said = printed_text(ledger.invoice_table(lines, "day"), width)
        assert [
            word for word in ("vision", "1970-01-01", "slice-hours", "0.02") if word not in said
        ] == []
        assert "…" not in said


# Tenants


def standing(tenant: Tenant, depth: int = 0, in_use: int = 3500) -> TenantStatus:
    amounts = Standing(Millislices(5000), Millislices(5000), Millislices(1000), Millislices(0))
    return TenantStatus(
        **vars(amounts),
        tenant=tenant.name,
        parent=tenant.parent,
        quota=tenant.quota,
        budget=tenant.budget,
        depth=depth,
        nominal_millislices=tenant.quota.nominal_millislices,
        in_use_millislices=in_use,
        own_in_use_millislices=in_use,
        running=2,
        payer=tenant.name,
        left_millislice_s=None,
        in_slurm=True,
    )


QUOTA = Quota(
    Millislices(6000),
    borrowing_limit_millislices=MAX_NOMINAL_MILLISLICES,
    weight=3,
    type_limits={"3g.40gb": 2},
    model_limits={"H200-141GB": Millislices(7000)},
)
VISION = Tenant("vision", "physics", QUOTA)
RULE = Budget(Period.MONTH, MillisliceSeconds(3_600_000_000), MAX_BUDGET_MILLISLICE_S)


def change(reason: str, **fields: object) -> QuotaChange:
    update = TenantUpdate("vision", nominal_millislices=Millislices(6000), **fields)  # type: ignore[arg-type]
    return QuotaChange(1, update, "root", reason, 0)


def details(reason: str = "") -> Details:
    loans = (Loan("vision", "nlp", Millislices(1000)),)
    return Details(
        **vars(standing(VISION)),
        children=(),
        loans=loans,
        resets_s=None,
        last_change=change(reason),
        in_force=True,
    )


def test_the_tree_is_drawn_by_indents_and_marks_who_is_above_his_limit():
    lines = [standing(Tenant("physics", "", QUOTA)), standing(VISION, depth=1, in_use=5001)]
    text = printed_text(tenants.tree_table(lines))
    assert " physics " in text
    assert "   vision " in text
    assert "5.001" in text


def test_what_operators_write_is_not_read_as_markup():
    loud = "[bold]loud[/bold] [x"
    assert loud in printed_text(tenants.history_table([change(loud)]))
    assert loud in printed_text(tenants.details_table(details(loud)))


def test_a_history_row_says_what_it_changed_and_nothing_else():
    text = tenants.change_text(change("").update)
    assert text == "nominal 6 slices"
    all_of_it = change(
        "", parent="", weight=2, type_limits={}, type_nominals={"a100": 1}, budget="off"
    ).update
    assert tenants.change_text(all_of_it) == (
        "nominal 6 slices, weight 2, types unlimited, guaranteed by type 1 × a100, parent none,"
        " budget none"
    )
    assert tenants.change_text(change("", removed=True).update) == "deleted"


def test_everything_of_a_tenant_fits_on_a_screen():
    text = printed_text(tenants.details_table(details("because")), 80)
    words = ("below physics", "lends 1 to nlp", "5 slices", "unlimited", "(because)")
    assert [word for word in words if word not in text] == []
    assert len(text.splitlines()) <= 20


def test_a_tenant_as_values():
    found = plain(details())
    assert (found["nominal_millislices"], found["in_force"]) == (6000, True)
    assert found["loans"] == [
        {"lender": "vision", "borrower": "nlp", "amount_millislices": 1000},
    ]


def test_a_long_reason_takes_few_lines_of_a_narrow_terminal():
    table = tenants.history_table([change("word " * 24)])
    assert len(printed_text(table, 80).splitlines()) <= 9
    assert len(printed_text(table, 200).splitlines()) == 5


# Budgets and balances


def test_a_budgets_history_mixes_rules_and_entries_the_newest_first():
    entry = BudgetEntry("vision", "grant", 3_600_000, None, "root", "paper", at_s=5)
    events = budgets.events([change("start", budget=RULE), change("quota only")], [entry])
    assert [(event.kind, event.amount) for event in events] == [
        ("grant", 3_600_000),
        ("rule", None),
    ]
    assert "paper" in printed_text(budgets.events_table(events))


def balance_line(left: int | None, granted: int) -> BalanceLine:
    amounts = (MillisliceSeconds(3_600_000 * hours) for hours in (granted, -2, 4, 8, 0))
    return BalanceLine("vision", SLICES.name, *amounts, left)


def test_a_tenant_without_a_budget_shows_no_debt():
    assert "-2.00" in printed_text(ledger.balances_table([balance_line(0, granted=10)]))
    assert "-2.00" not in printed_text(ledger.balances_table([balance_line(None, granted=0)]))
    assert plain(balance_line(None, granted=0))["available"] == -7_200_000


def test_balances_of_tokens_stand_in_tokens_below_those_of_slice_hours():
    tokens = BalanceLine("vision", TOKENS.name, 2_000_000, 1_500_000, 0, 500_000, 0, 1_500_000)
    of_slices = balance_line(None, granted=0)
    assert "tokens" not in printed_text(ledger.balances_table([of_slices]))
    text = printed_text(ledger.balances_table([of_slices, tokens]))
    assert all(word in text for word in ("slice-hours", "tokens", "2,000,000", "1,500,000", "8.00"))


def test_of_a_meter_that_a_newer_daemon_has_amounts_are_plain_numbers():
    energy = BalanceLine("vision", "joules", 2_000_000, 1_500_000, 0, 500_000, 0, 1_500_000)
    text = printed_text(ledger.balances_table([energy]))
    assert all(word in text for word in ("joules", "2,000,000", "1,500,000"))
    assert budget_text(Budget(Period.MONTH, 7_000, meter="joules")) == "7,000 joules a month"
    assert amount_text(7_000, "joules") == "7,000 joules"


def test_a_tenants_budget_of_tokens_is_shown_with_who_pays():
    def shown(payer: str, left: int | None) -> str:
        budget = Budget(Period.MONTH, 2_000_000, 0, 0, TOKENS.name)
        status = token_budget_status(payer, budget, left, None, now_s=0, zone="UTC")
        return printed_text(tenants.details_table(replace(details(), token_budget=status)))

    assert "1,500 left of 2,000,000 tokens a month; resets 1970-02-01" in shown("vision", 1500)
    assert "-5 left of 2,000,000 tokens a month; science pays; resets" in shown("science", -5)
    assert "begins when the daemon runs" in shown("vision", None)
    assert "tokens" not in printed_text(tenants.details_table(details()))
