"""Tests the placement benchmark: requests from pods, policies, the optimum, the command."""

import json
import random
import sys
from pathlib import Path

import pytest

from slicewise.cluster.language.gpus.layouts import Placement
from studies.placement import __main__ as command
from studies.placement import pods, whole
from studies.placement.online import replay
from studies.placement.optimum import optimum
from studies.placement.pods import Request
from studies.placement.policies import Cluster, policies
from studies.placement.speed import decision_us

HEAD = "name,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time\n"
EVEN = dict.fromkeys(pods.BOARD.profiles, 1)


def pod_list(path: Path, *rows: tuple[int, int, int]) -> Path:
    """``rows``: num_gpu, gpu_milli, seconds."""
    lines = [f"p,{gpus},{milli},,LS,Running,100,{100 + held_s}\n" for gpus, milli, held_s in rows]
    path.write_text(HEAD + "".join(lines))
    return path


@pytest.mark.parametrize(
    ("gpu_milli", "profile"),
    [
        (50, "1g.10gb"),
        (142, "1g.10gb"),
        (143, "2g.20gb"),
        (320, "3g.40gb"),
        (470, "4g.40gb"),
        (590, "7g.80gb"),
        (1000, "7g.80gb"),
    ],
)
def test_a_pod_becomes_the_smallest_profile_with_its_share(
    tmp_path: Path, gpu_milli: int, profile: str
):
    found = pods.read(pod_list(tmp_path / "pods.csv", (1, gpu_milli, 60)))
    assert found == [Request(0.0, profile, 60.0)]


def test_pods_for_no_gpu_or_several_or_no_time_are_left_out_and_none_stays_longer_than_a_week(
    tmp_path: Path,
):
    rows = ((0, 0, 60), (2, 1000, 60), (1, 1000, 0), (1, 1000, 10**7))
    found = pods.read(pod_list(tmp_path / "pods.csv", *rows))
    assert [one.held_s for one in found] == [7 * 86_400]


def test_what_is_drawn_asks_for_the_load_that_was_named():
    listed = [Request(0.0, "1g.10gb", 60.0), Request(0.0, "4g.40gb", 600.0)]
    found = pods.drawn(listed, 5_000, 4, 1.3, random.Random(1))  # noqa: S311
    asked = sum(pods.SLICES[one.profile] * one.held_s for one in found)
    assert asked / (4 * 7 * found[-1].at_s) == pytest.approx(1.3, rel=0.01)


def test_every_policy_accepts_what_fits_and_an_instance_ends_before_the_next_begins():
    requests = [Request(float(n), "7g.80gb", 1.0) for n in range(20)]
    for name, policy in policies(EVEN, 1, seed=1).items():
        assert replay(requests, 1, policy, 0.0) == 1, name


def test_what_comes_while_all_is_full_is_turned_away():
    requests = [Request(0.0, "7g.80gb", 10.0), Request(1.0, "1g.10gb", 10.0)]
    for policy in policies(EVEN, 1, seed=1).values():
        assert replay(requests, 1, policy, 0.0) == pytest.approx(7 / 8)


def test_policies_differ_as_their_names_say():
    held = ((1, Placement("3g.40gb", 4, 4)), (2, Placement("4g.40gb", 0, 4)))
    places = {}
    for name, policy in policies(EVEN, 3, seed=1).items():
        cluster = Cluster(3)
        for gpu, placement in held:
            cluster.place(gpu, placement, 0.0)
            policy.changed(cluster, gpu)
        choice = policy.choose(cluster, "3g.40gb")
        assert choice is not None
        places[name] = choice.gpu, choice.placement.start
    assert places["first_fit"] == (0, 0)
    assert places["packing"] == places["best_fit"] == (1, 0)
    assert places["fgd"] == places["slicewise"] == (2, 4)


def test_the_clairvoyant_refuses_what_is_in_the_way_if_it_may():
    requests = [Request(0.0, "1g.10gb", 10.0), Request(1.0, "7g.80gb", 10.0)]
    refusing, keeping = (optimum(requests, 1, refuses=refuses) for refuses in (True, False))
    assert refusing.found == refusing.most == pytest.approx(7 / 8)
    assert keeping.found == keeping.most == pytest.approx(1 / 8)


@pytest.mark.parametrize("seed", range(2))
def test_no_policy_is_better_than_the_clairvoyant(seed: int):
    chance = random.Random(seed)  # noqa: S311
    listed = [Request(0.0, name, chance.expovariate(0.01)) for name in EVEN]
    requests = pods.drawn(listed, 9, 2, 1.3, chance)
    keeping = optimum(requests, 2, refuses=False)
    assert keeping.most <= optimum(requests, 2, refuses=True).most + 1e-6
    for policy in policies(pods.mix(listed), 2, seed).values():
        assert replay(requests, 2, policy, 0.0) <= keeping.most + 1e-6


def test_the_command_writes_every_key_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    listed = pod_list(tmp_path / "mine.csv", (1, 140, 600), (1, 470, 60), (1, 1000, 300))
    report = tmp_path / "reports" / "placement.json"
    sizes = {"_REQUESTS": 60, "_GPUS": 3, "_FEW_REQUESTS": 8, "_FEW_GPUS": 1, "_SEEDS": 2}
    sizes |= {"_REPARTITION_REQUESTS": 40, "_REPARTITION_GPUS": 2}
    for name, size in {**sizes, "_FLEETS": (10,)}.items():
        monkeypatch.setattr(command, name, size)
    for name, size in {"_REQUESTS": 60, "_MOVES": 60, "_SEEDS": 2}.items():
        monkeypatch.setattr(whole, name, size)
    monkeypatch.setattr(command.parvagpu, "run", lambda *_: {})
    monkeypatch.setattr(command, "_PODS", {})
    arguments = ["--pods", listed, "--report", report]
    monkeypatch.setattr(sys, "argv", ["bench", *map(str, arguments)])
    command.main()
    found = json.loads(report.read_text())
    assert found["parvagpu"] == {}
    assert list(found["online"]) == ["100%", "110%", "120%", "130%"]
    names = ["random", "first_fit", "best_fit", "packing", "fgd", "slicewise"]
    for ratios in found["online"].values():
        assert list(ratios) == names
        assert all(0 < ratio <= 1 for ratio in ratios.values())
    assert found["pod_lists"] == {"mine": found["online"]}
    assert {"optimum", "optimum_refusing"} <= set(found["small"]["mine"]["130%"])
    assert {"p50", "p99"} <= set(found["decision_us"]["10"])
    assert list(found["repartition"]) == list(found["online"])
    assert list(found["repartition"]["100%"]) == [
        "never",
        "twice_daily",
        "asked_alone",
        "slicewise",
    ]
    for outcome in found["repartition"]["130%"].values():
        assert set(outcome) == {"accepted_ratio", "repartitions", "drained_slice_hours"}
    assert {"gpus", "node_weights", "victims"} == set(found["free_gpus"])


def test_a_list_that_is_none_ends_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    strange = tmp_path / "strange.csv"
    strange.write_text("a,b\n1,2\n")
    for path, words in ((tmp_path / "none.csv", "--pods FILE"), (strange, "lacks columns")):
        monkeypatch.setattr(sys, "argv", ["bench", "--pods", str(path)])
        with pytest.raises(SystemExit, match=words):
            command.main()


def test_a_decision_among_ten_thousand_gpus_takes_well_under_a_millisecond():
    assert decision_us(10_000, EVEN, seed=1)["p99"] < 1000
