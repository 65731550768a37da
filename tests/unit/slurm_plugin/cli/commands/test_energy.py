"""What ``slicewise energy`` asks the daemon, and how it prints the answer."""

import json

import pytest
from builders.settings import site_settings
from stand_ins.daemon_in_process import answer_from
from typer.testing import CliRunner

from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.cli.commands import energy
from slicewise.slurm_plugin.common.energy_requests import EnergyAnswer, EnergyLine, EnergyRequest

pytestmark = pytest.mark.usefixtures("clock")

CHAT = EnergyLine(
    service="science/chat",
    energy_mj=7_200_000_000,
    counter_mj=3_600_000_000,
    power_mj=0,
    model_mj=3_600_000_000,
    shared_mj=1_800_000_000,
    idle_mj=0,
    unknown_mj=0,
    tokens=4_000_000,
    carbon_g=600.0,
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[EnergyRequest]:
    """What the daemon was asked."""
    requests = list[EnergyRequest]()

    async def answer(request: EnergyRequest, _: Principal) -> EnergyAnswer:
        requests.append(request)
        return EnergyAnswer(lines=(CHAT,), power_mw=1_500_000)

    answer_from(monkeypatch, {EnergyRequest: answer})
    monkeypatch.setattr(energy, "load_settings", lambda: site_settings(types=["1g.10gb"]))
    return requests


def printed(*words: str) -> str:
    result = CliRunner().invoke(energy.energy_app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_people_see_kilowatt_hours_and_how_they_are_known(asked: list[EnergyRequest]) -> None:
    words = printed("--by", "service", "--from", "2026-11-01", "--until", "2026-11-03").split()
    assert {"science/chat", "2.000", "50%", "0.500", "0.600"} <= {*words}
    assert "1.500" in words
    assert "nobody's" not in words
    (request,) = asked
    assert (request.by, request.until_s - request.since_s) == ("service", 2 * 86_400)


def test_a_run_is_shown_with_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: EnergyRequest, _: Principal) -> EnergyAnswer:
        assert request.by == "run"
        about = {"run": "814_3", "started_s": 1_764_547_200, "tenant": "vision", "person": "alice"}
        idle = CHAT.model_copy(update={"service": "", "energy_mj": 0, "idle_mj": 5})
        return EnergyAnswer(lines=(idle, CHAT.model_copy(update=about)))

    answer_from(monkeypatch, {EnergyRequest: answer})
    monkeypatch.setattr(energy, "load_settings", lambda: site_settings(types=["1g.10gb"]))
    words = printed("--by", "run").split()
    assert {"814_3", "2025-12-01", "vision", "alice", "science/chat", "2.000"} <= {*words}
    assert "running" not in words
    (head, *_) = printed("--by", "run", "--csv").splitlines()
    assert {"run", "started_s"} <= {*head.split(",")}


def test_what_is_nobody_s_is_shown_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(*_: object) -> EnergyAnswer:
        line = CHAT.model_copy(update={"idle_mj": 3_600_000_000, "unknown_mj": 5_400_000_000})
        return EnergyAnswer(lines=(line,), power_mw=None)

    answer_from(monkeypatch, {EnergyRequest: answer})
    monkeypatch.setattr(energy, "load_settings", lambda: site_settings(types=["1g.10gb"]))
    words = printed("--by", "service").split()
    assert {"nobody's", "2.500"} <= {*words}


def test_json_and_csv_have_the_lines_themselves(asked: list[EnergyRequest]) -> None:
    span = ("--from", "2026-11-01", "--until", "2026-11-03")
    shown = json.loads(printed("--json", *span))
    assert shown["lines"] == [CHAT.model_dump()]
    assert shown["power_mw"] == 1_500_000
    head, first = printed("--csv", *span).splitlines()
    assert dict(zip(head.split(","), first.split(","), strict=True))["counter_mj"] == "3600000000"
    assert len(asked) == 2
