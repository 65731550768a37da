"""How the script of a replica on several nodes starts, ties together and ends its ranks.

The script runs whole, under bash; Slurm's commands, the container runtime and the server are
stand-ins.
"""

import fcntl
import os
import time
from pathlib import Path

import pytest
from batch_script import run_batch_script
from builders.replica_keys import gateway_directory
from free_ports import free_port

from slicewise.cluster.language.service import service_spec
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.launcher.rules.engines.registry import start_settings
from slicewise.launcher.scripts.render import service_script

GATEWAY = (gateway_directory() / "gateway.crt").read_text()
STAND_INS = {
    "scontrol": """case "$1 $2" in
            "show hostnames") printf '%s\\n' n1 n2 n3 ;;
            update*) : ;;
            *) echo "NodeAddr=127.0.0.1 KillWait"; echo "KillWait = 30 sec" ;;
        esac""",
    "ip": "echo '1: ib0    inet 10.1.0.7/24 scope global ib0'",
    "srun": """printf '%s\\n' "$*" >>"$TOLD/sruns"
        case " $* " in *" --resv-ports="*) export SLURM_STEP_RESV_PORTS=$PORTS ;; esac
        for word in "$@"; do
            case $word in --nodelist=*) export SLURMD_NODENAME=${word#*=} ;; esac
        done
        until [ "$1" = bash ]; do shift; done
        case $* in "$FAILS") exit 1 ;; esac
        case $* in *prepare_rank) echo "hello from the site's TaskProlog" ;; esac
        exec "$@" """,
    "apptainer": """until [ "$1" = "$IMAGE" ]; do shift; done
        shift
        exec "$@" """,
    # All but the rank that ends would go on for long.
    "server": """printf '%s\\0' "$@" >"$TOLD/words.$node_rank"
        [ -e "${TMPDIR%/*}/environment" ] && said=there || said=gone
        echo "$said" >"$TOLD/variables.$node_rank"
        env -0 >"$TOLD/new.$node_rank"
        mv "$TOLD/new.$node_rank" "$TOLD/environment.$node_rank"
        until [ -e "$TOLD/environment.0" ] && [ -e "$TOLD/environment.1" ] &&
            [ -e "$TOLD/environment.2" ]; do sleep 0.05; done
        [ "$node_rank" = "$ENDS" ] || exec sleep 60
        # As Slurm does: TERM to every process of the other steps.
        tell() { for process in /proc/[0-9]*; do
            grep -qzxF "TOLD=$TOLD" "$process/environ" && grep -qzxF "$1" "$process/$2" &&
                kill -TERM "${process#/proc/}" && echo "${process#/proc/}"
        done; } 2>/dev/null
        case $TELLS in
            ranks) tell SLURMD_NODENAME=n2 environ; tell SLURMD_NODENAME=n3 environ ;;
            lifeline)
                process=$(tell infinity cmdline)
                sleep 0.2
                tr '\\0' ' ' <"/proc/$process/cmdline" >"$TOLD/lifeline" ;;
        esac
        :""",
}
IMAGES = [
    {},
    {"runtime": "apptainer", "image": "/images/triton.sif"},
    {"runtime": "pyxis", "image": "nvcr.io#nvidia/tritonserver:24.05-py3"},
]


@pytest.fixture
def told(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in {**STAND_INS, "tritonserver": STAND_INS["server"]}.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    return tmp_path


def run(
    told: Path, ends: int, interface: str = "", tells: str = "", fails: str = "", **change: object
) -> str:
    """What the script has said, once rank ``ends`` has ended.

    ``tells``: whose processes get TERM before; ``fails``: the command of the steps that fail.
    """
    values: dict[str, object] = {
        "name": "wide",
        "tenant": "vision",
        "model_repository": "/models/wide",
        "model": "m",
        "profile": "a100",
        "gpus": 4,
        "nodes": 3,
        "environment": {"GREETING": "it's me"},
    }
    own = EngineSettings(command=told / "bin" / "server", private_shm=False, interface=interface)
    settings = start_settings("triton", {"triton": own})
    text = service_script(service_spec(values | change), settings, GATEWAY)
    variables = {
        **({"TMPDIR": str(told / "tmp")} if (told / "tmp").exists() else {}),
        "ENDS": str(ends),
        "TELLS": tells,
        "FAILS": fails,
        "PORTS": ",".join(str(free_port()) for _ in range(3)),
        "IMAGE": str(change.get("image", "")),
        "SLURM_JOB_NODELIST": "n[1-3]",
    }
    return run_batch_script(text, told, variables)


def environment(told: Path, rank: int) -> dict[str, str]:
    lines = (told / f"environment.{rank}").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("ends", [0, 2])
def test_whichever_rank_ends_all_end_and_leave_nothing(told: Path, ends: int) -> None:
    said = run(told, ends)
    assert ("a rank has ended: ending all 3" in said) is (ends > 0)
    assert "Triton ended with" in said
    assert "no door" not in said
    for rank in range(3):
        assert not Path(environment(told, rank)["TMPDIR"]).parent.exists()
    asked = (told / "sruns").read_text().splitlines()
    nodes = [word for line in asked for word in line.split() if word.startswith("--nodelist=")]
    # On each other node one step makes its directory, and one runs its rank.
    assert sorted(nodes) == [f"--nodelist=n{n}" for n in (1, 2, 2, 3, 3)]
    assert all(" --nodes=1 " in f" {line} " and " --ntasks=1 " in line for line in asked)


def test_ranks_end_with_the_replica_after_the_term_of_slurm(told: Path) -> None:
    """It comes to all processes of a step, also to what waits for the replica's end."""
    said = run(told, 0, tells="ranks")
    assert "rank 2 on n3 ended with 137" in said
    for rank in range(3):
        assert not Path(environment(told, rank)["TMPDIR"]).parent.exists()


def test_the_term_of_slurm_ends_no_rank_at_once(told: Path) -> None:
    """Rank 0 still finishes requests, which needs the others."""
    run(told, 0, tells="lifeline")
    assert (told / "lifeline").read_text() == "sleep infinity "


@pytest.mark.parametrize("fails", ["bash -c prepare_rank", "bash -c start_rank"])
def test_a_step_that_fails_at_once_ends_all(told: Path, fails: str) -> None:
    """Its server waits for all ranks, none of which starts."""
    said = run(told, 0, fails=fails)
    assert "a rank has ended: ending all 3" in said
    assert "Triton ended with 137" in said
    assert [file.name for file in told.glob("words.*")] == ["words.0"]


def test_a_step_that_never_starts_leaves_no_variables_on_its_node(told: Path) -> None:
    (told / "tmp").mkdir()
    run(told, 0, fails="bash -c start_rank")
    assert list((told / "tmp").rglob("server"))
    assert not list((told / "tmp").rglob("environment"))


@pytest.mark.parametrize("container", IMAGES)
def test_the_variables_of_a_rank_are_nowhere_once_its_server_has_them(
    told: Path, container: dict[str, object]
) -> None:
    """A step that is killed removes nothing; the first rank's file is read for the others."""
    run(told, 1, **container)
    assert [(told / f"variables.{rank}").read_text().strip() for rank in range(3)] == [
        *("there", "gone", "gone")
    ]


def test_what_a_killed_replica_has_left_goes_with_the_next_one(told: Path) -> None:
    """Not what is young, in use, a link, or no replica's."""
    place = told / "tmp"
    names = {one: f"slicewise-replica.{one * 6}" for one in "abcd"}
    for name in (*names.values(), "slicewise-replica.mine", "other"):
        (place / name / "tmp").mkdir(parents=True)
    (told / "elsewhere").mkdir()
    (place / "slicewise-replica.eeeeee").symlink_to(told / "elsewhere")
    (told / "elsewhere" / "file").touch()
    old_s = time.time() - 3600
    for one in place.iterdir():
        os.utime(one, (old_s, old_s), follow_symlinks=False)
    os.utime(place / names["b"])
    lock = os.open(place / names["c"], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    run(told, 0)
    os.close(lock)
    assert {one.name for one in place.iterdir()} == {
        *(names["b"], names["c"]),
        *("slicewise-replica.mine", "slicewise-replica.eeeeee", "other"),
    }
    assert (told / "elsewhere" / "file").exists()


@pytest.mark.parametrize("container", IMAGES)
def test_each_rank_has_the_variables_and_a_directory_of_its_own(
    told: Path, container: dict[str, object]
) -> None:
    run(told, 1, **container)
    ranks = [environment(told, rank) for rank in range(3)]
    assert [one["node_rank"] for one in ranks] == ["0", "1", "2"]
    assert {one["GREETING"] for one in ranks} == {"it's me"}
    assert len({one["TMPDIR"] for one in ranks}) == 3
    assert len({one["SLICEWISE_REPLICA"] for one in ranks}) == 3
    leaders = {(one.get("leader_address"), one["VLLM_HOST_IP"]) for one in ranks}
    assert leaders == {("127.0.0.1", "127.0.0.1")}
    if container.get("runtime") == "apptainer":
        bound = [one["APPTAINER_BIND"].split(",") for one in ranks]
        assert all(len(places) == 3 for places in bound)
        private = [Path(one["TMPDIR"]).parent for one in ranks]
        assert [places[:2] for places in bound] == [
            [f"{place}:{place}", f"{place}/readonly:{place}/readonly:ro"] for place in private
        ]


def test_an_interface_is_what_ranks_reach_each_other_by(told: Path) -> None:
    run(told, 1, interface="ib0")
    for rank in range(3):
        found = environment(told, rank)
        assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("=ib0", "ib0")
        assert (found["VLLM_HOST_IP"], found["leader_address"]) == ("10.1.0.7", "10.1.0.7")


def test_on_one_node_nothing_is_said_of_ranks() -> None:
    values = {"name": "n", "tenant": "t", "model_repository": "/m", "model": "m", "profile": "a"}
    settings = start_settings("triton", {"triton": EngineSettings(interface="ib0")})
    text = service_script(service_spec(values), settings, GATEWAY)
    assert not any(word in text for word in ("rank", "lifeline", "NCCL", "VLLM", "--nodelist"))
