"""Tests ``slicewise mig instances``: from tables and loads to instances, GPUs and file lines."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders.measurements import a_measurement
from typer.testing import CliRunner, Result

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.measurements import Measurement, TokenFigures
from slicewise.cluster.runtime.measurement_file import update_measurements
from slicewise.slurm_plugin.cli.commands.mig import mig_app

SETTINGS = """
[cluster]
name = "test"
partitions = ["gpu"]
[gpus."A100-80GB"]
weight = "3/2"
types = ["nvidia_a100_1g.10gb", "3g.40gb"]
"""


def row(kind: str, rps: int, **change: object) -> Measurement:
    fields = {"batch": 4, "processes": 2, "latency_us": 20_000, "samples": 9}
    reason = "" if rps else "no"
    return a_measurement(
        **(fields | {"type": kind, "throughput_mrps": 1000 * rps, "reason": reason} | change)
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "slicewise.toml").write_text(SETTINGS)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    monkeypatch.chdir(tmp_path)
    small, half = row("nvidia_a100_1g.10gb", 100), row("3g.40gb", 410)
    update_measurements(Path("bert.json"), [small, row("nvidia_a100_1g.10gb", 0, batch=8), half])
    update_measurements(
        Path("a,b=c.json"), [row("3g.40gb", 50, model="llm"), row("3g.40gb", 90, model="chat")]
    )
    update_measurements(Path("h200.json"), [row("1g.18gb", 100, board="H200-141GB")])
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(mig_app, ("instances", *words))


def found(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


ONE = ("bert.json", "--rate", "300", "--slo-ms", "100")


def test_one_service_gets_the_fewest_slices(place: Path) -> None:
    plan = found(*ONE)
    assert plan["instances"] == [
        {
            "service": "bert",
            "type": "nvidia_a100_1g.10gb",
            "count": 3,
            "batch": 4,
            "processes": 2,
            "throughput_mrps": 100_000,
            "latency_us": 20_000,
            "cost_millislices": 1_500,
        }
    ]
    assert (plan["board"], plan["gpus"], plan["cost_millislices"]) == ("A100-80GB", 1, 4_500)
    (layout,) = plan["layouts"]
    assert layout["gpus"] == 1
    assert [one["profile"] for one in layout["instances"]] == ["1g.10gb"] * 3


def test_it_says_what_goes_into_the_service_s_file(place: Path) -> None:
    shown = run(*ONE).stdout.splitlines()
    assert shown[-4:] == [
        "# bert",
        'profile = "nvidia_a100_1g.10gb"',
        "max_replicas = 3",
        "concurrency = 8  # batch 4 × processes 2",
    ]
    assert "1 GPU of A100-80GB hold them; they cost 4.5 slices." in shown


def test_several_services_share_gpus(place: Path) -> None:
    plan = found("--service", "search=bert.json,410,100", "--service", "chat=a,b=c.json,89.5,100")
    assert plan["gpus"] == plan["at_least"] == 1
    assert {(one["service"], one["type"], one["count"]) for one in plan["instances"]} == {
        ("search", "3g.40gb", 1),
        ("chat", "3g.40gb", 1),
    }


def test_a_model_of_several(place: Path) -> None:
    load = ("a,b=c.json", "--rate", "90.001", "--slo-ms", "100")
    assert [one["count"] for one in found(*load, "--model", "chat")["instances"]] == [2]


def test_figures_of_several_files_join_and_a_board_is_chosen(place: Path) -> None:
    load = ("bert.json", "h200.json", "--rate", "300", "--slo-ms", "100")
    plan = found(*load, "--board", "H200-141GB")
    assert (plan["board"], plan["cost_millislices"]) == ("H200-141GB", 3_000)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "No load is given.*SW-USAGE"),
        (("bert.json", "--rate", "1"), "SW-USAGE"),
        (("bert.json", "--service", "a=bert.json,1,100"), "SW-USAGE"),
        (("--service", "a=bert.json,1,100", "--service", "a=bert.json,1,100"), "one name"),
        (("none.json", "--rate", "1", "--slo-ms", "9"), "SW-INPUT-FILE"),
        (("a,b=c.json", "--rate", "1", "--slo-ms", "9"), "these models: chat, llm"),
        (("bert.json", "--rate", "1", "--slo-ms", "9", "--model", "m"), "these models: bert"),
        (("--service", "a=a,b=c.json,1,9"), "these models: chat, llm"),
        (("bert.json", "h200.json", "--rate", "1", "--slo-ms", "9"), "several GPU models"),
        (("bert.json", "--rate", "1", "--slo-ms", "99", "--board", "X"), "SW-VALUE"),
        (("bert.json", "--rate", "1", "--slo-ms", "44"), "SW-SLO-UNREACHABLE"),
    ],
)
def test_what_cannot_be_answered_is_refused(place: Path, words: tuple[str, ...], said: str) -> None:
    result = run(*words)
    assert isinstance(result.exception, InvalidInputError)
    with pytest.raises(InvalidInputError, match=said):
        raise result.exception


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "x", "1e30"])
def test_a_load_is_a_number_above_zero(place: Path, number: str) -> None:
    assert run("bert.json", "--rate", number, "--slo-ms", number).exit_code == 2


@pytest.mark.parametrize("text", ["bert.json,1,9", "a=bert.json,1", "=bert.json,1,9", "a=b,x,9"])
def test_a_service_has_a_name_a_file_and_two_numbers(place: Path, text: str) -> None:
    assert run("--service", text).exit_code == 2


def of_tokens(kind: str, rps: int, ttft_ms: int, load: str = "9+9") -> Measurement:
    figures = TokenFigures(
        load=load, output_mtps=rps * 9_000, ttft_p50_us=1, ttft_p99_us=1000 * ttft_ms
    )
    return row(kind, rps, batch=8, processes=1).model_copy(update={"tokens": figures})


def test_language_models_are_chosen_by_the_times_of_their_tokens(place: Path):
    rows = [of_tokens("nvidia_a100_1g.10gb", 100, 500), of_tokens("3g.40gb", 120, 100)]
    update_measurements(Path("llama.json"), rows)
    load = ("llama.json", "--rate", "90", "--slo-ms", "100")
    assert [one["type"] for one in found(*load)["instances"]] == ["nvidia_a100_1g.10gb"]
    assert [one["type"] for one in found(*load, "--ttft-ms", "499")["instances"]] == ["3g.40gb"]
    assert run(*load).stdout.splitlines()[-1] == "concurrency = 8"
    said = str(run(*load, "--ttft-ms", "99").exception)
    assert "No measured configuration of 'bert' keeps ttft_ms 99" in said
    assert "[SW-SLO-UNREACHABLE]" in said


def test_figures_of_different_prompts_are_not_compared(place: Path):
    rows = [of_tokens("nvidia_a100_1g.10gb", 100, 500), of_tokens("3g.40gb", 120, 100, "8+8")]
    update_measurements(Path("llama.json"), rows)
    said = str(run("llama.json", "--rate", "90", "--slo-ms", "100").exception)
    assert "different requests: 8+8, 9+9 tokens" in said
    assert "[SW-INPUT-FILE]" in said
