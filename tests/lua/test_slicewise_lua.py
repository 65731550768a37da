"""Tests submissions: what slicewise.lua asks, and how it applies the answer."""

from pathlib import Path
from typing import Any

import pytest
from lua_slurmctld import (
    ALICE,
    DENIED,
    POLICY,
    SUCCESS,
    UNSET,
    UNSET_16,
    answering,
    run_calls,
    run_case,
)

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gres import GpuRequest, parse_gpu_requests
from slicewise.cluster.language.jobs import JobTag
from slicewise.cluster.language.service import directives_of_script
from slicewise.cluster.rpc.messages import SubmitRequest

TAG = "slicewise:1 token=TOKEN tenant=vision"
SERVICE_SCRIPT = "#!/bin/bash\n#SBATCH --hold\n#SLICEWISE name=bert\n\nsrun x\n#SLICEWISE late=1\n"
GPU_JOB = {"account": "vision", "tres_per_node": "gres:gpu:1g.10gb:1", "name": "j"}
ONLY_GPU = {"partitions": ["gpu"]}
ALLOWED = {"without_gpu": "allow"}
"""Where jobs without GPUs may run in managed partitions."""


@pytest.mark.parametrize(
    "job_desc",
    [
        {"account": "vision", "script": "#!/bin/sh\ntrue\n"},
        {"gres": "gres:license:1"},
        {"ntasks_per_tres": UNSET_16},
        {"script": "#!/bin/sh\ntrue\n#SLICEWISE name=late\n"},
    ],
)
def test_a_job_without_gpu_asks_nobody(path: Path, listening: Any, job_desc: Any) -> None:
    daemon = listening(answering(action="refuse", code="SW-X", message="no"))
    assert run_case(path, job_desc=job_desc, configure=ALLOWED)["code"] == SUCCESS
    assert daemon.questions == []


def test_the_question_holds_what_slurm_says(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    job_desc = {
        **GPU_JOB,
        "tres_per_task": "gres/gpu:1g.10gb=1",
        "qos": "normal",
        "num_tasks": 8,
        "min_nodes": 2,
        "ntasks_per_node": 4,
        "cpus_per_task": 3,
        "shared": 0,
        "requeue": 0,
        "array_inx": "0-3",
        "time_limit": 60,
        "default_account": "not asked for",
        "script": SERVICE_SCRIPT,
        "environment": {"SLICEWISE_EXPLAIN": "1"},
    }
    run_case(path, job_desc=job_desc)
    (question,) = daemon.questions
    assert len(bytes.fromhex(question.pop("token"))) == 8
    assert question == {
        "v": 1,
        "op": "submit",
        "module": "1.0",
        "mode": "enforce",
        "uid": ALICE,
        "account": "vision",
        "partition": "gpu",
        "qos": "normal",
        "name": "j",
        "gres": "gres:gpu:1g.10gb:1",
        "tres_per_task": "gres/gpu:1g.10gb=1",
        "tasks": 8,
        "min_nodes": 2,
        "tasks_per_node": 4,
        "cpus_per_task": 3,
        "exclusive": True,
        "requeue": False,
        "array": "0-3",
        "time_limit_min": 60,
        "explain": True,
        "directives": ["#SLICEWISE name=bert"],
    }


def test_the_daemon_can_read_every_question(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    largest = {"num_tasks": UNSET - 1, "min_nodes": UNSET - 1, "cpus_per_task": UNSET_16 - 1}
    run_calls(path, [{"job_desc": GPU_JOB | largest}, {"job_desc": {**GPU_JOB, "requeue": 1}}])
    first, second = map(SubmitRequest.model_validate, daemon.questions)
    assert (first.tasks, first.cpus_per_task) == (UNSET - 1, UNSET_16 - 1)
    assert second.requeue is True
    assert first.token != second.token


NOT_SET = {
    "num_tasks": UNSET,
    "min_nodes": UNSET,
    "ntasks_per_node": UNSET_16,
    "cpus_per_task": UNSET_16,
    "shared": UNSET_16,
    "requeue": UNSET_16,
    "time_limit": UNSET,
    "ntasks_per_tres": UNSET_16,
    "het_job_offset": UNSET,
}


def test_what_is_not_set_is_left_out(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    job_desc = {**NOT_SET, "gres": "gpu:1g.10gb:1", "default_account": "nlp", "script": "#!/bin/sh"}
    run_case(path, job_desc=job_desc)
    (question,) = daemon.questions
    assert question["default_account"] == "nlp"
    always = {"v", "op", "module", "mode", "token", "uid", "partition", "gres", "default_account"}
    assert question.keys() == always


@pytest.mark.parametrize(
    ("job_desc", "interactive"),
    [
        ({}, True),
        ({"het_job_offset": 0}, True),
        ({"het_job_offset": 1}, None),
        ({"script": "#!/bin/sh\n"}, None),
    ],
)
def test_without_a_script_a_job_is_interactive(
    path: Path, listening: Any, job_desc: Any, interactive: bool | None
) -> None:
    """Only the first part of a heterogeneous batch job has the script."""
    daemon = listening(answering(action="pass"))
    run_case(path, job_desc=GPU_JOB | job_desc)
    assert daemon.questions[0].get("interactive") == interactive


def test_hostile_text_arrives_as_one_line(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    name = 'a"\n\\\x00%s]]; os.execute("x") é'
    run_case(path, job_desc={**GPU_JOB, "name": name})
    assert daemon.questions[0]["name"] == name


@pytest.mark.parametrize(
    "job_desc",
    [
        {"gres": "gpu"},
        {"tres_per_node": "gres:gpu:1g.10gb:1,gres:gpu:3g.40gb:1"},
        {"tres_per_job": "gres/gpu:2"},
        {"tres_per_socket": "gres:gpu:1"},
        {"tres_per_task": "gres/gpu:1g.10gb=1"},
        {"tres_per_node": "gres:gpu:auto:2"},
        {"tres_per_node": "gres:shard:2"},
        {"gres": "mps:50"},
        {"shared": 0},
        {"ntasks_per_tres": 2},
        {"script": "#!/bin/sh\n#SLICEWISE need=9GiB\n"},
        {"script": "#!/bin/sh\n#SLICEWISE class=low\n"},
    ],
)
def test_each_way_in_is_asked_about(path: Path, listening: Any, job_desc: Any) -> None:
    daemon = listening(answering(action="refuse", code="SW-X", message="no"))
    assert run_case(path, job_desc=job_desc, configure=ONLY_GPU)["code"] == DENIED
    assert len(daemon.questions) == 1


@pytest.mark.parametrize(
    ("partition", "asked"), [("gpu", 1), ("cpu,gpu", 1), ("cpu", 0), ("gpu2", 0), (None, 1)]
)
@pytest.mark.parametrize("request_", [{"gres": "gpu:2"}, {"shared": 0}])
def test_other_partitions_are_not_asked_about(
    path: Path, listening: Any, partition: str | None, asked: int, request_: Any
) -> None:
    daemon = listening(answering(action="pass"))
    job_desc = {**request_, **({"partition": partition} if partition else {})}
    run_case(path, job_desc=job_desc, configure=ONLY_GPU)
    assert len(daemon.questions) == asked


@pytest.mark.parametrize(("partition", "asked"), [(None, ["cpu,gpu"]), ("cpu", [])])
def test_a_reservation_may_bring_its_own_partition(
    path: Path, listening: Any, partition: str | None, asked: list[str]
) -> None:
    """Slurm looks at it after us, and takes its default only if the reservation has none."""
    daemon = listening(answering(action="pass"))
    job_desc = {"gres": "gpu:2", "reservation": "course"}
    job_desc |= {"partition": partition} if partition else {}
    elsewhere = {"cpu": {"flag_default": 1}, "gpu": {"flag_default": 0}}
    result = run_case(path, job_desc=job_desc, configure=ONLY_GPU, part_list=elsewhere)
    assert [question["partition"] for question in daemon.questions] == asked
    assert result["job_desc"].get("partition") == partition


@pytest.mark.parametrize(("version", "prefix"), [("22.05", "gres:"), ("24.11", "gres/")])
def test_the_gpus_of_ntasks_per_gpu_are_asked_about(
    path: Path, listening: Any, version: str, prefix: str
) -> None:
    """In the words of this Slurm: it takes no others back."""
    daemon = listening(answering(action="pass"))
    fields: list[dict[str, Any]] = [
        {},
        {"num_tasks": 5},
        {"tres_per_job": f"{prefix}license:1"},
        {"tres_per_node": f"{prefix}license:1", "gres": f"{prefix}license:1"},
    ]
    calls = [{"job_desc": {"ntasks_per_tres": 2, **more}} for more in fields]
    results = run_calls(path, calls, slurm=version)
    assert [question["tres_per_job"] for question in daemon.questions] == [
        f"{prefix}gpu:1",
        f"{prefix}gpu:3",
        f"{prefix}license:1,{prefix}gpu:1",
        f"{prefix}gpu:1",
    ]
    assert parse_gpu_requests(daemon.questions[2]["tres_per_job"]) == (GpuRequest(None, 1),)
    assert [result["job_desc"] for result in results] == [call["job_desc"] for call in calls]


def test_admit_sets_the_fields(path: Path, listening: Any) -> None:
    texts = {
        "tres_per_job": "gres:gpu:1g.10gb:2",
        "tres_per_socket": "gres:gpu:1g.10gb:3",
        "tres_per_task": "gres/gpu:1g.10gb=4",
        "qos": "slicewise_vision",
    }
    numbers = {"site_factor": 700, "hold": True}
    listening(answering(action="admit", gres="gpu:1g.10gb:1", tag=TAG, **texts, **numbers))
    result = run_case(path, job_desc={**GPU_JOB, "admin_comment": "site text"}, slurm="22.05")
    job = result["job_desc"]
    assert result["code"] == SUCCESS
    assert {key: job[key] for key in texts} == texts
    assert (job["gres"], job["site_factor"], job["priority"]) == ("gres:gpu:1g.10gb:1", 700, 0)
    assert job["admin_comment"].startswith("site text slicewise:1 token=")


def test_a_slot_is_one_node_and_may_be_requeued(path: Path, listening: Any) -> None:
    """Whatever its script says: else nothing gives its GPU back, or it holds several."""
    listening(answering(action="admit", tag=f"{TAG} service=bert", hold=True))
    script = {"script": "#!/bin/sh\n#SLICEWISE name=bert\n"}
    said = {**GPU_JOB, **script, "requeue": 0, "min_nodes": 1, "max_nodes": 2}
    job = run_case(path, job_desc=said)["job_desc"]
    assert (job["requeue"], job["min_nodes"], job["max_nodes"]) == (1, 1, 1)


def test_a_slot_has_as_many_nodes_as_the_daemon_says(path: Path, listening: Any) -> None:
    """With a task on each, whatever its script says."""
    listening(answering(action="admit", tag=f"{TAG} service=bert", hold=True, nodes=2))
    script = {"script": "#!/bin/sh\n#SLICEWISE name=bert\n#SLICEWISE nodes=2\n"}
    job = run_case(path, job_desc={**GPU_JOB, **script, "min_nodes": 1, "num_tasks": 1})["job_desc"]
    assert (job["min_nodes"], job["max_nodes"]) == (2, 2)
    assert (job["num_tasks"], job["ntasks_per_node"]) == (2, 1)


def test_admit_leaves_other_fields_alone(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="admit", qos="slicewise_vision", tag=TAG))
    result = run_case(path, job_desc=GPU_JOB)
    tag = TAG.replace("TOKEN", daemon.questions[0]["token"])
    assert result["job_desc"] == {**GPU_JOB, "qos": "slicewise_vision", "admin_comment": tag}
    assert result["told"] == ""


@pytest.mark.parametrize(
    ("explain", "notices", "told"),
    [
        ("1", "asked", "N\nD"),
        ("0", "asked", ""),
        (None, "asked", ""),
        (None, "always", "N"),
        ("1", "always", "N\nD"),
    ],
)
def test_who_has_a_job_accepted_is_told_what_he_asked_for(
    path: Path, listening: Any, explain: str | None, notices: str, told: str
) -> None:
    """Workflow tools take any word on stderr for a part of the job's id."""
    listening(answering(action="admit", tag=TAG, notice="N", decision="D"))
    environment = {"SLICEWISE_EXPLAIN": explain} if explain else {}
    job_desc = {**GPU_JOB, "script": "#!/bin/sh\n", "environment": environment}
    assert run_case(path, job_desc=job_desc, configure={"notices": notices})["told"] == told


def test_notices_are_not_told_by_default_and_srun_can_not_ask(path: Path, listening: Any) -> None:
    listening(answering(action="admit", tag=TAG, notice="N", decision="D"))
    asks = {"environment": {"SLICEWISE_EXPLAIN": "1"}}
    assert run_case(path, job_desc={**GPU_JOB, "script": "#!/bin/sh\n"})["told"] == ""
    assert run_case(path, job_desc={**GPU_JOB, **asks})["told"] == ""


REFUSAL = {"action": "refuse", "code": "SW-QUOTA-NONE", "message": "No 100%s.", "hint": "Ask."}


@pytest.mark.parametrize(("code", "rc"), [("SW-QUOTA-NONE", POLICY), ("SW-SERVICE", DENIED)])
def test_a_refusal_is_told(path: Path, listening: Any, code: str, rc: int) -> None:
    listening(answering(**{**REFUSAL, "code": code}))
    result = run_case(path, job_desc=GPU_JOB)
    assert result["code"] == rc
    assert result["told"].splitlines() == ["No 100%s.", "Ask.", code]


def test_advise_tells_but_never_refuses(path: Path, listening: Any) -> None:
    listening(answering(**REFUSAL))
    result = run_case(path, job_desc=GPU_JOB, configure={"mode": "advise"})
    assert result["code"] == SUCCESS
    assert "SW-QUOTA-NONE" in result["told"]
    assert "the job is accepted" in result["told"]
    refused = run_case(path, job_desc=GPU_JOB, configure={"mode": "enforce"})
    assert "accepted" not in refused["told"]


@pytest.mark.parametrize("answer", [REFUSAL, {"action": "admit", "qos": "q", "tag": TAG}])
def test_observe_changes_and_tells_nothing(path: Path, listening: Any, answer: Any) -> None:
    listening(answering(**answer, notice="N"))
    result = run_case(path, job_desc=GPU_JOB, configure={"mode": "observe"})
    assert (result["code"], result["told"]) == (SUCCESS, "")
    assert result["job_desc"] == GPU_JOB
    assert f"would {answer['action']}" in result["logged"]


@pytest.mark.parametrize(
    ("said", "logged"),
    [({"code": "SW-X"}, "would refuse SW-X"), ({"tag": TAG}, "would admit"), ({}, "would pass")],
)
def test_a_daemon_that_observes_lets_pass(
    path: Path, listening: Any, said: Any, logged: str
) -> None:
    listening(answering(action="pass", **said))
    result = run_case(path, job_desc=GPU_JOB, configure={"mode": "observe"})
    assert logged in result["logged"]
    enforced = run_case(path, job_desc=GPU_JOB, configure={"mode": "enforce"})
    assert (enforced["code"], enforced["job_desc"], enforced["told"]) == (SUCCESS, GPU_JOB, "")


@pytest.mark.parametrize(
    ("said", "then"),
    [
        ({"SLURM_GPUS": "auto:2"}, {"SLURM_GPUS": "2"}),
        ({"SLURM_GPUS_PER_NODE": "auto"}, {"SLURM_GPUS_PER_NODE": "1"}),
        ({"SLURM_GPUS_PER_TASK": "auto=3"}, {"SLURM_GPUS_PER_TASK": "3"}),
        (
            {"SLURM_TRES_PER_TASK": "cpu=2,gres/gpu:auto=1"},
            {"SLURM_TRES_PER_TASK": "cpu=2,gres/gpu:1"},
        ),
        ({"SLURM_GPUS": "auto-1:2", "OTHER": "auto:2"}, {"SLURM_GPUS": "auto-1:2"}),
    ],
)
@pytest.mark.parametrize("has_answer", [True, False])
def test_steps_of_a_script_ask_for_no_type_auto(
    path: Path, listening: Any, said: Any, then: Any, has_answer: bool
) -> None:
    """Slurm knows none, and srun finds there what sbatch was asked for."""
    if has_answer:
        listening(answering(action="admit", gres="gpu:1g.10gb:1", tag=TAG))
    job = {"account": "vision", "gres": "gpu:auto:2", "script": "#!/bin/sh\n", "environment": said}
    result = run_case(path, job_desc=job)
    assert result["job_desc"]["environment"] == said | then


def test_who_starts_srun_is_told_that_steps_know_no_auto(path: Path, listening: Any) -> None:
    listening(answering(action="admit", gres="gpu:1g.10gb:1", tag=TAG))
    auto, typed = run_calls(
        path, [{"job_desc": {"gres": "gpu:auto"}}, {"job_desc": {"gres": "gpu:1g.10gb:1"}}]
    )
    assert "srun can't find the type auto" in auto["told"]
    assert typed["told"] == ""


def test_the_kill_switch_lets_everything_pass(path: Path, listening: Any) -> None:
    daemon = listening(answering(**REFUSAL))
    off = path.with_name("off")
    off.touch()
    service = {"account": "vision", "script": SERVICE_SCRIPT}
    release = {"priority": 4294967295}
    tagged = {"admin_comment": "slicewise:1 token=ab12 tenant=vision service=bert"}
    results = run_calls(
        path,
        [
            {"job_desc": {"gres": "gpu:1"}},
            {"job_desc": service},
            {"call": "job_modify", "job_desc": release, "job_rec": tagged},
        ],
    )
    assert [(result["code"], result["told"]) for result in results] == [(SUCCESS, "")] * 3
    assert results[0]["job_desc"] == {"gres": "gpu:1"}
    assert [result["logged"] for result in results] == [f"slicewise: off because of {off}", "", ""]
    assert daemon.questions == []


def undecided(job_desc: dict[str, Any]) -> JobTag | None:
    """The tag of a job that was let through without an answer."""
    return JobTag.find(job_desc.get("admin_comment", ""))


TYPED = [
    {"tres_per_node": "gres:gpu:1g.10gb:1,gres:gpu:3g.40gb:1"},
    {"gres": "gpu:1g.10gb"},
    {"tres_per_task": "gres/gpu:1g.10gb=1"},
    {"tres_per_node": "gres:gpu:A-100.x+y:1"},
    {"tres_per_node": "gres:gpu:pad4x:1"},
    {"ntasks_per_tres": 1, "tres_per_job": "gres:gpu:1g.10gb:2"},
    {"shared": 0},
]
OPEN = [
    {"gres": "gpu"},
    {"tres_per_node": "gres:gpu:2"},
    {"tres_per_job": "gres/gpu:2"},
    {"tres_per_task": "gres/gpu=1"},
    {"gres": "gpu:1g.10gb:1", "tres_per_job": "gpu:1"},
    {"tres_per_node": "gres:gpu:+1"},
    {"tres_per_job": "gres:gpu:+1"},
    {"tres_per_node": "gres:gpu: 1"},
    {"tres_per_node": "gres:gpu:1k"},
    {"tres_per_node": "gres:gpu:1g.10gb:+1"},
    {"tres_per_node": "gres:gpu:_x:1"},
    {"tres_per_node": "gres:gpu::1"},
    {"tres_per_node": "gres:shard:2"},
    {"gres": "mps:50"},
    # What is not cut of a GPU: such a job would run for nothing.
    {"tres_per_node": "gres:gpu:pad4:1"},
    {"gres": "gpu:1g.10gb:1,gpu:pad12"},
    {"ntasks_per_tres": 1, "num_tasks": 2},
    {"script": "#!/bin/sh\n#SLICEWISE need=9GiB\n"},
    {"script": "#!/bin/sh\n#SLICEWISE need=9GiB\n", "gres": "gpu:1g.10gb:1"},
]


@pytest.mark.parametrize("request_", TYPED)
def test_without_an_answer_typed_gpus_go_on_and_are_decided_later(
    path: Path, request_: Any
) -> None:
    job = {"account": "Vision", **request_}
    result = run_case(path, job_desc=job)
    changed = result["job_desc"]
    tag = undecided(changed)
    assert tag is not None
    assert (tag.tenant, tag.is_undecided, tag.is_flexible) == ("vision", True, False)
    assert (result["code"], result["told"]) == (SUCCESS, "")
    assert changed == job | {"admin_comment": tag.text()}


@pytest.mark.parametrize("request_", OPEN)
def test_without_an_answer_gpus_that_slurm_can_not_limit_wait(path: Path, request_: Any) -> None:
    job = {"default_account": "nlp", "admin_comment": "site", **request_}
    assert run_case(path, job_desc=job)["told"] == ""
    result = run_case(path, job_desc=job, configure={"notices": "always"})
    tag = undecided(result["job_desc"])
    assert tag is not None
    assert (tag.tenant, tag.is_undecided) == ("nlp", True)
    assert result["job_desc"] == job | {"admin_comment": f"site {tag.text()}", "priority": 0}
    assert result["code"] == SUCCESS
    assert "the job is held" in result["told"].splitlines()[0]


@pytest.mark.parametrize(
    ("request_", "then"),
    [
        ({"gres": "gpu:auto"}, {"gres": "gres/gpu"}),
        ({"gres": "gres:gpu:auto:2,gres:nic:1"}, {"gres": "gres/gpu:2,nic:1"}),
        ({"tres_per_node": "gres/gpu:auto:2"}, {"gres": "gres/gpu:2"}),
        ({"tres_per_job": "gres:gpu:auto:2"}, {"tres_per_job": "gres:gpu:2"}),
        ({"tres_per_task": "gres/gpu:auto=1"}, {"tres_per_task": "gres/gpu=1"}),
    ],
)
def test_without_an_answer_the_type_auto_is_left_out(path: Path, request_: Any, then: Any) -> None:
    """Slurm 22.05 would keep it beside the type that is chosen later, and start nothing."""
    job = {"account": "vision", **request_}
    result = run_case(path, job_desc=job)
    tag = undecided(result["job_desc"])
    assert tag is not None
    assert (tag.is_undecided, tag.was_auto) == (True, True)
    assert result["job_desc"] == job | then | {"admin_comment": tag.text(), "priority": 0}


@pytest.mark.parametrize(
    ("named", "then"),
    [
        ({}, "slicewise_vision"),
        ({"qos": "normal"}, "slicewise_vision"),
        ({"qos": "slicewise_vision"}, "slicewise_vision"),
        ({"qos": "slicewise_vision_borrowed"}, "slicewise_vision_borrowed"),
        ({"qos": "Slicewise_Vision_Borrowed"}, "slicewise_vision_borrowed"),
        ({"qos": "slicewise_nlp_borrowed"}, "slicewise_vision"),
    ],
)
def test_without_an_answer_no_job_escapes_into_another_qos(
    path: Path, listening: Any, named: Any, then: str
) -> None:
    """There it would not count as guaranteed, and no lender could take back what it holds."""
    answer = answering(action="admit", tag="slicewise:1 token=TOKEN tenant=vision", qos="q")
    silent_from = 1

    def reply(question: dict[str, Any]) -> bytes | None:
        return answer(question) if len(daemon.questions) <= silent_from else None

    daemon = listening(reply, closes=True)
    job = {"account": "Vision", "gres": "gpu:1g.10gb:1"}
    other = {"account": "nlp", "gres": "gpu:1g.10gb:1", **named}
    first, late, never_seen = run_calls(
        path, [{"job_desc": job}, {"job_desc": job | named}, {"job_desc": other}]
    )
    assert first["job_desc"]["qos"] == "q"
    assert late["job_desc"]["qos"] == then
    assert never_seen["job_desc"].get("qos") == named.get("qos")


def test_without_an_answer_who_is_no_tenant_any_more_waits_at_the_gate(
    path: Path, listening: Any
) -> None:
    """In the QOS that it may use no more Slurm would refuse the job."""
    answers = [
        {"action": "admit", "tag": "slicewise:1 token=TOKEN tenant=vision", "qos": "q"},
        {"action": "refuse", "code": "SW-QUOTA-NONE", "message": "No quota."},
    ]

    def reply(question: dict[str, Any]) -> bytes | None:
        at = len(daemon.questions) - 1
        return answering(**answers[at])(question) if at < len(answers) else b"\n"

    daemon = listening(reply)
    job = {"account": "Vision", "gres": "gpu:1g.10gb:1"}
    admitted, refused, late = run_calls(path, [{"job_desc": job}] * 3)
    assert (admitted["code"], refused["code"], late["code"]) == (SUCCESS, POLICY, SUCCESS)
    assert late["job_desc"].get("qos") is None


@pytest.mark.parametrize("account", [{}, {"account": "a b"}, {"account": "é"}, {"account": "a\n"}])
def test_without_an_answer_and_a_tenant_there_is_no_tag(path: Path, account: Any) -> None:
    """Nobody could decide on it later."""
    typed, untyped = run_calls(
        path,
        [
            {"job_desc": account | {"gres": "gpu:1g.10gb:1"}},
            {"job_desc": account | {"gres": "gpu"}},
        ],
    )
    assert (typed["code"], typed["job_desc"]) == (SUCCESS, account | {"gres": "gpu:1g.10gb:1"})
    assert untyped["code"] == DENIED
    assert "--gres=gpu:TYPE:N" in untyped["told"]


@pytest.mark.parametrize(
    "job_desc",
    [
        {"gres": "gpumem:1"},
        {"script": "#!/bin/sh\n#SLICEWISE class=low\n"},
        {"script": "#!/bin/sh\n#SLICEWISE need=1GiB\n", "partition": "cpu"},
        {"ntasks_per_tres": UNSET_16},
    ],
)
def test_without_an_answer_a_job_without_gpus_goes_on(path: Path, job_desc: Any) -> None:
    job = {"account": "vision", **job_desc}
    result = run_case(path, job_desc=job, configure=ONLY_GPU | ALLOWED)
    assert (result["code"], result["job_desc"], result["told"]) == (SUCCESS, job, "")


@pytest.mark.parametrize("mode", ["observe", "advise"])
@pytest.mark.parametrize("request_", [{"gres": "gpu:1"}, {"script": SERVICE_SCRIPT}, GPU_JOB])
def test_without_an_answer_only_enforce_changes_anything(
    path: Path, mode: str, request_: Any
) -> None:
    job = {"account": "vision", **request_}
    result = run_case(path, job_desc=job, configure={"mode": mode})
    assert (result["code"], result["job_desc"], result["told"]) == (SUCCESS, job, "")


def test_without_an_answer_a_service_is_refused(path: Path) -> None:
    result = run_case(path, job_desc={"account": "vision", "script": SERVICE_SCRIPT})
    assert result["code"] == DENIED
    assert "SW-DAEMON-DOWN" in result["told"]
    assert "Try again" in result["told"]


@pytest.mark.parametrize(
    ("directive", "is_service"),
    [
        ("#SLICEWISE name=x", True),
        ("  #SLICEWISE \t name=x", True),
        ("#SLICEWISE name", False),
        ("#SLICEWISEname=x", False),
        ("#SLICEWISE class=low", False),
    ],
)
def test_a_name_makes_a_service(path: Path, directive: str, is_service: bool) -> None:
    script = f"#!/bin/sh\n{directive}\n"
    result = run_case(path, job_desc={"script": script}, configure=ALLOWED)
    assert (result["code"] == DENIED) == is_service


def test_an_error_inside_lets_a_typed_job_pass(path: Path) -> None:
    result = run_case(path, job_desc=GPU_JOB, raise_on_read="tres_per_node")
    assert result["code"] == SUCCESS
    assert "no field tres_per_node" in result["logged"]


@pytest.mark.parametrize(
    ("request_", "mode", "code"),
    [
        ({"tres_per_node": "gres/gpu:1"}, "enforce", DENIED),
        ({"tres_per_node": "gres/gpu:1"}, "advise", SUCCESS),
        ({"tres_per_node": "gres/gpu:1", "partition": "cpu"}, "enforce", SUCCESS),
        (GPU_JOB, "enforce", SUCCESS),
        ({}, "enforce", DENIED),
        ({}, "advise", SUCCESS),
        ({"partition": "cpu"}, "enforce", SUCCESS),
    ],
)
def test_an_error_inside_lets_no_untyped_job_pass(
    path: Path, request_: Any, mode: str, code: int
) -> None:
    configured = {**ONLY_GPU, "mode": mode}
    result = run_case(path, job_desc=request_, raise_on_read="num_tasks", configure=configured)
    assert result["code"] == code
    assert "no field num_tasks" in result["logged"]
    if request_ == {}:
        case = {"job_desc": {}, "raise_on_read": "num_tasks", "configure": configured | ALLOWED}
        assert run_case(path, **case)["code"] == SUCCESS


HEAD, MIB = 65_536, 2**20
HOSTILE = {
    "blanks": "#!/bin/sh\n" + " " * MIB + "#SLICEWISE need=1GiB",
    "blanks within": "#SLICEWISE a" + " " * (HEAD - 20) + "b\n",
    "blanks at the end": "#SLICEWISE a=1" + "\t " * MIB,
    "lines of blanks": "  \n" * HEAD + "#SLICEWISE a=1",
    "lines of blanks before one": "  \n" * 21_000 + "#SLICEWISE a=1",
    "empty lines": "\n" * (HEAD - 20) + "#SLICEWISE a=1",
    "comments": "#\n" * 32_000 + "#SLICEWISE a=1",
    "one line": "#" * MIB,
    "long directives": ("#SLICEWISE " + "a " * 1500 + "\n") * 20,
    "one long directive": "#SLICEWISE" * MIB,
}
BUDGET = {"timeout_s": 0.010}
LIMIT_S = 1.0
"""Of the processor's time. What grows with the square of a text takes many times as long."""


@pytest.mark.parametrize("script", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_script_costs_no_time(path: Path, listening: Any, script: str) -> None:
    listening(answering(action="pass"))
    result = run_case(path, job_desc={"script": script}, configure=BUDGET)
    assert result["processor_s"] < LIMIT_S


HOSTILE_GRES = {
    "letters": "gpu:" + "a" * MIB,
    "digits": "gpu:" + "1" * MIB,
    "counts": "gpu:a:" + "1" * MIB,
    "colons": "gpu" + ":" * MIB,
    "commas": "," * MIB,
    "parts": "gres:gpu:a:1," * (MIB // 13),
    "blanks": " " * MIB + "gpu",
    "prefixes": "gres:" * (MIB // 5) + "gpu",
    "short parts": "gpu," * 255,
    "short commas": ",a" * 511,
    "short blanks": " " * 1020 + "gpu",
}
TEXTS = ("tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task", "partition")


@pytest.mark.parametrize("gres", HOSTILE_GRES.values(), ids=HOSTILE_GRES)
def test_hostile_texts_cost_no_time(path: Path, listening: Any, gres: str) -> None:
    listening(answering(action="pass"))
    text = "hostile"
    others = dict.fromkeys(("name", "array_inx", "account", "qos", "default_account"), text)
    job = dict.fromkeys(TEXTS, text)
    rec = job | {"admin_comment": text}
    change = {"call": "job_modify", "job_rec": rec}
    calls = [
        {"job_desc": job | others},
        {"job_desc": GPU_JOB | {"name": text, "array_inx": text}},
        {"job_desc": job, **change},
        {"job_desc": {"partition": "gpu"}, **change},
    ]
    for result in run_calls(path, calls, configure=BUDGET, texts={text: gres}):
        assert result["processor_s"] < LIMIT_S


@pytest.mark.parametrize("field", [*TEXTS, "account", "qos"])
def test_a_text_too_long_to_be_read_is_refused(path: Path, listening: Any, field: str) -> None:
    daemon = listening(answering(action="pass"))
    job = {**GPU_JOB, field: "a" * 1025}
    result = run_case(path, job_desc=job, configure=ONLY_GPU)
    assert result["code"] == DENIED
    assert f"The job's {field} has more than 1024 bytes." in result["told"]
    assert "SW-JOB-OPTION" in result["told"]
    observed = run_case(path, job_desc=job, configure=ONLY_GPU | {"mode": "observe"})
    assert (observed["code"], observed["told"]) == (SUCCESS, "")
    assert daemon.questions == []
    longest = {**GPU_JOB, field: "a" * 1024}
    assert run_case(path, job_desc=longest, configure=ALLOWED)["code"] == SUCCESS


def test_elsewhere_texts_may_be_as_long_as_they_like(path: Path) -> None:
    job = {"account": "a" * 2000, "partition": "cpu"}
    assert run_case(path, job_desc=job, configure=ONLY_GPU)["code"] == SUCCESS


def test_a_directive_that_is_too_long_is_cut_so_that_it_is_refused(
    path: Path, listening: Any
) -> None:
    daemon = listening(answering(action="pass"))
    longest = "#SLICEWISE model=".ljust(2048, "x")
    run_case(path, job_desc={"script": f"{longest}\n{longest}yyy\n"})
    kept, cut = daemon.questions[0]["directives"]
    assert directives_of_script((kept,)) == {"model": kept[17:]}
    with pytest.raises(InvalidInputError, match="SW-DIRECTIVE"):
        directives_of_script((cut,))
    assert len(cut) == 2049


def test_a_long_head_is_bounded(path: Path, listening: Any) -> None:
    daemon = listening(answering(action="pass"))
    script = "#!/bin/sh\n" + "#SLICEWISE a=1\n" * 200 + "# x\n" * 100_000 + "#SLICEWISE z=1\n"
    run_case(path, job_desc={"script": script})
    assert daemon.questions[0]["directives"] == ["#SLICEWISE a=1"] * 64


@pytest.mark.parametrize("options", [{"mode": "maybe"}, {"timeout_s": 0}, {"sokcet": "/x"}])
def test_configure_refuses_nonsense(path: Path, options: Any) -> None:
    with pytest.raises(AssertionError, match="slicewise: "):
        run_case(path, job_desc={}, configure=options)
