"""Tests ParvaGPU's scenarios on its own data: the fewest GPUs, all rules kept, files read."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gpus.mig_profiles import board
from slicewise.slurm_plugin.rules.common.solver import LinearProgram
from slicewise.slurm_plugin.rules.mig.instances import LATENCY_SHARE, fewest_gpus
from studies.placement import parvagpu
from tests.instance_checker import broken_rules, demand_of, price_of, proven

DATA = Path(__file__).parents[1] / "assets" / "parvagpu"
A100 = board("A100-80GB")
FEWEST = (2, 3, 5, 7, 13, 17)


@pytest.fixture
def few_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parvagpu, "_MANY", 20)


def write(folder: Path, slos_ms: str, rates_rps: str) -> Path:
    folder.joinpath("SLO_latency.csv").write_text(slos_ms, encoding="utf-8")
    folder.joinpath("SLO_req_rate.csv").write_text(rates_rps, encoding="utf-8")
    return folder


@pytest.mark.parametrize("number", range(6))
def test_each_scenario_has_a_plan_with_the_fewest_gpus_and_the_proof(number: int) -> None:
    services = parvagpu.scenarios(DATA)[number]
    plan = fewest_gpus(services, A100)
    demands = [demand_of(load, LATENCY_SHARE) for load in services.values()]
    assert broken_rules(plan, services, A100, LATENCY_SHARE) == []
    assert plan.gpus == plan.at_least == proven(demands, plan, A100) == FEWEST[number]


def test_the_sixth_needs_more_compute_slices_than_sixteen_gpus_have() -> None:
    slices = {name: profile.compute_slices for name, profile in A100.profiles.items()}
    demands = [demand_of(load, LATENCY_SHARE) for load in parvagpu.scenarios(DATA)[5].values()]
    assert sum(price_of(demand, slices) for demand in demands) == 115 > 16 * A100.compute_slices


def test_a_thousand_services_are_within_a_hundredth_of_the_floor() -> None:
    services = parvagpu.many(parvagpu.tables(DATA), 1_000, seed=7)
    plan = fewest_gpus(services, A100)
    assert broken_rules(plan, services, A100, LATENCY_SHARE) == []
    assert plan.at_least <= plan.gpus <= 1.01 * plan.at_least


def test_the_report_has_each_scenario_beside_the_published_and_the_optimum(
    few_services: None,
) -> None:
    report = parvagpu.run(DATA)
    found = [report[str(number)] for number in range(1, 7)]
    assert [row["ours"] for row in found] == [row["optimum"] for row in found] == list(FEWEST)
    assert [row["published"] for row in found] == [2, 3, 5, 7, 13, 16]
    assert report["20 services"]["ours"] == report["20 services"]["optimum"]


def test_what_a_search_without_proof_found_is_no_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    services = parvagpu.scenarios(DATA)[0]
    solved = LinearProgram.solve
    monkeypatch.setattr(
        LinearProgram, "solve", lambda self: replace(solved(self), cost=2.0, floor=1.0)
    )
    assert parvagpu.optimum(services) is None


def test_other_scenarios_for_the_same_models(tmp_path: Path, few_services: None) -> None:
    others = ",N/A" * 10
    slo = write(
        tmp_path, f"6434{others}\n6434{others}\n1{others}", f"800{others}\n0{others}\n1{others}"
    )
    report = parvagpu.run(DATA, slo)
    assert [report[number]["ours"] for number in "123"] == [1, 0, None]
    assert [report[number]["optimum"] for number in "123"] == [1, 0, None]
    assert {report[number]["published"] for number in "123"} == {None}
    assert "SW-SLO-UNREACHABLE" in report["3"]["refused"]


@pytest.mark.parametrize(
    ("slos_ms", "rates_rps", "message"),
    [
        ("1,2", "1,2", "2 columns for 11 models"),
        (",".join("1" * 11), "\n".join([",".join("1" * 11)] * 2), "1 rows of SLOs, 2 of rates"),
        (",".join("1" * 10 + "x"), ",".join("1" * 11), "neither a number nor N/A"),
        (",".join(["-1"] * 11), ",".join("1" * 11), "neither a number nor N/A"),
    ],
)
def test_scenarios_in_another_format(
    tmp_path: Path, slos_ms: str, rates_rps: str, message: str
) -> None:
    with pytest.raises(parvagpu.ScenarioError, match=message):
        parvagpu.run(DATA, write(tmp_path, slos_ms, rates_rps))


def test_tables_in_another_format(tmp_path: Path) -> None:
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    bad = tmp_path / "prof_data" / "bert.csv"
    bad.write_text("Mig instance,Batch size\n5,1\n", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"bert\.csv: line 2: .* is not a measurement"):
        parvagpu.run(tmp_path)


def test_a_folder_without_tables(tmp_path: Path) -> None:
    with pytest.raises(parvagpu.ScenarioError, match=r"prof_data holds no MODEL\.csv"):
        parvagpu.run(tmp_path)


def test_a_folder_without_scenarios(tmp_path: Path) -> None:
    with pytest.raises(parvagpu.ScenarioError, match=r"SLO_latency\.csv is missing"):
        parvagpu.run(DATA, tmp_path)
