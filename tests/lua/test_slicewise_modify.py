"""Tests changes of jobs, which fixed rules decide without asking the daemon."""

from pathlib import Path
from typing import Any

import pytest
from lua_slurmctld import (
    ALICE,
    DENIED,
    NOTHING,
    ROOT_UID,
    SLURM_UID,
    SUCCESS,
    answering,
    run_case,
)

TAG = "slicewise:1 token=ab12 tenant=vision"
SERVICE_TAG = f"{TAG} service=bert"
UNDECIDED_TAG = f"{TAG} undecided"
RELEASE, HOLD = 4294967295, 0
MODIFY = [
    # whose job, the change, by whom, allowed
    (SERVICE_TAG, {"priority": RELEASE}, ALICE, False),
    (SERVICE_TAG, {"priority": 5}, ALICE, False),
    (SERVICE_TAG, {"priority": HOLD}, ALICE, True),
    (SERVICE_TAG, {"comment": "c"}, ALICE, True),
    (SERVICE_TAG, {}, ALICE, True),
    (SERVICE_TAG, {"priority": RELEASE}, ROOT_UID, True),
    (SERVICE_TAG, {"priority": RELEASE}, SLURM_UID, True),
    (SERVICE_TAG, {"array_inx": "2"}, ALICE, False),
    (f"site text {SERVICE_TAG}", {"priority": RELEASE}, ALICE, False),
    (f"service=x undecided {TAG}", {"priority": RELEASE}, ALICE, True),
    (TAG, {"priority": RELEASE}, ALICE, True),
    (TAG, {"priority": 7}, ALICE, False),
    (f"{TAG} flexible", {"priority": RELEASE}, ALICE, True),
    (UNDECIDED_TAG, {"priority": RELEASE}, ALICE, False),
    (UNDECIDED_TAG, {"priority": HOLD}, ALICE, True),
    (UNDECIDED_TAG, {"priority": RELEASE}, SLURM_UID, True),
    (TAG, {"time_limit": 5, "requeue": 1, "features": "x", "dependency": "y"}, ALICE, True),
    *[
        (TAG, {key: "x"}, ALICE, False)
        for key in (
            "qos",
            "account",
            "partition",
            "gres",
            "tres_per_node",
            "tres_per_job",
            "tres_per_socket",
            "tres_per_task",
            "admin_comment",
        )
    ],
    # The throttle of a plain array is its owner's: Slurm sends its number.
    *[(tag, {"array_inx": "3"}, ALICE, True) for tag in (TAG, UNDECIDED_TAG, f"service=x {TAG}")],
    (TAG, {"array_inx": "0", "time_limit": 5}, ALICE, True),
    (TAG, {"array_inx": "%3"}, ALICE, True),
    *[(TAG, {"array_inx": odd}, ALICE, False) for odd in ("0-9", "0-9%3", "1,2", "", "3 ", "x")],
    (TAG, {"array_inx": "3", "qos": "x"}, ALICE, False),
    *[(SERVICE_TAG, {"array_inx": inx}, ALICE, False) for inx in ("0", "%3", "0-9%3")],
    (SERVICE_TAG, {"array_inx": "0"}, SLURM_UID, True),
    *[
        (TAG, {key: 1}, ALICE, False)
        for key in (
            "num_tasks",
            "ntasks_per_node",
            "ntasks_per_socket",
            "ntasks_per_tres",
            "cpus_per_task",
        )
    ],
    (TAG, {"min_nodes": 2, "max_nodes": 4}, ALICE, True),
    (TAG, {"min_nodes": 3}, ALICE, False),
    (TAG, {"min_nodes": 1, "max_nodes": 5}, ALICE, False),
    (TAG, {"min_nodes": RELEASE}, ALICE, False),
    (TAG, {"min_nodes": 0}, ALICE, True),
    (TAG, {"min_cpus": 8}, ALICE, True),
    (TAG, {"min_cpus": 9}, ALICE, False),
    (TAG, {"shared": 0}, ALICE, False),
    (TAG, {"shared": 1}, ALICE, True),
    *[(TAG, {"shared": keeps}, ALICE, False) for keeps in (2, 3, 4)],
    *[(TAG, {"req_nodes": nodes}, ALICE, False) for nodes in ("gpu01", "gpu[01-04]")],
    (TAG, {"cpus_per_tres": "gres:gpu:16"}, ALICE, False),
    (TAG, {"mem_per_tres": "gres:gpu:16000"}, ALICE, False),
    *[
        (TAG, {key: 1}, ALICE, False)
        for key in (
            "ntasks_per_core",
            "ntasks_per_board",
            "pn_min_cpus",
            "sockets_per_node",
            "cores_per_socket",
            "threads_per_core",
        )
    ],
    (TAG, {"priority": RELEASE, "ntasks_per_board": 0}, ALICE, True),
    (TAG, {"ntasks_per_node": 65535}, ALICE, False),
    (TAG, {"num_tasks": RELEASE}, ALICE, False),
    # All memory of a node, more than it had, no more than it had.
    *[(TAG, {"min_mem_per_node": mib}, ALICE, mib == 100) for mib in (0, 101, 100)],
    *[(TAG, {"min_mem_per_cpu": mib}, ALICE, False) for mib in (0, 1)],
    *[(SERVICE_TAG, {"time_limit": limit}, ALICE, False) for limit in (5, 0, RELEASE)],
    (SERVICE_TAG, {"time_limit": RELEASE}, SLURM_UID, True),
    # Nothing else gives a slot's GPU back; who may not requeue a plain job ends it.
    *[(SERVICE_TAG, {"requeue": requeue}, ALICE, requeue == 1) for requeue in (0, 1)],
    (SERVICE_TAG, {"requeue": 0}, SLURM_UID, True),
    (TAG, {"requeue": 0}, ALICE, True),
    (SERVICE_TAG, {"req_nodes": "gpu02"}, ALICE, False),
    (TAG, {"time_limit": RELEASE}, ALICE, True),
    (f"service=x {TAG}", {"time_limit": 5}, ALICE, True),
    (TAG, {"shared": 0, "num_tasks": 9}, ROOT_UID, True),
    (TAG, {"qos": "x"}, ROOT_UID, True),
    ("", {"qos": "x", "priority": RELEASE}, ALICE, True),
    ("slicewise is nice", {"qos": "x"}, ALICE, True),
]


@pytest.mark.parametrize("comment", [TAG, SERVICE_TAG, ""])
@pytest.mark.parametrize("state", [1, 2, 1 + 0x8000])
@pytest.mark.parametrize(
    "change", [{"min_nodes": 1}, {"min_nodes": 0}, {"max_nodes": 1}, {"req_nodes": "gpu01"}]
)
def test_who_runs_gives_no_nodes_back(
    path: Path, comment: str, state: int, change: dict[str, Any]
) -> None:
    """Accounting would end the record by which the run is charged, and the run would go on."""
    rec = {"admin_comment": comment, "min_nodes": 2, "partition": "gpu", "job_state": state}
    case: dict[str, Any] = {"job_desc": NOTHING | change, "job_rec": rec, "uid": ALICE}
    bounds = {"configure": {"partitions": ["gpu"]}}
    assert run_case(path, "job_modify", **case, **bounds)["code"] == DENIED
    case["job_rec"] = rec | {"partition": "cpu"}
    expected = DENIED if comment else SUCCESS
    assert run_case(path, "job_modify", **case, **bounds)["code"] == expected
    case["job_desc"] = NOTHING | {"comment": "slicewise:certificate=0 MIIB"}
    case["job_rec"] = rec
    assert run_case(path, "job_modify", **case, **bounds)["code"] == SUCCESS


@pytest.mark.parametrize(("comment", "change", "uid", "allowed"), MODIFY)
def test_modify(path: Path, comment: str, change: Any, uid: int, allowed: bool) -> None:
    result = run_case(
        path,
        "job_modify",
        job_desc=NOTHING | change,
        job_rec={
            "admin_comment": comment,
            "min_nodes": 2,
            "max_nodes": 4,
            "min_cpus": 8,
            "min_mem_per_node": 100,
        },
        uid=uid,
    )
    assert result["code"] == (SUCCESS if allowed else DENIED)
    assert bool(result["told"]) != allowed


@pytest.mark.parametrize(("has", "allowed"), [(None, True), ("gres:gpu:2000", False)])
@pytest.mark.parametrize("mib", [0, 9000])
def test_memory_for_each_gpu_becomes_no_memory_of_a_node(
    path: Path, has: str | None, allowed: bool, mib: int
) -> None:
    rec = {"admin_comment": TAG, "min_mem_per_node": 0, "mem_per_tres": has}
    change = NOTHING | {"min_mem_per_node": mib}
    result = run_case(path, "job_modify", job_desc=change, job_rec=rec)
    assert result["code"] == (SUCCESS if allowed else DENIED)


@pytest.mark.parametrize(("most", "allowed"), [(2, True), (3, False), (RELEASE, False)])
def test_a_job_without_a_maximum_of_nodes_gets_no_larger_one(
    path: Path, most: int, allowed: bool
) -> None:
    """Without one it has as few as it may, with one as many as are free."""
    rec = {"admin_comment": TAG, "min_nodes": 2, "max_nodes": 0}
    change = {"min_nodes": 2, "max_nodes": most}
    result = run_case(path, "job_modify", job_desc=change, job_rec=rec)
    assert result["code"] == (SUCCESS if allowed else DENIED)


@pytest.mark.parametrize(
    ("comment", "change", "said"),
    [
        (TAG, {"array_inx": "3", "qos": "x"}, "throttle is set all the same"),
        (SERVICE_TAG, {"array_inx": "3"}, "taken off again"),
        (TAG, {"qos": "x"}, ""),
    ],
)
def test_a_throttle_that_slurm_has_set_before_it_asks_is_said(
    path: Path, comment: str, change: Any, said: str
) -> None:
    told = run_case(path, "job_modify", job_desc=change, job_rec={"admin_comment": comment})["told"]
    assert said in told
    assert ("throttle" in told) == bool(said)


def test_modify_asks_nobody(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    run_case(path, "job_modify", job_desc={"gres": "gpu:1"}, job_rec={})
    assert daemon.connections == 0


def test_modify_does_not_talk_where_slurmctld_would_log_an_error(path: Path) -> None:
    case = {"job_desc": {"qos": "x"}, "job_rec": {"admin_comment": TAG}}
    result = run_case(path, "job_modify", **case, slurm="22.05")
    assert (result["code"], result["told"]) == (DENIED, "")


@pytest.mark.parametrize(
    ("job_rec", "is_counted"),
    [
        ({"admin_comment": TAG}, True),
        ({"admin_comment": SERVICE_TAG, "qos": "slicewise_vision_borrowed"}, True),
        ({"partition": "cpu", "qos": "slicewise_vision"}, True),
        ({"partition": "cpu", "qos": "normal"}, False),
    ],
)
def test_nobody_ends_a_run_early_by_its_end_time(
    path: Path, job_rec: Any, is_counted: bool
) -> None:
    """Slurm 22.05 never takes the rest of the time limit off the run-minutes of the QOS again."""
    case: dict[str, Any] = {"job_rec": job_rec, "configure": {"partitions": ["gpu"]}}
    for end_time, allowed in ((1_700_000_000, not is_counted), (0, True)):
        change = NOTHING | {"end_time": end_time}
        result = run_case(path, "job_modify", job_desc=change, **case)
        assert result["code"] == (SUCCESS if allowed else DENIED)
        assert ("TimeLimit=" in result["told"]) != allowed
    ended = {"job_desc": NOTHING | {"end_time": 1_700_000_000}, "uid": SLURM_UID}
    assert run_case(path, "job_modify", **case, **ended)["code"] == SUCCESS


TYPED, UNTYPED = {"tres_per_node": "gres:gpu:1g.10gb:1"}, {"tres_per_job": "gres:gpu:2"}
UNADMITTED = [
    # the job without a tag, the change, allowed
    ({"partition": "gpu"}, {"tres_per_node": "gres:gpu:2", "gres": "gres:gpu:2"}, False),
    ({"partition": "gpu"}, TYPED, False),
    ({"partition": "gpu"}, {"tres_per_job": "gpu"}, False),
    ({"partition": "gpu"}, {"tres_per_socket": "gpu:1"}, False),
    ({"partition": "gpu"}, {"tres_per_task": "gres/gpu=1"}, False),
    ({"partition": "gpu"}, {"tres_per_node": "gres:shard:1"}, False),
    ({"partition": "gpu"}, {"tres_per_node": "gres:mps:1"}, False),
    *[({"partition": "gpu"}, {"shared": keeps}, False) for keeps in (0, 2, 3, 4)],
    ({"partition": "gpu"}, {"shared": 1}, True),
    ({"partition": "gpu"}, {"ntasks_per_tres": 1}, False),
    ({"partition": "gpu"}, {"ntasks_per_tres": 65534, "time_limit": 5}, True),
    ({"partition": "gpu"}, {"tres_per_node": "gres:license:1"}, True),
    ({"partition": "gpu"}, {"tres_per_node": "," * 2000}, False),
    ({"partition": "gpu"}, {"priority": 4294967295}, True),
    ({"partition": "gpu"}, {"num_tasks": 9, "min_nodes": 9}, True),
    ({"partition": "gpu", **UNTYPED}, {"comment": "c"}, True),
    ({"partition": "gpu"}, {"tres_per_node": "gres:none"}, True),
    ({}, UNTYPED, False),
    ({"partition": "cpu"}, UNTYPED, True),
    ({"partition": "cpu"}, {"shared": 0}, True),
    ({"partition": "cpu"}, UNTYPED | {"partition": "gpu"}, False),
    ({"partition": "cpu", **UNTYPED}, {"partition": "gpu"}, False),
    ({"partition": "cpu", **TYPED}, {"partition": "cpu,gpu"}, False),
    ({"partition": "cpu", "tres_per_node": "gres:shard:1"}, {"partition": "gpu"}, False),
    ({"partition": "cpu", "tres_per_node": "," * 2000}, {"partition": "gpu"}, False),
    ({"partition": "cpu", "tres_fmt_req_str": "cpu=2,gres/gpu=2"}, {"partition": "gpu"}, False),
    ({"partition": "cpu", "tres_fmt_req_str": "cpu=2,node=1"}, {"partition": "gpu"}, True),
    ({"partition": "cpu", **UNTYPED}, {"partition": "cpu2"}, True),
    # In newer Slurm one of several reservations brings its own partition.
    ({"partition": "cpu", **UNTYPED}, {"reservation": "course,gpus"}, False),
    ({"partition": "cpu", **UNTYPED}, {"reservation": "course"}, True),
    ({"partition": "cpu"}, {"reservation": "course,gpus"}, True),
    # Without GPUs it would end, for CPUs, what runs on borrowed quota.
    ({"partition": "gpu", "qos": "normal"}, {"qos": "slicewise_vision"}, False),
    ({"partition": "gpu", "tres_per_node": "gpu:1g.10gb:0"}, {"qos": "Slicewise_vision"}, False),
    ({"partition": "gpu", "tres_per_job": "," * 2000}, {"qos": "slicewise_vision"}, False),
    ({"partition": "cpu", "qos": "slicewise_vision"}, {"partition": "gpu"}, False),
    ({"partition": "gpu", "qos": "normal"}, {"qos": "slicewise_vision_borrowed"}, True),
    ({"partition": "gpu", "qos": "slicewise_vision"}, {"comment": "c"}, True),
    ({"partition": "gpu", "qos": "normal", **TYPED}, {"qos": "slicewise_vision"}, True),
    ({"partition": "gpu", "tres_fmt_req_str": "gres/gpu=2"}, {"qos": "slicewise_vision"}, True),
    ({"partition": "cpu", "qos": "normal"}, {"qos": "slicewise_vision"}, True),
]


@pytest.mark.parametrize(("job_rec", "change", "allowed"), UNADMITTED)
def test_a_job_that_was_not_admitted_gets_no_gpu_later(
    path: Path, job_rec: Any, change: Any, allowed: bool
) -> None:
    case = {"job_desc": NOTHING | change, "job_rec": job_rec}
    only_gpu = {"partitions": ["gpu"], "without_gpu": "allow"}
    result = run_case(path, "job_modify", **case, configure=only_gpu)
    assert result["code"] == (SUCCESS if allowed else DENIED)
    assert ("SW-RESUBMIT" in result["told"]) != allowed
    for uid in (ROOT_UID, SLURM_UID):
        assert run_case(path, "job_modify", **case, configure=only_gpu, uid=uid)["code"] == SUCCESS


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        ({"partition": "gpu"}, False),
        ({"partition": "cpu,gpu"}, False),
        ({"reservation": "course,gpus"}, False),
        ({"partition": "cpu2"}, True),
        ({"num_tasks": 99}, True),
    ],
)
def test_a_job_without_gpus_is_not_moved_to_where_none_may_run(
    path: Path, change: Any, allowed: bool
) -> None:
    case = {"job_desc": NOTHING | change, "job_rec": {"partition": "cpu"}}
    result = run_case(path, "job_modify", **case, configure={"partitions": ["gpu"]})
    assert result["code"] == (SUCCESS if allowed else DENIED)


def test_what_is_logged_has_whole_numbers(path: Path) -> None:
    """slurmctld hands over floating-point numbers, and newer Lua prints them as such."""
    rec = {"admin_comment": TAG, "job_id": 42}
    logged = run_case(path, "job_modify", job_desc={"qos": "x"}, job_rec=rec)["logged"]
    assert f"uid {ALICE} may not change qos of job 42" in logged
    assert ".0" not in logged


@pytest.mark.parametrize("mode", ["observe", "advise"])
@pytest.mark.parametrize(
    ("job_rec", "change"), [({}, UNTYPED), ({"admin_comment": TAG}, {"qos": "x"})]
)
def test_a_change_is_refused_in_enforce_only(
    path: Path, mode: str, job_rec: Any, change: Any
) -> None:
    result = run_case(
        path, "job_modify", job_desc=change, job_rec=job_rec, configure={"mode": mode}
    )
    assert (result["code"], result["told"]) == (SUCCESS, "")
    assert "SW-RESUBMIT" in result["logged"]


def test_modify_that_cannot_be_judged_is_refused_but_to_administrators(path: Path) -> None:
    case = {"job_desc": {}, "job_rec": {"admin_comment": TAG}, "raise_on_read": "qos"}
    assert run_case(path, "job_modify", **case)["code"] == DENIED
    assert run_case(path, "job_modify", **case, uid=ROOT_UID)["code"] == SUCCESS
    observing = {"mode": "observe"}
    assert run_case(path, "job_modify", **case, configure=observing)["code"] == SUCCESS


@pytest.mark.parametrize(
    ("job_rec", "change", "field"),
    [
        ({"partition": "cpu"}, {"gres": "gpu:1"}, "gres"),
        ({"partition": "cpu"}, {"ntasks_per_tres": 1}, "gres"),
        ({"partition": "cpu"}, {"shared": 0}, "shared"),
        ({"partition": "cpu"}, {"shared": 2}, "shared"),
        ({"partition": "cpu", "qos": "normal"}, {"qos": "slicewise_vision"}, "qos"),
        ({"partition": "login", "qos": "slicewise_vision"}, {"partition": "cpu"}, "qos"),
        (
            {"partition": "login", "qos": "normal", "gres": "gpu:1"},
            {"partition": "cpu"},
            "partition",
        ),
        ({"partition": "login", "qos": "normal"}, {"partition": "cpu"}, ""),
        ({"partition": "cpu", "qos": "normal"}, {"qos": "slicewise_vision_borrowed"}, ""),
        ({"partition": "cpu", "qos": "slicewise_vision"}, {"comment": "c"}, ""),
        ({"partition": "login"}, {"gres": "gpu:1"}, ""),
    ],
)
def test_a_job_beside_gets_no_gpus_later(path: Path, job_rec: Any, change: Any, field: str) -> None:
    case = {"job_desc": NOTHING | change, "job_rec": job_rec}
    beside = {"partitions": ["gpu"], "beside": ["cpu"]}
    result = run_case(path, "job_modify", **case, configure=beside)
    assert result["code"] == (DENIED if field else SUCCESS)
    assert not field or f"change of its {field} " in result["told"]
