"""Commands of tariffs and invoices, against a daemon in the test's process."""

import asyncio
import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from builders.ledger_parts import KeptTariffs
from builders.tariffs import record, tariff
from stand_ins.daemon_in_process import answer_from
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings, sync_of
from typer.testing import CliRunner

from slicewise.cluster.language.units import Millislices
from slicewise.launcher.main import app
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.tariff_desk import TariffDesk
from slicewise.slurm_plugin.cli.commands import invoice
from slicewise.slurm_plugin.cli.commands import tariff as tariff_commands
from slicewise.slurm_plugin.rules.accounting.tariff_file import EXAMPLE
from slicewise.slurm_plugin.rules.accounting.types import (
    Charge,
    Run,
    RunKey,
    Transfer,
    TransferKind,
)

pytestmark = pytest.mark.usefixtures("clock")

NOW_S = 1_764_547_200 + 365 * 86_400
"""2026-12-01 00:00 UTC."""
NIGHT = """
[[windows]]
name = "night"
begin = "22:00"
end = "06:00"
factor = 0.5
"""


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> ScriptedLedger:
    fake, slurm, found = ScriptedLedger(), ScriptedSlurm(), settings()
    for module in (invoice, tariff_commands):
        monkeypatch.setattr(module, "load_settings", lambda: found)
    monkeypatch.setattr(time, "time", lambda: float(NOW_S))
    cluster_state = sync_of(slurm)
    asyncio.run(cluster_state.turn())
    reads = Reads(found, slurm, fake, cluster_state)
    desk = TariffDesk(found, fake, cluster_state, reads)
    answer_from(monkeypatch, {**reads.handlers(), **desk.handlers()})
    fake.tariffs = KeptTariffs()  # type: ignore[misc]
    return fake


def said(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout


def read(*words: str) -> Any:
    return json.loads(said(*words, "--json"))


def a_night_s_run(ledger: ScriptedLedger) -> None:
    """A slice from 20:00 to 22:00 for two hours, and two of the night."""
    start_s = NOW_S - 4 * 3600
    run = Run(
        RunKey("c", 1, start_s), "vision", "alice", "1", {"1g.10gb": 1}, Millislices(1000), "lab"
    )
    steps = [
        Transfer(kind, 4 * 3_600_000, NOW_S) for kind in (TransferKind.RESERVE, TransferKind.POST)
    ]
    ledger.charges.post([Charge(run, 0, tuple(steps))])


def test_a_tariff_is_shown_asked_for_and_entered(ledger: ScriptedLedger, tmp_path: Path) -> None:
    file = tmp_path / "tariff.toml"
    file.write_text(said("tariff", "apply", "--example"))
    assert file.read_text() == EXAMPLE
    shown = said("tariff", "apply", str(file), "--dry-run")
    assert "prices.slice_hour" in shown
    assert "0.35" in shown
    assert ledger.tariffs.records() == ()
    assert CliRunner().invoke(app, ("tariff", "apply", str(file))).exit_code != 0
    assert ledger.tariffs.records() == ()
    told = said("tariff", "apply", str(file), "--yes", "--reason", "prices of 2027")
    assert "Entered: it holds from 2027-01-01 00:00 on." in told
    (entered,) = ledger.tariffs.records()
    assert entered.reason == "prices of 2027"
    again = read("tariff", "apply", str(file), "--dry-run")
    assert (again["changes"], again["replaces"], again["tariff_id"]) == ([], True, None)
    assert "No tariff holds now" in said("tariff", "show")
    coming = said("tariff", "show")
    assert "From 2027-01-01 00:00 on:" in coming
    assert ["prices.slice_hour", "0.35"] in [line.split() for line in coming.splitlines()]
    assert "prices of 2027" in said("tariff", "history")


def test_what_holds_is_shown_with_the_hours_of_windows(ledger: ScriptedLedger) -> None:
    ledger.tariffs = KeptTariffs(record(1, 0, tariff(NIGHT)), record(2, NOW_S + 10**6, tariff()))  # type: ignore[misc]
    shown = said("tariff", "show")
    assert "windows.night.factor" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["night", "tue", "2026-12-01", "22:00", "2026-12-02", "06:00", "0.5"] in lines
    found = read("tariff", "show")
    assert found["in_force"]["tariff"]["prices"]["slice_hour"] == "0.36"
    assert [each["tariff_id"] for each in found["coming"]] == [2]


def test_each_tariff_to_come_is_shown_by_what_it_changes(ledger: ScriptedLedger) -> None:
    day_s = 86_400
    ledger.tariffs = KeptTariffs(  # type: ignore[misc]
        record(1, 0, tariff()),
        record(2, NOW_S + day_s, tariff(slice_hour="9")),
        record(3, NOW_S + day_s, tariff(slice_hour="0.5")),
        record(4, NOW_S + 2 * day_s, tariff(slice_hour="0.5")),
        record(5, NOW_S + 3 * day_s, tariff(NIGHT, slice_hour="0.6")),
    )
    lines = [line.split() for line in said("tariff", "show").splitlines()]
    assert ["prices.slice_hour", "0.36", "0.5"] in lines
    assert ["prices.slice_hour", "0.5", "0.6"] in lines
    assert ["windows.night.factor", "0.5"] in lines
    assert lines.count(["It", "changes", "nothing."]) == 1
    assert not any("9" in line for line in lines)


def test_a_wrong_file_changes_nothing(ledger: ScriptedLedger, tmp_path: Path) -> None:
    file = tmp_path / "tariff.toml"
    file.write_text(EXAMPLE.replace("slice_hour = 0.35", "slice_hour = -1"))
    result = CliRunner().invoke(app, ("tariff", "apply", str(file), "--yes"))
    assert result.exception is not None
    assert "SW-INPUT-FILE" in str(result.exception)
    assert ledger.tariffs.records() == ()


def test_an_invoice_adds_up_and_says_what_is_to_pay(ledger: ScriptedLedger) -> None:
    ledger.tariffs = KeptTariffs(record(1, 0, tariff(NIGHT, slice_hour="0.123457")))  # type: ignore[misc]
    a_night_s_run(ledger)
    words = ("ledger", "invoice", "--month", "2026-11")
    found = read(*words)
    (line,) = found["lines"]
    assert (line["payer"], line["key"], line["millislice_s"]) == ("lab", "", 4 * 3_600_000)
    assert line["millionths"] == 2 * 123_457 + 123_457
    assert found["payables"] == [
        {
            "payer": "lab",
            "millionths": 370_371,
            "rounding_millionths": -371,
            "payable": "0.37",
        }
    ]
    for by in ("person", "tenant", "day", "month"):
        assert sum(each["millionths"] for each in read(*words, "--by", by)["lines"]) == 370_371
    shown = said(*words)
    assert "2026-11, EUR" in shown
    assert "0.370371" in shown
    assert "other jobs" in shown
    (row,) = csv.DictReader(io.StringIO(said(*words, "--csv", "--tenant", "vision")))
    assert row == {
        "month": "2026-11",
        "currency": "EUR",
        "payer": "lab",
        "key": "",
        "millislice_s": "14400000",
        "requests": "0",
        "prompt_tokens": "0",
        "cached_prompt_tokens": "0",
        "output_tokens": "0",
        "millionths": "370371",
        "priced_tokens": "0",
        "list_millionths": "",
        "listed_tokens": "0",
        "energy_mj": "0",
        "payer_payable": "0.37",
    }
    assert "Nothing was used." in said("ledger", "invoice", "--month", "2026-10")
    assert CliRunner().invoke(app, ("ledger", "invoice", "--month", "2026-13")).exit_code == 2
