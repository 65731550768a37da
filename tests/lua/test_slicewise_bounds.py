"""Tests the refusal of jobs that would keep others from GPUs without being charged for them."""

from pathlib import Path
from typing import Any

import pytest
from lua_slurmctld import DENIED, MODULE, SUCCESS, UNSET, UNSET_16, answering, run_case

TYPED = {"account": "vision", "tres_per_node": "gres:gpu:1g.10gb:1"}
ONLY_GPU = {"partitions": ["gpu"]}
SHARES = {
    "1g.10gb": {"cpus": 2, "memory_mib": 2000},
    "3g.40gb": {"cpus": 6, "memory_mib": 6000},
}
ADMIT = answering(action="admit", qos="q", tag="slicewise:1 token=TOKEN tenant=vision")
USER, MCS, TOPOLOGY = 2, 3, 4

WITHOUT_GPU: list[dict[str, Any]] = [
    {},
    {"num_tasks": 64, "cpus_per_task": 16, "min_nodes": 4},
    {"min_nodes": 4, "min_mem_per_node": 0},
    {"req_nodes": "gpu[01-04]"},
    {"partition": "gpu"},
    {"partition": "cpu,gpu"},
    {"reservation": "course"},
    {"gres": "gres:license:1"},
    {"gres": "gres:none"},
    {"tres_per_node": "gres:gpu:1g.10gb:0"},
    {"tres_per_job": "gres/gpu:1g.10gb=0"},
    {"script": "#!/bin/sh\n#SLICEWISE class=low\n"},
    {"het_job_offset": 1},
]


@pytest.mark.parametrize("job_desc", WITHOUT_GPU)
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_job_without_gpus_is_refused(
    path: Path, listening: Any, job_desc: Any, is_answered: bool
) -> None:
    if is_answered:
        listening(answering(action="pass"))
    result = run_case(path, job_desc=job_desc, configure=ONLY_GPU)
    assert result["code"] == DENIED
    assert "SW-WITHOUT-GPU" in result["told"]
    elsewhere = job_desc | {"partition": "cpu"}
    assert run_case(path, job_desc=elsewhere, configure=ONLY_GPU)["code"] == SUCCESS
    for mode in ("observe", "advise"):
        weaker = run_case(path, job_desc=job_desc, configure=ONLY_GPU | {"mode": mode})
        assert weaker["code"] == SUCCESS
    path.with_name("off").touch()
    assert run_case(path, job_desc=job_desc, configure=ONLY_GPU)["code"] == SUCCESS


@pytest.mark.parametrize("job_desc", [*WITHOUT_GPU, {"shared": 2}])
def test_root_may_look_at_nodes_without_gpus(path: Path, job_desc: Any) -> None:
    """As repartitioning does; a user for whom root submits is bound like any other."""
    mine = run_case(path, job_desc=job_desc | {"user_id": 0}, configure=ONLY_GPU)
    assert (mine["code"], "SW-" in mine["told"]) == (SUCCESS, False)
    theirs = run_case(path, job_desc=job_desc | {"user_id": 1000}, configure=ONLY_GPU)
    assert theirs["code"] == DENIED


def test_wrong_directives_are_told_first(path: Path, listening: Any) -> None:
    listening(answering(action="refuse", code="SW-DIRECTIVE", message="no such key"))
    result = run_case(path, job_desc={"script": "#!/bin/sh\n#SLICEWISE ned=9GiB\n"})
    assert result["code"] == DENIED
    assert "SW-DIRECTIVE" in result["told"]


def test_each_mode_says_what_it_would_refuse(path: Path) -> None:
    observe, advise = (
        run_case(path, job_desc={"user_id": 1000}, configure={"mode": mode})
        for mode in ("observe", "advise")
    )
    assert (observe["told"], "SW-WITHOUT-GPU" in advise["told"]) == ("", True)
    for result in (observe, advise):
        assert result["logged"].endswith("SW-WITHOUT-GPU: a job of uid 1000")


@pytest.mark.parametrize("shared", [USER, MCS, TOPOLOGY])
@pytest.mark.parametrize("rule", ["refuse", "allow"])
@pytest.mark.parametrize("asked", [{}, TYPED, {"tres_per_job": "gres:gpu:2"}])
def test_no_job_keeps_a_node_for_one_user(
    path: Path, listening: Any, shared: int, rule: str, asked: Any
) -> None:
    """With GPUs, too: the node's others can't be had."""
    job_desc = asked | {"shared": shared, "min_nodes": 4}
    for _ in range(2):
        result = run_case(path, job_desc=job_desc, configure={"without_gpu": rule})
        assert (result["code"], "SW-JOB-OPTION" in result["told"]) == (DENIED, True)
        listening(ADMIT)


@pytest.mark.parametrize("shared", [1, UNSET_16, UNSET_16 + 1, None])
def test_whoever_shares_is_not_refused(path: Path, listening: Any, shared: int | None) -> None:
    listening(ADMIT)
    assert run_case(path, job_desc=TYPED | {"shared": shared})["code"] == SUCCESS


@pytest.mark.parametrize(
    "asked", [TYPED, TYPED | {"max_nodes": 4}, {"shared": 0}, {"gres": "gpu:1"}]
)
@pytest.mark.parametrize("is_answered", [True, False])
def test_no_job_has_gpus_on_no_node(
    path: Path, listening: Any, asked: Any, is_answered: bool
) -> None:
    """By the bare protocol, which sbatch does not speak, such a job ends slurmctld."""
    if is_answered:
        listening(ADMIT)
    job = {"account": "vision"} | asked
    for rule in ("refuse", "allow"):
        rules = ONLY_GPU | {"without_gpu": rule}
        result = run_case(path, job_desc=job | {"min_nodes": 0}, configure=rules)
        assert (result["code"], "SW-JOB-OPTION" in result["told"]) == (DENIED, True)
        for nodes in (1, UNSET):
            result = run_case(path, job_desc=job | {"min_nodes": nodes}, configure=rules)
            assert result["code"] == SUCCESS


NOT_SET = {
    "min_nodes": UNSET,
    "num_tasks": UNSET,
    "min_cpus": UNSET,
    "ntasks_per_node": UNSET_16,
    "cpus_per_task": UNSET_16,
    "pn_min_cpus": UNSET_16,
    "shared": UNSET_16,
}
THREE = {"tres_per_node": "gres:gpu:3g.40gb:1"}
BEYOND: list[tuple[dict[str, Any], bool]] = [
    # the job, whether it asks for more than its GPUs' share
    ({}, False),
    ({"cpus_per_task": 2}, False),
    ({"cpus_per_task": 3}, True),
    ({"num_tasks": 2, "cpus_per_task": 1}, False),
    ({"num_tasks": 2, "cpus_per_task": 2}, True),
    ({"min_cpus": 16}, True),
    ({"pn_min_cpus": 16}, True),
    ({"min_nodes": 2, "ntasks_per_node": 2}, False),
    ({"min_nodes": 2, "ntasks_per_node": 3}, True),
    ({"cpus_per_tres": "gres:gpu:2"}, False),
    ({"cpus_per_tres": "gres:gpu:16"}, True),
    ({"cpus_per_tres": "gres:gpu:" + "9" * 400}, True),
    ({"min_mem_per_node": 2000}, False),
    ({"min_mem_per_node": 2001}, True),
    ({"min_mem_per_node": 0}, True),
    ({"min_mem_per_cpu": 1000, "num_tasks": 2}, False),
    ({"min_mem_per_cpu": 1001, "num_tasks": 2}, True),
    ({"min_mem_per_cpu": 0}, True),
    ({"mem_per_tres": "gres:gpu:2000"}, False),
    ({"mem_per_tres": "gres:gpu:2001"}, True),
    # --gres-flags=enforce-binding, alone and among others; of the last one Lua has no low bits.
    *(({"bitflags": flags}, True) for flags in (16, 16 + 64, 2**40 + 16, 2**63 + 16)),
    *(({"bitflags": flags}, False) for flags in (0, 8 + 32, 2**40)),
    ({"shared": 0, "bitflags": 16}, False),
    (THREE | {"cpus_per_task": 6, "min_mem_per_node": 6000}, False),
    (THREE | {"cpus_per_task": 7}, True),
    ({"tres_per_node": "gres:gpu:1g.10gb:1,gres:gpu:3g.40gb:2", "min_cpus": 14}, False),
    ({"tres_per_node": "gres:gpu:1g.10gb:1,gres:gpu:3g.40gb:2", "min_cpus": 15}, True),
    ({"tres_per_job": "gres:gpu:1g.10gb:7", "min_nodes": 2, "num_tasks": 14}, False),
    ({"tres_per_node": None, "tres_per_job": "gres:gpu:1g.10gb:7", "num_tasks": 15}, True),
    ({"tres_per_node": None, "tres_per_task": "gres/gpu:1g.10gb=1", "num_tasks": 9}, False),
    ({"tres_per_task": "cpu:2"}, False),
    ({"tres_per_task": "cpu:16"}, True),
    ({"tres_per_node": None, "tres_per_task": "cpu=2,gres/gpu:1g.10gb=1", "num_tasks": 3}, False),
    ({"tres_per_node": None, "tres_per_task": "cpu=3,gres/gpu:1g.10gb=1", "num_tasks": 3}, True),
    ({"tres_per_node": None, "tres_per_task": "gres/gpu:1g.10gb:1,CPU=16"}, True),
    ({"tres_per_task": "cpu=1k"}, True),
    # Of no type, or of type auto: the cheapest that fits.
    ({"tres_per_node": "gres:gpu:auto:1", "cpus_per_task": 2}, False),
    ({"tres_per_node": "gres:gpu:auto:1", "cpus_per_task": 3}, True),
    ({"tres_per_node": None, "script": "#!/bin/sh\n#SLICEWISE need=9GiB\n"}, False),
    ({"tres_per_node": None, "script": "#SLICEWISE need=9GiB\n", "min_cpus": 3}, True),
    # Nobody said what its share is.
    ({"tres_per_node": "gres:gpu:7g.80gb:1", "cpus_per_task": 64}, False),
    # A whole node is charged as one.
    ({"shared": 0, "cpus_per_task": 16, "min_mem_per_node": 0}, False),
]


@pytest.mark.parametrize(("job_desc", "is_beyond"), BEYOND)
@pytest.mark.parametrize("is_answered", [True, False])
def test_a_job_has_its_gpus_share_of_a_node(
    path: Path, listening: Any, job_desc: Any, is_beyond: bool, is_answered: bool
) -> None:
    if is_answered:
        listening(ADMIT)
    job = NOT_SET | TYPED | job_desc
    result = run_case(path, job_desc=job, configure=ONLY_GPU | {"shares": SHARES})
    assert (result["code"] == DENIED, "SW-SHARE" in result["told"]) == (is_beyond, is_beyond)
    assert run_case(path, job_desc=job, configure=ONLY_GPU)["code"] == SUCCESS


@pytest.mark.parametrize(
    ("gres", "cpus", "is_beyond"),
    [("shard:2", 2, False), ("shard:2", 3, True), ("gres/shard", 2, True), ("mps:50", 64, False)],
)
def test_parts_of_shared_gpus_have_their_own_share(
    path: Path, listening: Any, gres: str, cpus: int, is_beyond: bool
) -> None:
    """An mps has no price and no share here: the daemon refuses it, whatever it asks for beside."""
    listening(ADMIT)
    shares = {**SHARES, "shard": {"cpus": 1}}
    job = NOT_SET | {"tres_per_node": gres, "cpus_per_task": cpus}
    told = run_case(path, job_desc=job, configure=ONLY_GPU | {"shares": shares})["told"]
    assert ("SW-SHARE" in told) == is_beyond


ONE_OF_TWO: list[tuple[dict[str, Any], bool]] = [
    # what Slurm gives of cores with two threads (NumCPUs of 22.05), and whether it is too much
    ({"num_tasks": 2, "min_cpus": 2}, False),
    ({"num_tasks": 2, "min_cpus": 2, "threads_per_core": 1}, True),
    ({"num_tasks": 2, "min_cpus": 2, "threads_per_core": 2}, False),
    ({"num_tasks": 1, "min_cpus": 1, "threads_per_core": 1}, False),
    ({"cpus_per_task": 2, "threads_per_core": 1}, True),
    ({"num_tasks": 2, "min_cpus": 2, "ntasks_per_core": 1}, True),
    ({"num_tasks": 2, "min_cpus": 2, "ntasks_per_core": 2}, False),
    (THREE | {"num_tasks": 3, "cpus_per_task": 1, "ntasks_per_core": 1}, False),
    (THREE | {"num_tasks": 4, "cpus_per_task": 1, "ntasks_per_core": 1}, True),
    (THREE | {"num_tasks": 2, "cpus_per_task": 3, "ntasks_per_core": 1}, True),
    (THREE | {"num_tasks": 6, "cpus_per_task": 1, "ntasks_per_core": 2}, False),
    (THREE | {"num_tasks": 3, "threads_per_core": 1}, False),
    (THREE | {"num_tasks": 4, "threads_per_core": 1}, True),
    ({"tres_per_node": "gpu:auto:1", "num_tasks": 2, "threads_per_core": 1}, True),
    ({"shared": 0, "num_tasks": 2, "threads_per_core": 1}, False),
    (
        {
            "tres_per_node": None,
            "script": "#SLICEWISE name=bert\n#SLICEWISE profile=1g.10gb\n",
            "cpus_per_task": 2,
            "threads_per_core": 1,
        },
        True,
    ),
]


@pytest.mark.parametrize(("job_desc", "is_beyond"), ONE_OF_TWO)
def test_who_uses_one_thread_of_a_core_has_asked_for_all(
    path: Path, listening: Any, job_desc: Any, is_beyond: bool
) -> None:
    """Slurm gave one slice twice its share of CPUs, and others on the node had none."""
    listening(ADMIT)
    job = NOT_SET | TYPED | {"threads_per_core": UNSET_16, "ntasks_per_core": UNSET_16} | job_desc
    two = {kind: share | {"threads": 2} for kind, share in SHARES.items()}
    result = run_case(path, job_desc=job, configure=ONLY_GPU | {"shares": two})
    assert (result["code"] == DENIED, "SW-SHARE" in result["told"]) == (is_beyond, is_beyond)
    result = run_case(path, job_desc=job, configure=ONLY_GPU | {"shares": SHARES})
    assert result["code"] == SUCCESS


REPLICA = {"script": "#!/bin/sh\n#SLICEWISE name=bert\n#SLICEWISE profile=1g.10gb\n"}
TWO = {"script": REPLICA["script"] + "#SLICEWISE gpus=2\n"}
ON_TWO = {"min_nodes": 2, "num_tasks": 2}
LARGER = {"script": REPLICA["script"].replace("1g.10gb", "3g.40gb")}
SERVICES: list[tuple[dict[str, Any], str]] = [
    # a service's array, the code that it is refused by
    (REPLICA, ""),
    (REPLICA | TYPED, ""),
    (REPLICA | {"shared": USER}, "SW-JOB-OPTION"),
    (REPLICA | TYPED | {"shared": MCS}, "SW-JOB-OPTION"),
    (REPLICA | {"cpus_per_task": 2, "min_mem_per_node": 2000}, ""),
    (REPLICA | {"cpus_per_task": 3}, "SW-SHARE"),
    (REPLICA | TYPED | {"cpus_per_task": 3}, "SW-SHARE"),
    (REPLICA | TYPED | {"min_mem_per_node": 0}, "SW-SHARE"),
    (LARGER | {"cpus_per_task": 6, "min_mem_per_node": 6000}, ""),
    (LARGER | {"cpus_per_task": 7}, "SW-SHARE"),
    (REPLICA | {"tres_per_node": "gres:gpu:1g.10gb:0"}, "SW-WITHOUT-GPU"),
    # A replica of several GPUs has the share of all of them, on each of its nodes.
    (TWO | {"cpus_per_task": 4, "min_mem_per_node": 4000}, ""),
    (TWO | {"cpus_per_task": 5}, "SW-SHARE"),
    (TWO | {"min_mem_per_node": 4001}, "SW-SHARE"),
    (TWO | ON_TWO | {"cpus_per_task": 4, "min_mem_per_node": 4000}, ""),
    (TWO | ON_TWO | {"cpus_per_task": 5}, "SW-SHARE"),
]


@pytest.mark.parametrize(("job_desc", "code"), SERVICES)
def test_a_service_keeps_no_more_from_others_than_a_job(
    path: Path, listening: Any, job_desc: Any, code: str
) -> None:
    """Its script is its tenant's to write, and a replica is charged its GPU alone."""
    listening(ADMIT)
    job = NOT_SET | {"account": "vision"} | job_desc
    result = run_case(path, job_desc=job, configure=ONLY_GPU | {"shares": SHARES})
    assert result["code"] == (DENIED if code else SUCCESS)
    assert code in result["told"]


GPUS_OF_A_JOB = {"tres_per_node": None, "tres_per_job": "gres/gpu:3g.40gb:2"}
MEMORY_LESS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    # the job, which memory it is given
    ({}, {"min_mem_per_node": 2000}),
    ({"min_nodes": 2}, {"min_mem_per_node": 2000}),
    ({"tres_per_node": "gres:gpu:1g.10gb:1,gres:gpu:3g.40gb:2"}, {"min_mem_per_node": 14000}),
    ({"tres_per_node": "gres:gpu:auto:1"}, {"min_mem_per_node": 2000}),
    ({"tres_per_node": None, "script": "#SLICEWISE need=9GiB\n"}, {"min_mem_per_node": 2000}),
    (GPUS_OF_A_JOB, {"mem_per_tres": "gres/gpu:6000"}),
    (GPUS_OF_A_JOB | {"tres_per_node": "gres/gpu:1g.10gb:1"}, {"mem_per_tres": "gpu:2000"}),
    (
        {"tres_per_node": None, "tres_per_task": "gres/gpu:1g.10gb=1"},
        {"mem_per_tres": "gres/gpu:2000"},
    ),
    ({"min_mem_per_node": 10}, {"min_mem_per_node": 10}),
    ({"min_mem_per_cpu": 10}, {"min_mem_per_cpu": 10}),
    ({"mem_per_tres": "gres:gpu:10"}, {"mem_per_tres": "gres:gpu:10"}),
    # Nobody said what its share is; a whole node; root's.
    ({"tres_per_node": "gres:gpu:7g.80gb:1"}, {}),
    ({"tres_per_node": None, "tres_per_job": "gres/gpu:7g.80gb:1,gres/gpu:1g.10gb:1"}, {}),
    ({"shared": 0}, {}),
    ({"user_id": 0}, {}),
]
MEMORY_FIELDS = ("min_mem_per_node", "min_mem_per_cpu", "mem_per_tres")


@pytest.mark.parametrize(("job_desc", "memory"), MEMORY_LESS)
@pytest.mark.parametrize("is_answered", [True, False])
def test_who_names_no_memory_gets_its_gpus_share(
    path: Path, listening: Any, job_desc: Any, memory: Any, is_answered: bool
) -> None:
    """Slurm gave one slice all that its node has, and the node's others could not be had."""
    if is_answered:
        listening(ADMIT)
    if text := job_desc.get("tres_per_node"):
        # As Slurm shows it by its older name, too.
        job_desc = {**job_desc, "gres": text.replace("gres/", "")}
    case = {"job_desc": NOT_SET | TYPED | job_desc, "configure": ONLY_GPU | {"shares": SHARES}}
    result = run_case(path, **case)
    assert result["code"] == SUCCESS
    assert {one: result["job_desc"][one] for one in MEMORY_FIELDS if one in result["job_desc"]} == (
        memory
    )


@pytest.mark.parametrize(
    ("default", "is_given"),
    [
        ({"def_mem_per_cpu": 100}, False),
        ({"def_mem_per_node": 100}, False),
        ({"def_mem_per_node": 0}, True),
        ({"def_mem_per_cpu": 2.0**63 - 2}, True),
    ],
)
def test_a_partitions_own_default_stays(path: Path, default: Any, is_given: bool) -> None:
    bounds = {"configure": ONLY_GPU | {"shares": SHARES}}
    partition = {"gpu": {"flag_default": 1} | default}
    result = run_case(path, job_desc=TYPED, part_list=partition, **bounds)
    assert ("min_mem_per_node" in result["job_desc"]) == is_given
    several = TYPED | {"partition": "gpu,other"}
    result = run_case(path, job_desc=several, part_list=partition, **bounds)
    assert result["job_desc"]["min_mem_per_node"] == 2000


def test_who_only_watches_gives_no_memory(path: Path) -> None:
    for mode, memory in (("observe", None), ("advise", 2000)):
        options = ONLY_GPU | {"shares": SHARES, "mode": mode}
        result = run_case(path, job_desc=TYPED, configure=options)
        assert result["job_desc"].get("min_mem_per_node") == memory
    result = run_case(path, job_desc=TYPED, configure=ONLY_GPU)
    assert "min_mem_per_node" not in result["job_desc"]


def test_the_numbers_that_a_user_reads_are_whole(path: Path) -> None:
    job = TYPED | {"num_tasks": 3, "cpus_per_task": 1}
    told = run_case(path, job_desc=job, configure={"shares": SHARES})["told"]
    assert "asks for 3 CPUs; with its GPUs it may have 2." in told


def test_without_its_libraries_a_job_is_decided_later(path: Path, tmp_path: Path) -> None:
    """As while the daemon is away: typed GPUs are held to Slurm's limits, others wait."""
    for file in MODULE.parent.glob("slicewise*.lua"):
        text = file.read_text().replace('require "cjson"', 'require "no.such.library"')
        (tmp_path / file.name).write_text(text)
    module = {"module": str(tmp_path / MODULE.name)}
    typed = run_case(path, job_desc=TYPED, **module)
    assert typed["code"] == SUCCESS
    assert typed["job_desc"]["admin_comment"].endswith(" tenant=vision undecided")
    untyped = run_case(path, job_desc={"account": "vision", "gres": "gpu:2"}, **module)
    assert untyped["job_desc"]["priority"] == 0
    assert "no.such.library" in typed["logged"]
    assert run_case(path, job_desc={}, **module)["code"] == DENIED


BESIDE = {"partitions": ["gpu"], "beside": ["all", "cpu"]}
CPU = {"partition": "cpu", "account": "vision", "default_qos": "slicewise_vision"}


def test_a_refusal_beside_names_the_partitions_that_give_gpus(path: Path) -> None:
    """A site's default partition may be one of these: users did not know where to go."""
    result = run_case(path, job_desc=CPU | TYPED, configure=BESIDE | {"partitions": ["gpu", "big"]})
    assert "in a managed partition (--partition=gpu or big)" in result["told"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (TYPED, "SW-JOB-OPTION"),
        ({"gres": "gpu:1"}, "SW-JOB-OPTION"),
        ({"tres_per_job": "gres/gpu:auto:1"}, "SW-JOB-OPTION"),
        ({"tres_per_task": "gres:shard:1"}, "SW-JOB-OPTION"),
        ({"ntasks_per_tres": 1}, "SW-JOB-OPTION"),
        ({"shared": 0}, "SW-JOB-OPTION"),
        ({"shared": USER}, "SW-JOB-OPTION"),
        ({"script": "#!/bin/sh\n#SLICEWISE need=4GiB\n"}, "SW-JOB-OPTION"),
        (TYPED | {"partition": "gpu,cpu"}, "SW-JOB-OPTION"),
        (TYPED | {"partition": "all,gpu"}, "SW-JOB-OPTION"),
        (TYPED | {"partition": "login"}, ""),
        ({}, ""),
        ({"num_tasks": 16}, ""),
        ({"gres": "license:1"}, ""),
        (TYPED | {"user_id": 0}, ""),
    ],
)
@pytest.mark.parametrize("is_answered", [True, False])
def test_on_the_nodes_of_managed_partitions_others_give_no_gpus(
    path: Path, listening: Any, asked: Any, code: str, is_answered: bool
) -> None:
    if is_answered:
        listening(answering(action="pass"))
    result = run_case(path, job_desc=CPU | asked, configure=BESIDE)
    assert (result["code"], code in result["told"]) == (DENIED if code else SUCCESS, True)
    for mode in ("observe", "advise"):
        weaker = run_case(path, job_desc=CPU | asked, configure=BESIDE | {"mode": mode})
        assert (weaker["code"], weaker["job_desc"].get("qos")) == (SUCCESS, None)
    path.with_name("off").touch()
    off = run_case(path, job_desc=CPU | asked, configure=BESIDE)
    assert (off["code"], off["job_desc"].get("qos")) == (SUCCESS, None)


@pytest.mark.parametrize(
    ("asked", "qos"),
    [
        ({}, "slicewise_vision_borrowed"),
        ({"qos": "slicewise_vision"}, "slicewise_vision_borrowed"),
        ({"qos": "Slicewise_NLP"}, "slicewise_nlp_borrowed"),
        ({"qos": "slicewise_nlp_borrowed"}, "slicewise_nlp_borrowed"),
        ({"qos": "normal"}, "normal"),
        ({"default_qos": "normal"}, None),
        ({"default_qos": None}, None),
        ({"user_id": 0}, None),
        ({"partition": "login"}, None),
    ],
)
def test_a_job_beside_gives_way_to_those_with_gpus(path: Path, asked: Any, qos: Any) -> None:
    result = run_case(path, job_desc=CPU | asked, configure=BESIDE)
    assert (result["code"], result["job_desc"].get("qos")) == (SUCCESS, qos)


def test_which_partition_a_reservation_brings_nobody_knows(path: Path, listening: Any) -> None:
    listening(ADMIT)
    job_desc = TYPED | {"reservation": "course"}
    result = run_case(path, job_desc=job_desc, configure={"partitions": ["gpu"], "beside": ["cpu"]})
    assert (result["code"], result["job_desc"]["qos"]) == (SUCCESS, "q")


IN_OWN_QOS = {"partition": "gpu", "account": "vision", "min_cpus": 16, "user_id": 1000}
NO_GPU_AT_ALL: list[dict[str, Any]] = [
    {},
    {"partition": "cpu,gpu"},
    {"script": "#!/bin/sh\n#SLICEWISE class=low\n"},
]


@pytest.mark.parametrize("asked", NO_GPU_AT_ALL)
@pytest.mark.parametrize("named", ["qos", "default_qos"])
def test_a_job_without_gpus_gives_way_to_those_with_gpus(
    path: Path, listening: Any, asked: Any, named: str
) -> None:
    """In its tenant's own QOS it ended, for CPUs and for nothing, what ran on borrowed quota."""
    daemon = listening(answering(action="pass"))
    job_desc = IN_OWN_QOS | {named: "Slicewise_vision"} | asked
    allowed = ONLY_GPU | {"without_gpu": "allow"}
    result = run_case(path, job_desc=job_desc, configure=allowed)
    assert (result["code"], result["job_desc"]["qos"]) == (SUCCESS, "slicewise_vision_borrowed")
    assert result["told"] == ""
    assert len(daemon.questions) == ("script" in asked)
    told = run_case(path, job_desc=job_desc, configure=allowed | {"notices": "always"})["told"]
    assert "gives way" in told
    for unchanged, mode in (({"user_id": 0}, "enforce"), ({}, "advise")):
        result = run_case(path, job_desc=job_desc | unchanged, configure=allowed | {"mode": mode})
        assert result["job_desc"].get("qos") == job_desc.get("qos")
    path.with_name("off").touch()
    result = run_case(path, job_desc=job_desc, configure=allowed)
    assert result["job_desc"].get("qos") == job_desc.get("qos")


NONE_OF_THEM: list[dict[str, Any]] = [
    {"tres_per_node": "gres:gpu:1g.10gb:0"},
    {"tres_per_node": "gres:gpu:1g.10gb:0", "ntasks_per_tres": 1, "num_tasks": 2},
    {"tres_per_job": "gres/gpu:1g.10gb=0", "ntasks_per_tres": 1, "num_tasks": 2},
    {"gres": "gpu:0"},
    {"gres": "gpu:auto:0"},
    {"gres": "gpu:auto:0", "script": "#!/bin/sh\n#SLICEWISE need=9GiB\n"},
    {"gres": "gpu:1g.10gb:0", "script": "#!/bin/sh\n#SLICEWISE class=low\n"},
]


@pytest.mark.parametrize("asked", NONE_OF_THEM)
@pytest.mark.parametrize("is_answered", [True, False])
def test_nobody_asks_for_none_of_the_gpus_that_he_names(
    path: Path, listening: Any, asked: Any, is_answered: bool
) -> None:
    """With --ntasks-per-gpu Slurm added GPUs of no type, which no limit counted at the start."""
    if is_answered:
        listening(ADMIT)
    for rule in ("allow", "refuse"):
        result = run_case(
            path, job_desc=IN_OWN_QOS | asked, configure=ONLY_GPU | {"without_gpu": rule}
        )
        assert (result["code"], "SW-WITHOUT-GPU" in result["told"]) == (DENIED, True)


def test_a_job_with_gpus_stays_in_its_qos(path: Path, listening: Any) -> None:
    listening(answering(action="admit", tag="slicewise:1 token=TOKEN tenant=vision"))
    named = {"qos": "slicewise_vision"}
    for asked in (TYPED, {"shared": 0}, {"tres_per_node": "gpu:1g.10gb:0", "shared": 0}):
        result = run_case(path, job_desc=IN_OWN_QOS | named | asked, configure=ONLY_GPU)
        assert (result["code"], result["job_desc"]["qos"]) == (SUCCESS, "slicewise_vision")
