"""Tests how figures and their differences are written."""

from dataclasses import replace

import pytest
from simulation_figures import (
    CHANGED,
    CHECK,
    DAY_S,
    HOSTILE,
    PRESENT,
    SERVICE,
    START_S,
    around,
    result,
    tenant,
)

from slicewise.cluster.runtime.console import PipeConsole
from slicewise.simulation.report.tables import (
    figures_table,
    services_table,
    tenants_table,
    trust_table,
)
from slicewise.simulation.rules.report.comparison import MEASURES
from slicewise.simulation.rules.report.figure_rows import (
    figure_rows,
    service_rows,
    tenant_rows,
    trust_rows,
)
from slicewise.simulation.rules.report.figure_texts import (
    chance_text,
    difference_text,
    figure_text,
    span_text,
    trust_text,
    unread_text,
)

BY_FIGURE = {one.figure: one for one in MEASURES}


@pytest.mark.parametrize(
    ("figure", "before", "after", "text"),
    [
        ("utilisation", 0.7, 0.768, "+6.8 points"),
        ("utilisation", 0.7, 0.7001, "0"),
        ("utilisation", 0.7, None, "–"),
        ("wait_mean_s", 660.0, 480.0, "-3 min (-27 %)"),
        ("wait_mean_s", 480.0, 480.2, "0"),
        ("wait_mean_s", 4800.0, 4790.0, "-10 s"),
        ("wait_mean_s", 0.0, 90.0, "+2 min"),
        ("wait_mean_s", 29.0, 90.0, "+1 min"),
        ("wait_mean_s", 30.0, 90.0, "+1 min (+200 %)"),
        ("wait_p99_s", 3600.0, 90_000.0, "+1.0 d (+2,400 %)"),
        ("jain", 0.7, 0.59, "-0.11"),
        ("late_jobs", 3, 1203, "+1,200"),
    ],
)
def test_a_difference_has_its_sign(figure: str, before: float, after: float | None, text: str):
    assert difference_text(BY_FIGURE[figure], before, after) == text


def test_figures_have_units():
    texts = [figure_text(BY_FIGURE[name], 0.5) for name in ("utilisation", "jain", "late_jobs")]
    assert texts == ["50.0 %", "0.50", "0"]
    assert figure_text(BY_FIGURE["wait_mean_s"], None) == "–"
    assert figure_text(BY_FIGURE["utilisation"], -0.0001) == "0.0 %"


def test_the_span_says_what_was_simulated():
    assert span_text(result()) == "30 days of lab, 3,000 jobs, 896 slices; seed 7, 1 part"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(40, "40 s"), (9000, "2.5 h"), (86_000, "1 day"), (3.44 * DAY_S, "3.4 days")],
)
def test_the_length_of_the_time_has_a_unit_that_fits(seconds: float, text: str):
    of = replace(PRESENT, end_s=START_S + seconds, jobs=1)
    assert span_text(replace(result(), present=of)).startswith(f"{text} of lab, 1 job,")


def test_one_line_that_was_not_read_is_no_lines():
    assert unread_text(1, "x", "y") == "1 line of x could not be read: y."
    assert unread_text(2345, "x", "y") == "2,345 lines of x could not be read; the first is y."


def test_trust_says_how_wrong_the_replay_was():
    text = trust_text(CHECK, "")
    assert "half of 98,123 jobs waited in the simulation within 41 s" in text
    assert "93 of 100 pairs that waited at the same time started in the same order" in text
    alone = trust_text(replace(CHECK, queue_order=None), "")
    assert "no two of them ever waited at the same time" in alone
    assert "Its mean wait is wrong by 1 min and its use by 0.8 points" in text


def test_a_replay_far_from_what_happened_promises_no_amount():
    text = trust_text(replace(CHECK, queue_order=0.6), "")
    assert "far from what happened" in text
    assert "smaller differences" not in text


def test_jobs_without_a_start_in_the_replay_are_told():
    assert "no start in the simulation" not in trust_text(CHECK, "")
    text = trust_text(replace(CHECK, never_started=1_234), "")
    assert "1,234 more really started, and have no start in the simulation" in text
    assert "far from what happened" not in text
    many = trust_text(replace(CHECK, never_started=CHECK.jobs), "")
    assert "far from what happened" in many


def test_without_real_starts_nothing_is_known_of_trust():
    text = trust_text(None, "Nobody knows")
    assert text.startswith("Nobody knows, so nothing shows how far")


def test_a_few_jobs_prove_little():
    assert "So few jobs prove little" in trust_text(replace(CHECK, jobs=29), "")
    assert "So few" not in trust_text(replace(CHECK, jobs=30), "")


def test_small_differences_of_one_start_may_be_chance():
    assert "may be chance" in chance_text(result())
    assert "has 0 in it is unclear" in chance_text(result(offsets=3))
    assert "unclear" not in chance_text(result(offsets=3, compared=False))


def shown(table: object) -> list[list[str]]:
    out = PipeConsole()
    with out.capture() as captured:
        out.print(table)
    return [line.split("  ") for line in captured.get().splitlines()]


def cells(table: object) -> list[list[str]]:
    return [[cell.strip() for cell in row if cell.strip()] for row in shown(table)]


def test_the_self_check_is_a_small_table():
    assert cells(trust_table(trust_rows(CHECK))) == [
        ["present policy", "as it was", "simulated", "error"],
        ["wait, mean", "12 min", "11 min", "-1 min (-8 %)"],
        ["wait, 99 % within", "3.3 h", "3.1 h", "-17 min (-8 %)"],
        ["slices in use", "72.0 %", "71.2 %", "-0.8 points"],
    ]


def test_figures_stand_side_by_side_with_a_word():
    rows = cells(figures_table(figure_rows(result())))
    assert rows[0] == ["figure", "present", "changed", "difference"]
    assert rows[1] == ["slices in use", "70.0 %", "78.0 %", "+8.0 points", "better"]
    assert rows[3] == ["wait, mean", "11 min", "8 min", "-3 min (-27 %)", "better"]
    assert rows[-1] == ["late jobs in quota", "0", "0", "0", "same"]


def test_refused_jobs_have_a_row_where_there_are_any():
    some = replace(result(), present=replace(PRESENT, refused=12))
    rows = cells(figures_table(figure_rows(some)))
    assert rows[-1] == ["refused", "12", "0", "-12", "better"]
    alone = replace(result(compared=False), present=replace(PRESENT, refused=12))
    assert cells(figures_table(figure_rows(alone)))[-1] == ["refused", "12"]


def test_intervals_have_a_column_where_there_are_any():
    rows = cells(figures_table(figure_rows(result(offsets=4))))
    assert rows[0][4] == "95 % interval"
    assert rows[1][4:] == ["+7.0 to +9.0 points", "better"]
    assert rows[3][4:] == ["-6 min to +20 s", "unclear"]
    rows = cells(figures_table(figure_rows(result(compared=False, offsets=4))))
    assert rows[1] == ["slices in use", "70.0 %", "69.0 % to 71.0 %"]


def test_without_a_change_there_is_one_figure_each():
    rows = cells(figures_table(figure_rows(result(compared=False))))
    assert rows[1] == ["slices in use", "70.0 %"]
    rows = cells(tenants_table(tenant_rows(result(compared=False))))
    assert rows[0] == ["tenant", "jobs", "wait, mean", "99 % within", "slices", "late jobs"]
    assert rows[-1] == ["vision", "1,000", "41 min", "6.2 h", "300.0", "0"]


def test_tenants_say_who_loses_and_who_gains():
    rows = {row[0]: row for row in cells(tenants_table(tenant_rows(result())))}
    nlp = ["1,000", "4 min → 15 min", "+11 min (+275 %)", "36 min → 2.2 h"]
    assert rows["nlp"][1:] == [*nlp, "100.0 → 80.0", "0 → 12", "loses"]
    assert rows["vision"][-1] == "gains"


def test_a_tenant_with_services_alone_has_no_waits():
    alone = replace(PRESENT, tenants=(tenant("chat", 0.0, jobs=0),))
    rows = cells(tenants_table(tenant_rows(replace(result(compared=False), present=alone))))
    assert rows[-1] == ["chat", "0", "–", "–", "100.0", "0"]


def test_services_have_a_line_by_both_policies():
    changed = replace(SERVICE, attainment=0.94, wait_p99_s=75.0, lost=3)
    of = replace(
        result(),
        present=replace(PRESENT, services=(SERVICE, replace(SERVICE, service="a/b", requests=0))),
        changed=replace(CHANGED, services=(changed,)),
    )
    rows = cells(services_table(service_rows(of)))
    both = ["12,000", "99.1 % → 94.0 %", "1.4 s → 1 min", "200.0", "91", "0 → 3", "loses"]
    assert rows[1][1:] == both
    assert rows[2] == ["a/b", "0", "–", "–", "200.0 → –", "91 → –", "0 → –", "unclear"]


def test_the_share_in_time_has_an_interval_where_there_is_one():
    of = replace(result(compared=False, offsets=4), present=replace(PRESENT, services=(SERVICE,)))
    found = replace(of, service_estimates={HOSTILE: {"attainment": around(0.991, 0.02)}})
    rows = cells(services_table(service_rows(found)))
    assert rows[0][3] == "95 % interval"
    assert rows[1][2:4] == ["99.1 %", "97.1 % to 100.0 %"]
    both = replace(
        found,
        changed=replace(CHANGED, services=(replace(SERVICE, attainment=0.94),)),
        service_difference_estimates={HOSTILE: {"attainment": around(-0.051, 0.06)}},
    )
    rows = cells(services_table(service_rows(both)))
    assert rows[1][2:4] == ["99.1 % → 94.0 %", "-11.1 to +0.9 points"]
    assert rows[1][-1] == "unclear"


def test_by_one_policy_a_service_has_no_verdict():
    of = replace(result(compared=False), present=replace(PRESENT, services=(SERVICE,)))
    rows = cells(services_table(service_rows(of)))
    assert rows[1][1:] == ["12,000", "99.1 %", "1.4 s", "200.0", "91", "0"]
    assert "\u202e" not in rows[1][0]
    assert "\ufffd" in rows[1][0]
    assert HOSTILE.partition("\u202e")[0] in rows[1][0]
