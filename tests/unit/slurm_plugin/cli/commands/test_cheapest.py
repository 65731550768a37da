"""What ``slicewise cheapest`` says, against a daemon in the test's process."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from builders.ledger_parts import KeptTariffs
from builders.tariffs import record, tariff
from stand_ins.daemon_in_process import answer_from
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings, sync_of
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.settings.energy import EnergySettings
from slicewise.launcher.main import app
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.cli.commands import cheapest

NOW_S = 1_764_547_200 + 365 * 86_400 + 12 * 3600
"""2026-12-01 12:00 UTC."""
NIGHT = """
[[windows]]
name = "night"
begin = "22:00"
end = "06:00"
factor = 0.5
"""
JOB = ("--time", "4:00:00", "--deadline", "2026-12-02T08:00", "--gres", "gpu:3g.40gb:1")
HOURS = "time,g_per_kwh\n" + "".join(
    f"2026-12-{1 + hour // 24:02}T{hour % 24:02}:00:00Z,{100 if 18 <= hour < 24 else 400}\n"
    for hour in range(36)
)


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: object) -> ScriptedLedger:
    file = tmp_path / "grams.csv"
    file.write_text(HOURS, encoding="utf-8")
    fake, slurm = ScriptedLedger(), ScriptedSlurm()
    found = settings().model_copy(update={"energy": EnergySettings(carbon_file=file)})
    monkeypatch.setattr(cheapest, "load_settings", lambda: found)
    monkeypatch.setattr(time, "time", lambda: float(NOW_S))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    cluster_state = sync_of(slurm)
    asyncio.run(cluster_state.turn())
    answer_from(monkeypatch, Reads(found, slurm, fake, cluster_state).handlers())
    fake.tariffs = KeptTariffs(record(1, 0, tariff(NIGHT)))  # type: ignore[misc]
    return fake


def said(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(
        app, ("cheapest", "--tenant", "vision", *words), catch_exceptions=False
    )
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.usefixtures("ledger")
def test_money_and_grams_stand_beside_those_of_now() -> None:
    lines = [line.split() for line in said(*JOB).splitlines()]
    now, money, green = (
        next(line for line in lines if line[:1] == [word])
        for word in ("now", "cheapest", "greenest")
    )
    assert now[1:3] == ["2026-12-01", "12:00:00"]
    assert money[1:3] == ["2026-12-01", "22:00:00"]
    assert green[1:3] == ["2026-12-01", "18:00:00"]
    assert (float(money[3]), money[4]) == (float(now[3]) / 2, "50%")
    assert (float(green[5]), green[6]) == (float(now[5]) / 4, "75%")
    assert ["For", "sbatch:", "--begin=2026-12-01T22:00:00"] in lines
    shown = json.loads(said(*JOB, "--json"))
    assert shown["currency"] == "EUR"
    # Four hours of four of seven slices, as 3g.40gb is half of the memory.
    assert shown["now"]["millionths"] == 2 * shown["cheapest"]["millionths"]
    assert shown["greenest"]["at_s"] == NOW_S + 6 * 3600


@pytest.mark.usefixtures("ledger")
def test_only_the_begin_is_what_sbatch_takes() -> None:
    assert said(*JOB, "--begin") == "2026-12-01T22:00:00\n"
    assert said(*JOB, "--begin", "--green") == "2026-12-01T18:00:00\n"
    # It may have to wait as long as that, so it must begin before most of the night.
    assert said(*JOB, "--begin", "--margin", "8:00:00") == "2026-12-01T20:00:00\n"
    assert said(*JOB, "--begin", "--margin", "1-0") == "now\n"


def test_without_a_tariff_no_begin_is_cheapest(ledger: ScriptedLedger) -> None:
    ledger.tariffs = KeptTariffs()  # type: ignore[misc]
    assert "No tariff holds" in said(*JOB)
    assert "--begin=2026-12-01T18:00:00" in said(*JOB, "--green")
    with pytest.raises(InvalidInputError, match="No tariff holds"):
        said(*JOB, "--begin")


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--time", "24:00:00"), "can't end in time"),
        (("--deadline", "2027-11-02"), "too far away"),
        (("--gres", "gpu:1"), "SW-GRES"),
        (("--gres", "gpu:9g.9gb:1"), "SW-PROFILE-UNKNOWN"),
    ],
)
def test_a_job_that_has_no_begin_is_refused(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        said(*JOB, *words)


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--time", "4h"), "not a time limit"),
        (("--deadline", "8 PM"), "not a time."),
        (("--begin", "--json"), "Choose"),
    ],
)
def test_what_sbatch_reads_otherwise_is_refused(words: tuple[str, ...], why: str) -> None:
    assert why in " ".join(said(*JOB, *words, status=2).replace("│", " ").split())
