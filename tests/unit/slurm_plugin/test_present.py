from rich.console import Console

from cluster.units import Millislices, MillisliceSeconds
from slurm_plugin import present
from slurm_plugin.decide.model import QuotaChange, Run, RunKey, Statement, StatementRow
from slurm_plugin.decide.statement import open_row, totals


def a_run(tenant: str, job_id: int) -> Run:
    gres = {"3g.40gb": 1, "1g.10gb": 2}
    return Run(RunKey("c", job_id, 1000), tenant, "alice", str(job_id), gres, Millislices(5500))


SETTLED = StatementRow(a_run("vision", 1), 1010, MillisliceSeconds(55_000), MillisliceSeconds(0))
RUNNING = open_row(a_run("nlp", 2), MillisliceSeconds(330_000), 1003)


def shown(renderable: object, width: int = 200) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_a_running_run_has_used_what_passed_and_holds_the_rest():
    assert (RUNNING.end_s, RUNNING.used_millislice_s, RUNNING.reserved_millislice_s) == (
        None,
        16_500,
        313_500,
    )


def test_a_running_run_never_shows_more_than_it_reserved_nor_less_than_nothing():
    run = a_run("vision", 1)
    assert open_row(run, MillisliceSeconds(100), 9999).used_millislice_s == 100
    assert open_row(run, MillisliceSeconds(100), 0).used_millislice_s == 0


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
    assert present.slice_seconds_text(12_345_500) == "12,345.500"
    assert present.slice_seconds_text(1) == "0.001"
    assert present.slice_hours_text(3_600_000 * 7) == "7.00"


def test_gpus_as_people_write_them():
    assert present.gres_text({"3g.40gb": 1, "1g.10gb": 2}) == "2 × 1g.10gb + 3g.40gb"


def test_a_statement_in_integers():
    statement = Statement((SETTLED, RUNNING), totals((SETTLED, RUNNING)))
    content = present.statement_json(statement, 1003)
    first, second = content["runs"]  # type: ignore[misc]
    assert first["used_millislice_s"] == 55_000
    assert (first["cluster"], first["job_id"], first["start_s"], first["end_s"]) == (
        "c",
        1,
        1000,
        1010,
    )
    assert (first["seconds"], second["seconds"], second["end_s"]) == (10, 3, None)
    assert second["reserved_millislice_s"] == 313_500
    assert content["tenants"][0]["tenant"] == "nlp"  # type: ignore[index]


def test_a_statement_for_people():
    text = shown(present.runs_table([SETTLED, RUNNING], 1003))
    assert "55.000" in text
    assert "running" in text
    assert "5.5" in text


def test_what_operators_write_is_not_read_as_markup():
    change = QuotaChange(1, "vision", Millislices(6000), "root", "[bold]loud[/bold] [x", 0)
    line = present.TenantLine(change, 3500, 2, in_force=True)
    assert "[bold]loud[/bold] [x" in shown(present.tenants_table([line]))
    assert "[bold]loud[/bold] [x" in shown(present.history_table([change]))
    assert present.tenant_json(line)["in_use_millislices"] == 3500


def test_a_statement_on_a_narrow_terminal_keeps_times_and_amounts_whole():
    wide, narrow = (shown(present.runs_table([SETTLED, RUNNING], 1003), w) for w in (200, 80))
    start = present.time_text(1000)
    assert start in wide
    assert "seconds" in wide.replace("slice-seconds", "")
    assert start not in narrow
    assert start.partition("-")[2] in narrow
    assert [word for word in ("vision", "running", "55.000") if word not in narrow] == []
    assert "seconds" not in narrow.replace("slice-seconds", "")


def test_a_long_reason_takes_few_lines_of_a_narrow_terminal():
    change = QuotaChange(1, "vision", Millislices(6000), "root", "word " * 24, 0)
    table = present.tenants_table([present.TenantLine(change, 3500, 2, in_force=True)])
    assert len(shown(table, 80).splitlines()) <= 9
    assert len(shown(table, 200).splitlines()) == 5
