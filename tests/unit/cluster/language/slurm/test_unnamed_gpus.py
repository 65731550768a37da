"""Tests which GPUs a job has whose TRES name no type: jobs from before accounting knew the type."""

from collections.abc import Mapping
from typing import Any

import pytest

from slicewise.cluster.language.jobs import ALLOTTED, JobState, JobView
from slicewise.cluster.language.slurm.job_rows import JOB_FIELDS, parse_jobs
from slicewise.cluster.language.slurm.unnamed_gpus import AskedGpus, gpus_of_job, shown_gpus
from slicewise.cluster.language.slurm.unread import ignored
from slicewise.cluster.slurm import pyslurm_records, rest_records

ONE, THREE = "1g.10gb", "3g.40gb"
COUNTED = {"cpu": "1", "node": "1", "billing": "3"}


def tres(gpus: int | None, nodes: int = 1, **types: int) -> Mapping[str, str]:
    named = {f"gres/gpu:{kind}": str(count) for kind, count in types.items()}
    total = {} if gpus is None else {"gres/gpu": str(gpus)}
    return {**COUNTED, "node": str(nodes), **total, **named}


# As squeue of 22.05 and of 24.11 showed them, on a cluster that counted GPUs without types.
FORMS = [
    ("per node", tres(2), AskedGpus(per_node=f"gres:gpu:{ONE}:2"), {ONE: 2}),
    ("per node, newer", tres(2), AskedGpus(f"gres/gpu:{ONE}:2", per_task="cpu=1"), {ONE: 2}),
    ("on two nodes", tres(4, 2), AskedGpus(per_node=f"gres:gpu:{ONE}:2"), {ONE: 4}),
    ("a job", tres(3), AskedGpus(per_job=f"gres/gpu:{ONE}:3", per_task="cpu=1"), {ONE: 3}),
    ("a task", tres(3), AskedGpus(per_task=f"gres:gpu:{ONE}:1", tasks=3), {ONE: 3}),
    ("a task, newer", tres(3), AskedGpus(per_task=f"cpu=1,gres/gpu:{ONE}=1", tasks=3), {ONE: 3}),
    ("a socket", tres(2), AskedGpus(per_socket=f"gres:gpu:{ONE}:1"), {ONE: 2}),
    (
        "two types",
        tres(2),
        AskedGpus(f"gres:gpu:{ONE}:1,gres:gpu:{THREE}:1"),
        {ONE: 1, THREE: 1},
    ),
    (
        "two types on two nodes",
        tres(6, 2),
        AskedGpus(f"gres/gpu:{ONE}:2,gres/gpu:{THREE}:1"),
        {ONE: 4, THREE: 2},
    ),
    (
        "said twice",
        tres(4, 2),
        AskedGpus(per_node=f"gres/gpu:{ONE}:2", per_job=f"gres/gpu:{ONE}:4"),
        {ONE: 4},
    ),
    ("no count", tres(1), AskedGpus(f"gres/gpu:{ONE}"), {ONE: 1}),
    ("of any type", tres(2), AskedGpus("gres:gpu:2"), {}),
    ("of any type, no count", tres(1), AskedGpus("gres:gpu"), {}),
    ("only tasks per GPU", tres(2), AskedGpus(tasks=4), {}),
    ("tasks per GPU", tres(2), AskedGpus(per_job=f"gres:gpu:{ONE}:2", tasks=4), {ONE: 2}),
    ("read by Slurm alone", tres(1024), AskedGpus("gres:gpu:1k"), {}),
    ("no GPUs", tres(0), AskedGpus("gres:tmpdisk:1"), {}),
]


@pytest.mark.parametrize(("counted", "asked", "expected"), [f[1:] for f in FORMS], ids=str)
def test_what_a_job_asks_for_names_the_types(
    counted: Mapping[str, str], asked: AskedGpus, expected: Mapping[str, int]
) -> None:
    found = gpus_of_job(counted, asked)
    assert (found.unnamed, found.tres) == (expected, counted)


def test_a_type_that_is_named_counts_once() -> None:
    named = {**tres(2), f"gres/gpu:{ONE}": "2"}
    assert gpus_of_job(named, AskedGpus(f"gres/gpu:{ONE}:2")).unnamed == {}
    # Of two types only one is known to accounting.
    partly = {**tres(3), f"gres/gpu:{ONE}": "2"}
    asked = AskedGpus(f"gres/gpu:{ONE}:2,gres/gpu:{THREE}:1")
    assert gpus_of_job(partly, asked).unnamed == {THREE: 1}


def test_where_accounting_counts_no_gpus_what_is_asked_for_says_how_many() -> None:
    for asked, unnamed, total in (
        (AskedGpus(f"gres:gpu:{ONE}:2"), {ONE: 4}, "4"),
        (AskedGpus(per_job=f"gres:gpu:{ONE}:3"), {ONE: 3}, "3"),
        (AskedGpus("gres:gpu:1"), {}, "2"),
        (AskedGpus(), {}, None),
    ):
        found = gpus_of_job(tres(None, 2), asked)
        assert (found.unnamed, found.tres.get("gres/gpu")) == (unnamed, total)


def test_what_a_run_was_given_counts_before_what_it_asked_for() -> None:
    asked = AskedGpus("gres:gpu:2")
    assert gpus_of_job(tres(2), asked, f"gpu:{ONE}:1,gpu:{THREE}:1").unnamed == {ONE: 1, THREE: 1}
    on_nodes = f"gpu:{ONE}:1(IDX:0),gpu:{ONE}:1(IDX:2)"
    assert gpus_of_job(tres(2), asked, on_nodes).unnamed == {ONE: 2}
    assert gpus_of_job(tres(2), asked, "gpu:2(IDX:0-1)").unnamed == {}


def test_shards_that_accounting_does_not_count_are_found() -> None:
    found = gpus_of_job(tres(0), AskedGpus("gres:shard:3"))
    assert (found.unnamed, found.tres) == ({"shard": 3}, tres(0))
    counted = {**tres(0), "gres/shard": "3"}
    assert gpus_of_job(counted, AskedGpus("gres:shard:3")).unnamed == {}


SHOWN = """JobId=6 JobName={name}
   NumNodes=1 NumCPUs=1 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   JOB_GRES=gpu:1g.10gb:1
     Nodes=gpu01 CPU_IDs=2 Mem=100 GRES=gpu:1g.10gb:1(IDX:3)
   TresPerNode=gres:gpu:1
"""


def test_show_job_names_what_a_run_was_given() -> None:
    found = shown_gpus(tres(1), SHOWN.format(name="wrap"), has_begun=True)
    assert found is not None
    assert found.unnamed == {ONE: 1}
    waiting = shown_gpus(tres(1), SHOWN.format(name="wrap"), has_begun=False)
    assert waiting is not None
    assert waiting.unnamed == {}


@pytest.mark.parametrize("line", ["JOB_GRES=gpu:cheap:1", "TresPerNode=gres:gpu:cheap:1"])
def test_a_line_that_a_name_imitates_is_not_taken_for_slurms(line: str) -> None:
    assert shown_gpus(tres(1), SHOWN.format(name=f"x\n   {line}"), has_begun=True) is None


# One reader behind all doors: the same job by squeue, by pyslurm and by slurmrestd.

ROW = {
    **dict.fromkeys(JOB_FIELDS, "N/A"),
    "JobId": "7",
    "ArrayJobId": "7",
    "UserId": "1000",
    "PriorityLong": "1",
    "RestartCnt": "0",
    "TimeLimit": "10:00",
    "NumTasks": "1",
}
UNSET = {"set": False, "infinite": False, "number": 0}
REST: Mapping[str, Any] = {
    **dict.fromkeys(("name", "user_name", "account", "partition", "qos", "nodes"), "x"),
    **dict.fromkeys(("state_reason", "state_description", "admin_comment", "comment"), ""),
    **dict.fromkeys(("tres_per_job", "tres_per_socket", "tres_per_task"), ""),
    **dict.fromkeys(("start_time", "end_time", "submit_time", "eligible_time"), UNSET),
    "job_id": 7,
    "user_id": 1000,
    "array_task_string": "",
    "array_task_id": UNSET,
    "array_job_id": {"set": True, "infinite": False, "number": 0},
    "priority": {"set": True, "infinite": False, "number": 1},
    "time_limit": {"set": True, "infinite": False, "number": 10},
    "tasks": {"set": True, "infinite": False, "number": 1},
    "restart_cnt": 0,
    "het_job_id": {"set": True, "infinite": False, "number": 0},
}


class OfPyslurm:
    """A ``pyslurm.Job``."""

    array_id = comment = admin_comment = state_reason = None
    id, user_id, priority, time_limit, requeue_count = 7, 1000, 1, 10, 0
    name = account = partition = qos = "x"
    heterogeneous_id: int | None = None
    submit_time = start_time = end_time = eligible_time = allocated_nodes = None

    def __init__(self, state: JobState, gpus: int, per_node: str, given: Mapping[str, int]) -> None:
        self.state = state
        self.gres_per_node = {per_node.rpartition(":")[0].replace(":", "/", 1): 1}
        self._given = given
        gres = {"gpu": type("Gres", (), {"count": gpus})()}
        self.allocated_tres = self.requested_tres = type("Tres", (), {"gres": gres})()

    def get_resource_layout_per_node(self) -> Mapping[str, Any]:
        return {"n1": {"gres": {kind: {"count": count} for kind, count in self._given.items()}}}


def by_each_door(state: JobState, asked: str, given: Mapping[str, int]) -> list[JobView]:
    text = ",".join(f"{kind}:{count}(IDX:0)" for kind, count in given.items())
    row = {**ROW, "State": state, "tres-alloc": "cpu=1,gres/gpu=1", "tres-per-node": asked}
    (by_command,) = parse_jobs([row], {}, ignored)
    rest = {
        **REST,
        "job_state": [state],
        "tres_per_node": asked,
        "tres_req_str": "cpu=1,gres/gpu=1",
        "tres_alloc_str": "",
        "gres_detail": [text] if state in ALLOTTED else [],
    }
    return [
        by_command,
        rest_records.job_view(rest, str, ignored),
        pyslurm_records.job_view(OfPyslurm(state, 1, asked, given), str, ignored),
    ]


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING, JobState.COMPLETING])
def test_every_door_reads_the_type_that_is_asked_for(state: JobState) -> None:
    given = {f"gpu:{ONE}": 1} if state is JobState.RUNNING else {}
    for job in by_each_door(state, f"gres:gpu:{ONE}:1", given):
        assert (dict(job.gpus), job.untyped_gpus, job.unread) == ({ONE: 1}, 0, frozenset())


def test_every_door_knows_a_component_of_a_heterogeneous_job() -> None:
    (plain,) = parse_jobs([{**ROW, "State": "RUNNING"}], {}, ignored)
    assert (plain.het_job_id, "het_job_id" in plain.unread) == (0, False)
    assert [one.het_job_id for one in by_each_door(JobState.PENDING, "", {})] == [0] * 3
    (by_command,) = parse_jobs([{**ROW, "State": "RUNNING", "HetJobId": "5"}], {}, ignored)
    number = {"set": True, "infinite": False, "number": 5}
    rest = {**REST, "job_state": ["RUNNING"], "het_job_id": number}
    by_rest = rest_records.job_view(rest, str, ignored)
    component = OfPyslurm(JobState.RUNNING, 1, "", {})
    component.heterogeneous_id = 5
    by_pyslurm = pyslurm_records.job_view(component, str, ignored)
    assert [one.het_job_id for one in (by_command, by_rest, by_pyslurm)] == [5, 5, 5]


def test_a_component_that_no_door_can_read_is_none_of_plain_jobs() -> None:
    (unread,) = parse_jobs([{**ROW, "State": "RUNNING", "HetJobId": "?"}], {}, ignored)
    assert (unread.het_job_id, "het_job_id" in unread.unread) == (-1, True)


def test_what_nothing_names_is_known_as_such() -> None:
    for job in by_each_door(JobState.PENDING, "gres:gpu:1", {}):
        assert (dict(job.gpus), job.untyped_gpus, job.unread) == ({}, 1, frozenset())
    _, by_rest, by_pyslurm = by_each_door(JobState.RUNNING, "gres:gpu:1", {f"gpu:{THREE}": 1})
    assert dict(by_rest.gpus) == dict(by_pyslurm.gpus) == {THREE: 1}
