"""Tests reading recorded replies of three Slurm versions, and texts that users put into them."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.jobs import JobState, JobView, PartitionView, StepView
from slicewise.cluster.language.slurm import job_rows, parse
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.cluster.language.slurm.unread import Unread, ignored
from slicewise.cluster.language.slurm.values import without_prompts

ASSETS = Path(__file__).parents[4] / "assets" / "slurm"
VERSIONS = ("22.05.8", "24.11.5", "26.05.5")
SEPARATOR = "x7c1fx"
ALICE = 1001

# The columns of the recorded squeue, whose own separator is "|".
RECORDED_FIELDS = [
    "JobArrayId",
    "ArrayJobId",
    "ArrayTaskId",
    "JobId",
    "State",
    "Reason",
    "UserName",
    "Account",
    "QOS",
    "PriorityLong",
    "tres-alloc",
    "tres-per-node",
    "tres-per-job",
    "NodeList",
    "StartTime",
    "EligibleTime",
    "RestartCnt",
    "TimeLimit",
    "TimeUsed",
    "Comment",
    "admin_comment",
    "Name",
]
NOT_RECORDED = {
    "UserId": str(ALICE),
    "Partition": "gpu",
    "SubmitTime": "1795222565",
    "EndTime": "N/A",
    "tres-per-socket": "N/A",
    "tres-per-task": "N/A",
    "NumTasks": "1",
    "HetJobId": "N/A",
}


def recorded(version: str, name: str) -> str:
    return (ASSETS / version / name).read_text(encoding="utf-8")


def squeue_text(rows: Iterator[Mapping[str, str]]) -> str:
    """As squeue prints it with the format of ``job_rows.job_format``."""
    return "".join(
        "".join(row[field] + SEPARATOR for field in job_rows.JOB_FIELDS) + "\n" for row in rows
    )


def recorded_rows(version: str) -> Iterator[Mapping[str, str]]:
    for line in recorded(version, "squeue-O.txt").splitlines()[1:]:
        cells = line.removesuffix("|").split("|", len(RECORDED_FIELDS) - 1)
        yield {**NOT_RECORDED, **dict(zip(RECORDED_FIELDS, cells, strict=True))}


def jobs_of(text: str, pending: Mapping[int, frozenset[int]]) -> tuple[JobView, ...]:
    return job_rows.parse_jobs(
        job_rows.parse_rows(text, job_rows.JOB_FIELDS, SEPARATOR), pending, ignored
    )


def recorded_jobs(version: str) -> tuple[JobView, ...]:
    folded = recorded(version, "squeue-o-arrays-folded.txt")
    pending = job_rows.parse_pending(
        "\n".join(line.split("|")[0] for line in folded.splitlines()), ignored
    )
    return jobs_of(squeue_text(recorded_rows(version)), pending)


def by_name(version: str) -> Mapping[str, JobView]:
    return {job.name: job for job in recorded_jobs(version)}


def slots(version: str) -> Mapping[int | None, JobView]:
    return {job.task_index: job for job in recorded_jobs(version) if job.name == "svc-bert"}


def row(**values: str) -> Mapping[str, str]:
    plain = {
        "JobId": "7",
        "ArrayJobId": "7",
        "ArrayTaskId": "N/A",
        "Name": "job",
        "UserName": "alice",
        "Account": "vision",
        "QOS": "normal",
        "State": "PENDING",
        "Reason": "None",
        "PriorityLong": "1",
        "admin_comment": "(null)",
        "Comment": "(null)",
        "tres-alloc": "(null)",
        "tres-per-node": "N/A",
        "tres-per-job": "N/A",
        "NodeList": "",
        "StartTime": "N/A",
        "EligibleTime": "N/A",
        "TimeLimit": "10:00",
        "RestartCnt": "0",
    }
    return {**NOT_RECORDED, **plain, **values}


def one(**values: str) -> JobView:
    (job,) = jobs_of(squeue_text(iter([row(**values)])), {})
    return job


@pytest.mark.parametrize("version", VERSIONS)
def test_every_slot_of_an_array_is_found(version: str) -> None:
    tasks = slots(version)
    assert tasks.keys() == {None, 0, 1, 2, 5, 6}
    assert tasks[None].untouched == {3, 4, 7}
    assert tasks[None].job_id == tasks[None].array_job_id == tasks[0].array_job_id
    assert len({job.job_id for job in tasks.values()}) == 6


@pytest.mark.parametrize("version", VERSIONS)
def test_task_zero_is_a_running_task(version: str) -> None:
    first = slots(version)[0]
    assert (first.task_index, first.state, first.held) == (0, JobState.RUNNING, False)
    assert first.nodes == ("gpu01",)
    assert first.tres["gres/gpu:1g.10gb"] == "1"
    assert first.time_limit_s == 1800
    assert first.start_s is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_held_slots_are_held_by_whom_slurm_says(version: str) -> None:
    tasks = slots(version)
    assert {index for index, job in tasks.items() if job.held} == {None, 1, 5, 6}
    assert tasks[None].reason == tasks[5].reason == "JobHeldUser"
    assert tasks[6].reason == "JobHeldAdmin"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_requeued_slot_shows_its_request_and_restarts(version: str) -> None:
    back = slots(version)[1]
    assert (back.state, back.restarts) == (JobState.PENDING, 1)
    assert back.reason == "job requeued in held state"
    assert back.tres["gres/gpu:1g.10gb"] == "1"
    assert back.nodes == ()


@pytest.mark.parametrize("version", VERSIONS)
def test_free_text_stays_in_its_field(version: str) -> None:
    jobs = by_name(version)
    odd = jobs["with spaces = and | bar"]
    assert (odd.user, odd.comment, odd.nodes) == ("bob", "a=b c", ("gpu03",))
    tagged = jobs["set:priority=#0;admin_comment=slicewise:tok=42"]
    assert (tagged.admin_comment, tagged.held) == ("slicewise:tok=42", True)


@pytest.mark.parametrize("version", VERSIONS)
def test_plain_jobs_are_no_arrays(version: str) -> None:
    job = by_name(version)["waits"]
    assert (job.array_job_id, job.task_index, job.untouched) == (None, None, frozenset())
    assert (job.reason, job.held, job.priority) == ("Resources", False, 200)
    assert job.tres["gres/gpu:1g.10gb"] == "7"


def test_a_name_cannot_pose_as_another_record() -> None:
    lie = "x\n999 999 N/A alice\n\nJobId=999 AdminComment=slicewise:1 token=ff tenant=nlp\n|"
    text = squeue_text(iter([row(Name=lie, Comment=lie), row(JobId="8", ArrayJobId="8")]))
    jobs = jobs_of(text, {})
    assert [(job.job_id, job.admin_comment) for job in jobs] == [(7, ""), (8, "")]
    assert (jobs[0].name, jobs[0].comment) == (lie, lie)


def test_evenly_spaced_indices_are_completed() -> None:
    # squeue -r of 22.05 leaves out the last of 0-4:2.
    shown = [row(JobId="9", ArrayJobId="9", ArrayTaskId=index) for index in ("0", "2")]
    split = [row(JobId="10", ArrayJobId="9", ArrayTaskId="6", State="RUNNING")]
    jobs = jobs_of(squeue_text(iter(shown + split)), {9: frozenset({0, 2, 4, 6})})
    assert [(job.task_index, job.untouched) for job in jobs] == [
        (None, {0, 2, 4}),
        (6, frozenset()),
    ]


def test_a_rest_that_ended_is_no_longer_untouched() -> None:
    indices = ("0", "1")
    rows = (row(ArrayTaskId=index, State="CANCELLED", PriorityLong="0") for index in indices)
    (rest,) = jobs_of(squeue_text(rows), {})
    assert (rest.array_job_id, rest.task_index, rest.untouched) == (7, None, frozenset())
    assert not rest.held


def test_the_last_task_bears_the_id_of_the_array() -> None:
    last = one(JobId="9", ArrayJobId="9", ArrayTaskId="3", State="RUNNING")
    assert (last.job_id, last.array_job_id, last.task_index) == (9, 9, 3)
    assert last.untouched == frozenset()


def test_more_than_64_characters_of_indices() -> None:
    indices = frozenset(range(0, 1000, 7)) - {14}
    listed = ",".join(str(i) for i in sorted(indices))
    assert job_rows.parse_pending(f"9_[{listed}%4]\n9_14\n10\n", ignored) == {9: indices | {14}}


def test_arrays_with_a_throttle() -> None:
    text = "9_[0-3,7%4]\n9_8\n10_[1-2]\n11\n12_[5%1]\n13_[0-8:2%2]\n"
    assert job_rows.parse_throttled(text) == {9, 12, 13}
    assert job_rows.parse_throttled("") == frozenset()


@pytest.mark.parametrize(
    ("word", "state", "held"),
    [
        ("PENDING", JobState.PENDING, True),
        ("SPECIAL_EXIT", JobState.SPECIAL_EXIT, True),
        ("REQUEUE_HOLD", JobState.PENDING, True),
        ("COMPLETING", JobState.COMPLETING, False),
        ("RUNNING", JobState.RUNNING, False),
        ("CANCELLED", JobState.ENDED, False),
        ("PREEMPTED", JobState.ENDED, False),
        ("SIGNALING", JobState.RUNNING, False),
        ("STOPPED", JobState.RUNNING, False),
        ("STAGE_OUT", JobState.OTHER, False),
        ("?", JobState.OTHER, False),
    ],
)
def test_states(word: str, state: JobState, held: bool) -> None:
    job = one(State=word, PriorityLong="0")
    assert (job.state, job.held) == (state, held)


def test_unreadable_replies_are_failures() -> None:
    for text in ("squeue: something new\n", f"7{SEPARATOR}7{SEPARATOR}\n"):
        with pytest.raises(OutsideError, match="SW-SLURM-FAILED"):
            jobs_of(text, {})
    with pytest.raises(OutsideError, match="SW-SLURM-FAILED"):
        one(JobId="many")


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_newer_versions_have_the_fields_of_squeue(version: str) -> None:
    told = recorded(version, "squeue-helpformat.txt").split()
    # Its help leaves out tres-per-node.
    known = {name.lower() for name in (*told, *RECORDED_FIELDS)}
    assert {field.lower() for field in job_rows.JOB_FIELDS} <= known


def test_a_release_waits_for_the_run_that_ended_last() -> None:
    untouched = {"State": "PENDING", "RestartCnt": "0", "SubmitTime": "500"}
    back = {"State": "SPECIAL_EXIT", "RestartCnt": "2", "SubmitTime": "600"}
    ending = {"State": "COMPLETING", "RestartCnt": "0", "SubmitTime": "500"}
    assert job_rows.last_end_s([], 700) == 0
    assert job_rows.last_end_s([untouched], 700) == 0
    assert job_rows.last_end_s([untouched, back], 700) == 600
    assert job_rows.last_end_s([back, ending], 700) == 700


@pytest.mark.parametrize("version", VERSIONS)
def test_nodes(version: str) -> None:
    nodes = {node.name: node for node in parse.parse_nodes(recorded(version, NODE_FILE), ignored)}
    assert nodes["gpu01"].address == "127.0.0.1"
    assert nodes["gpu01"].gpus == {"1g.10gb": 7, "3g.40gb": 2}
    assert nodes["gpu01"].gpus_allotted == {"1g.10gb": 6, "3g.40gb": 1}
    assert nodes["gpu01"].gpus_held == {0, 1, 2, 3, 4, 5, 7}
    assert nodes["gpu03"].states == {"MIXED", "DRAIN"}
    assert {node.partitions for node in nodes.values()} == {frozenset({"gpu"})}
    assert {node.blocked for node in nodes.values()} == {""}


def test_the_reason_of_a_node_is_read_without_who_gave_it() -> None:
    text = "NodeName=n1 State=IDLE+INVAL\n   Comment=a Reason=b\n"
    text += "   Reason=gres/gpu count too low (0 < 7) [slurm@2026-11-21T00:56:19]\n"
    (node,) = parse.parse_nodes(text, ignored)
    assert node.reason == "gres/gpu count too low (0 < 7)"
    (node,) = parse.parse_nodes("NodeName=n1 State=IDLE\n", ignored)
    assert node.reason == ""


def test_a_node_whose_cpus_are_all_taken() -> None:
    text = recorded("22.05.8", NODE_FILE).replace("CPUAlloc=4 ", "CPUAlloc=16 ")
    nodes = {node.name: node.blocked for node in parse.parse_nodes(text, ignored)}
    assert nodes["gpu01"] == "all of its CPUs are taken"
    assert nodes["gpu02"] == ""


NODE_FILE = "scontrol-show-node-d.txt"


def test_node_states_without_their_signs_and_gpus_in_several_lines() -> None:
    text = (
        "NodeName=n1 Arch=x86_64\n   Gres=gpu:a:1(S:0),gpu:a:2(S:1),gpu:4\n"
        "   GresUsed=gpu:a:1(IDX:0,2),gpu:(null):0(IDX:N/A)\n   NodeAddr=n1\n"
        "   State=IDLE+NOT_RESPONDING* Weight=17\n   Reason=State=DOWN Gres=gpu:b:9\n"
    )
    (node,) = parse.parse_nodes(text, ignored)
    assert (node.gpus, node.gpus_allotted) == ({"a": 3}, {"a": 1})
    assert node.weight == 17
    assert node.states == {"IDLE", "NOT_RESPONDING"}


STEP = """StepId=1_1.1 UserId=61761 StartTime=2026-11-21T01:52:12 TimeLimit=UNLIMITED
   State=RUNNING Partition=gpu NodeList=gpu[01-02]
   Nodes=1 CPUs=1 Tasks=1 Name={name} Network=(null)
   TRES=cpu=1,gres/gpu:1g.10gb=1,gres/gpu=1,mem=100M,node=1
   ResvPorts={ports}
   CPUFreqReq=Default Dist=Cyclic
   SrunHost:Pid=localhost:16835
   TresPerNode=gres:gpu:1g.10gb:1

"""
LYING_NAME = (
    "x ResvPorts=9 NodeList=gpu09\n   ResvPorts=8\n   State=RUNNING Partition=gpu NodeList=gpu08\n"
)


def test_ports_of_a_step() -> None:
    expected = StepView(4, "1", ("gpu01", "gpu02"), (20004, 20005, 20007))
    for name in ("triton", LYING_NAME):
        text = STEP.format(name=name, ports="20004-20005,20007")
        assert parse.parse_step(text, 4, "1") == expected


def test_steps_without_ports_are_left_out() -> None:
    for text in (STEP.format(name=LYING_NAME, ports="(null)"), "Job step 7.0 not found\n", ""):
        assert parse.parse_step(text, 7, "0") is None


def test_only_steps_of_srun_are_asked_for() -> None:
    text = "1_3.0\n1_3.batch\n2.extern\n2.12\n3.interactive\n"
    assert parse.parse_step_ids(text) == (("1_3", "0"), ("2", "12"))


def columns(text: str, wanted: tuple[str, ...], renamed: Mapping[str, str]) -> str:
    header, *lines = text.splitlines()
    rows = (dict(zip(header.split("|"), line.split("|"), strict=True)) for line in lines)
    return "".join("|".join(r.get(renamed.get(f, f), "") for f in wanted) + "\n" for r in rows)


def associations(text: str, own: str) -> tuple[Association, ...]:
    return parse.parse_associations(text, own, parse.ASSOCIATION_FIELDS, ignored)


@pytest.mark.parametrize("version", VERSIONS)
def test_associations_and_qos(version: str) -> None:
    text = recorded(version, "sacctmgr-assoc-P.txt")
    fields = parse.ASSOCIATION_FIELDS
    shown = columns(text, fields, {"DefaultQOS": "Def QOS"})
    rows = parse.parse_associations(shown, shown, fields, ignored)
    alice = next(row for row in rows if row.user == "alice")
    assert (alice.account, alice.default_qos) == ("a", "guaranteed")
    assert alice.qos == {"borrowed", "guaranteed", "normal", "premium"}
    qos = parse.parse_qos(
        columns(recorded(version, "sacctmgr-qos-P.txt"), parse.QOS_FIELDS, {}), ignored
    )
    assert qos[1] == Qos("guaranteed", {}, frozenset({"borrowed"}), priority=100)


def test_limits_of_an_association() -> None:
    """As 22.05 shows it."""
    text = (
        "c|vision|||root|normal||billing=3000,gres/gpu:1g.10gb=2,mem=1.5T|billing=60|||cpu=9|20\n"
        "c|vision|alice|gpu||normal||billing=1|||500||parent\n"
    )
    row, theirs = associations(text, text)
    assert (row.partition, theirs.partition) == ("", "gpu")
    assert row.grp_tres == {"billing": 3000, "gres/gpu:1g.10gb": 2, "mem": 1_572_864}
    assert row.grp_tres_run_mins == {"billing": 60}
    assert (row.grp_tres_mins, theirs.grp_tres_mins) == ({"cpu": 9}, {})
    assert (row.bounds_submits, theirs.bounds_submits) == (False, True)
    assert (row.share, theirs.share) == (20, None)


def test_an_account_with_any_name_spoils_no_other_row() -> None:
    text = (
        "c|a|b|||root|normal||billing=1|||||\nc|new\nline|||root|normal|||||||\n"
        "c|vision|||root||||||||\n"
    )
    assert [row.account for row in associations(text, text)] == ["a|b", "vision"]


def test_a_row_that_a_name_imitates_is_none() -> None:
    """Of the marks between the fields each says the same, and one is not the other."""
    columns = ("Cluster", "User", "ID", *parse.ASSOCIATION_FIELDS[1:2], "Cluster", "ID")
    columns = (*columns, *parse.ASSOCIATION_FIELDS[3:])
    rest = "|".join("" for _ in parse.ASSOCIATION_FIELDS[3:])
    imitated = ("c|alice|4|nlp|4|c", "c|alice|c|nlp|c|c", "9|alice|9|nlp|9|9")
    lines = (f"c|{one}\n{row}|{rest}\nx|7|vision|c|7" for one, row in enumerate(imitated))
    text = "".join(f"{line}|{rest}\n" for line in ("c||1|root|c|1", "c|bob|2|nlp|c|2", *lines))
    told: list[Unread] = []
    found = parse.parse_associations(text, text, columns, told.append)
    assert [(row.account, row.user) for row in found] == [("root", ""), ("nlp", "bob")]
    assert {one.record for one in told} == {"association"}


@pytest.mark.parametrize(
    "printed",
    [
        "sacctmgr: show assoc format=Cluster\nc|a\nc|b\nsacctmgr: \n",
        "sacctmgr: show assoc format=Cluster\nc|a\nc|b\nsacctmgr: ",
        "sacctmgr: c|a\nc|b\nsacctmgr: ",
        "c|a\nc|b\n",
    ],
)
def test_prompts_are_no_rows(printed: str) -> None:
    """With readline, without it, and none at all."""
    assert without_prompts(printed).split() == ["c|a", "c|b"]


def test_what_is_inherited_is_not_an_associations_own() -> None:
    """As 22.05 shows it, without ``wopl`` and with it."""
    text = "c|vision|||root|long,normal|long||||||\nc|vision|alice|||long,normal|long||||||\n"
    own = "c|vision|||root|long|long||||||\nc|vision|alice||||||||||\n"
    account, alice = associations(text, own)
    assert (account.own_qos, account.own_default_qos) == ({"long"}, "long")
    assert alice == Association(
        "c", "vision", "alice", "", frozenset({"long", "normal"}), "long", {}
    )


def test_qos_of_other_clusters() -> None:
    text = "here|normal,slicewise_a\nthere|normal,slicewise_b\nfurther|slicewise_vision_borrowed\n"
    elsewhere = {"normal", "slicewise_b", "slicewise_vision_borrowed"}
    for here in ("here", "Here"):
        assert parse.parse_qos_elsewhere(text, here, ignored) == elsewhere


def test_limits_and_preemption_of_a_qos() -> None:
    """As 22.05 shows it."""
    text = (
        "own||a_borrowed,b_borrowed|billing=2000|billing=600000||cluster|||00:00:00\n"
        "a_borrowed|billing=0||||1-00:02:30|REQUEUE|NoReserve,OverPartQOS|7|00:00:30\n"
    )
    own, borrowed = parse.parse_qos(text, ignored)
    preempts = frozenset({"a_borrowed", "b_borrowed"})
    assert own == Qos("own", {}, preempts, {"billing": 2000}, {"billing": 600_000})
    assert borrowed == Qos(
        "a_borrowed",
        {"billing": 0},
        frozenset(),
        {},
        {},
        86_550,
        "requeue",
        frozenset({"noreserve", "overpartqos"}),
        7,
        30,
    )


def test_partitions() -> None:
    (gpu,) = parse.parse_partitions(recorded("22.05.8", "scontrol-show-partition.txt"), ignored)
    assert (gpu.name, gpu.qos) == ("gpu", "")
    weights = {"cpu": 0, "mem": 0, "gres/gpu:1g.10gb": 1000, "gres/gpu:3g.40gb": 3500}
    assert gpu.billing_weights == {**weights, "gres/gpu:1g.18gb": 1000, "gres/gpu:3g.71gb": 3500}


@pytest.mark.parametrize(
    ("said", "has_default_memory"),
    [
        ("DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED", False),
        ("DefMemPerCPU=100 MaxMemPerNode=UNLIMITED", True),
        ("DefMemPerNode=UNLIMITED\n   JobDefaults=DefMemPerGPU=16000", True),
        ("JobDefaults=(null) DefMemPerNode=UNLIMITED", False),
    ],
)
def test_whether_a_partition_has_memory_for_who_asks_for_none(
    said: str, has_default_memory: bool
) -> None:
    (view,) = parse.parse_partitions(f"PartitionName=a\n   {said}\n", ignored)
    assert view.has_default_memory is has_default_memory


def test_what_jobs_may_have_of_a_node() -> None:
    """CoreSpecCount and MemSpecLimit are the node's own; older Slurm counts all CPUs."""
    text = (
        "NodeName=a CPUEfctv=60 CPUTot=64 ThreadsPerCore=2 RealMemory=1000 MemSpecLimit=100\n\n"
        "NodeName=b CPUTot=64 RealMemory=many\n"
    )
    told: list[Unread] = []
    first, second = parse.parse_nodes(text, told.append)
    assert (first.cpus, first.threads_per_core, first.memory_mib) == (60, 2, 900)
    assert (second.cpus, second.threads_per_core, second.memory_mib) == (64, 1, 0)
    assert [one.field for one in told] == ["RealMemory"]


def test_partitions_without_weights_with_units_and_a_qos() -> None:
    text = (
        "PartitionName=a\n   QoS=part AllowQos=x\n   State=UP\n\n"
        "PartitionName=b\n   DenyQos=y,z QoS=N/A\n   TRESBillingWeights=CPU=1.5,Mem=0.25G\n"
    )
    first, second = parse.parse_partitions(text, ignored)
    assert (first.allow_qos, first.deny_qos) == ({"x"}, set())
    assert (second.qos, second.allow_qos, second.deny_qos) == ("", None, {"y", "z"})
    assert (first.name, first.billing_weights, first.qos) == ("a", {}, "part")
    assert second.billing_weights == {"cpu": 1.5, "mem": 0.25 / 1024}
    told: list[Unread] = []
    odd = parse.parse_partitions("PartitionName=b TRESBillingWeights=CPU=much", told.append)
    assert odd == (PartitionView("b", {}, "", has_default_memory=False),)
    assert told == [Unread("partition", "b", "TRESBillingWeights", "CPU=much")]


def test_words_that_bar_users_or_give_whole_nodes() -> None:
    (view,) = parse.parse_partitions(
        "PartitionName=a\n   ExclusiveUser=NO RootOnly=YES ReqResv=NO\n"
        "   LLN=YES OverSubscribe=EXCLUSIVE\n",
        ignored,
    )
    assert view.words == {"OverSubscribe=EXCLUSIVE", "RootOnly=YES", "LLN=YES"}


def test_the_longest_time_of_a_partition() -> None:
    text = (
        "PartitionName=a MaxTime=1-00:00:00 DefaultTime=01:00:00\n\n"
        "PartitionName=b MaxTime=UNLIMITED DefaultTime=NONE\n"
    )
    found = parse.parse_partitions(text, ignored)
    assert [(one.max_time_s, one.default_time_s) for one in found] == [(86_400, 3600), (None, None)]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_version_is_the_controllers(version: str) -> None:
    config = parse.parse_config(recorded(version, "scontrol-show-config.txt"))
    assert parse.parse_version(config["SLURM_VERSION"]) == tuple(map(int, version.split(".")))
    assert config["ClusterName"] == f"c{version[:2]}"


def test_odd_versions() -> None:
    assert parse.parse_version("26.05.0-0rc1") == (26, 5, 0)
    with pytest.raises(OutsideError, match="SW-SLURM-FAILED"):
        parse.parse_version("master")


def test_parts_of_shared_gpus_in_use_are_those_of_alloc_tres() -> None:
    """GresUsed has the number of GPUs that are shared: as 22.05 prints a node with jobs."""
    text = (
        "NodeName=a Gres=gpu:a100:1,shard:a100:8\n"
        " GresUsed=gpu:a100:0(IDX:N/A),shard:a100:1(IDX:0),mps:0\n AllocTRES=cpu=3,gres/shard=6\n"
    )
    (node,) = parse.parse_nodes(text, ignored)
    assert (node.shared, node.shared_allotted) == ({"shard": 8}, {"shard": 6})
    assert (node.gpus, node.gpus_allotted) == ({"a100": 1}, {"a100": 0})


def test_coordinators_are_read_of_each_account():
    text = "root||\nvision|alice,bob\nlab|\n".replace("root||", "root|")
    assert parse.parse_coordinators(text, ignored) == {
        "root": frozenset(),
        "vision": {"alice", "bob"},
        "lab": frozenset(),
    }


@pytest.mark.parametrize(
    "name",
    ["x|mallory", "x\nvision|mallory\ny", "x\nvision|mallory", "vision|mallory\ny", "x,y\nvision"],
)
def test_no_name_of_an_account_makes_a_coordinator_of_another(name: str):
    """A coordinator of an account below chooses it."""
    for first, second in (("vision|alice", f"{name}|mallory"), (f"{name}|mallory", "vision|alice")):
        found = parse.parse_coordinators(f"root|\n{first}\n{second}\n", ignored)
        assert "mallory" not in found["vision"]
