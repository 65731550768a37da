"""Tests the whole measuring script under bash, with stand-ins for Slurm's commands and Triton."""

import subprocess
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from slicewise.cluster.language.service import service_spec
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.launcher.rules.engines.registry import start_settings
from slicewise.launcher.rules.profiling.figures import ProfileTask
from slicewise.launcher.scripts.render import profile_script

VALUES: dict[str, object] = {
    "name": "slicewise-profile",
    "tenant": "vision",
    "model_repository": "/models/@chat",
    "model": "m",
    "profile": "1g.10gb",
    "cpus": 3,
    "memory_mib": 500,
}
WORK = ProfileTask(model="m", batches=(1, 2), seconds=1, data='/it\'s "$HOME" `id`;$(touch x).json')
STAND_INS = {
    "scontrol": "echo NodeAddr=127.0.0.1",
    "srun": """printf '%s\\n' "$@" >"$TOLD/srun"
        until [ "$1" = bash ]; do shift; done
        exec "$@" """,
    "tritonserver": """printf '%s\\n' "$@" >"$TOLD/tritonserver"
        trap 'echo ended >"$TOLD/ended"; exit 0' INT
        echo start >>"$TOLD/starts"
        while :; do sleep 0.05; done""",
    # Like the client, which waits for Triton first.
    "client": """printf '%s\\n' "$@" >"$TOLD/client"
        until [ -s "$7" ] && [ -s "$TOLD/starts" ]; do sleep 0.05; done
        cat "$7" >"$TOLD/where"
        read -r server _ <"$7"
        if [ -e "$TOLD/kills" ]; then
            rm "$TOLD/kills"
            : >"$7"
            kill -KILL "$server"
            until [ -s "$7" ] && grep -cx start "$TOLD/starts" | grep -qx 2; do sleep 0.05; done
        fi
        [ ! -e "$TOLD/hangs" ] || sleep 60
        exit 3""",
}


@pytest.fixture
def told(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    (tmp_path / "it's a client").symlink_to(tmp_path / "bin" / "client")
    return tmp_path


def script(told: Path, **change: object) -> str:
    own = EngineSettings(command=told / "bin" / "tritonserver")
    triton = start_settings("triton", {"triton": own})
    return profile_script(service_spec(VALUES | change), triton, WORK, f"{told}/it's a client")


def start(told: Path, **change: object) -> "subprocess.Popen[bytes]":
    (told / "script").write_text(script(told, **change))
    variables = {
        "PATH": f"{told}/bin:/usr/bin:/bin",
        "TOLD": str(told),
        "TMPDIR": str(told),
        "SLURM_JOB_ID": "10",
        "SLURMD_NODENAME": "n1",
    }
    with (told / "log").open("w") as log:
        return subprocess.Popen(("bash", "script"), cwd=told, stdout=log, stderr=log, env=variables)


def words(told: Path, program: str) -> list[str]:
    return (told / program).read_text().splitlines()


def test_slurm_s_options(told: Path):
    lines = script(told, partition="gpu").splitlines()
    assert {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")} == {
        "--job-name=slicewise-profile",
        "--account=vision",
        "--partition=gpu",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=4",
        "--mem=500M",
        "--time=11",
        "--gres=gpu:1g.10gb:1",
        "--no-requeue",
        "--output=slicewise-profile-%j.log",
    }


def test_slicewise_takes_it_for_an_ordinary_job(told: Path):
    assert "#SLICEWISE" not in script(told)


def test_client_and_triton_get_what_they_need_whatever_is_in_it(told: Path):
    assert start(told).wait(timeout=PATIENCE_S) == 3
    client = words(told, "client")
    assert client[:3] == ["-P", "-m", "slicewise.launcher.profiling.job_main"]
    assert ProfileTask.model_validate_json(client[3]) == WORK
    asked = next(one for one in words(told, "tritonserver") if one.startswith("--http-address="))
    assert client[4:6] == [asked.removeprefix("--http-address=unix:"), "slicewise-profile.10"]
    assert client[7:] == ["triton"]
    assert words(told, "where")[0].isdecimal()
    assert {
        "--id=slicewise-profile.10",
        "--model-repository=/models/@chat",
        "--model-control-mode=explicit",
    } <= set(words(told, "tritonserver"))
    assert "--cpus-per-task=3" in words(told, "srun")
    assert not any("resv-ports" in one for one in words(told, "srun"))
    assert not (told / "x").exists()


def test_triton_is_told_to_end_and_nothing_is_left(told: Path):
    start(told).wait(timeout=PATIENCE_S)
    assert words(told, "ended") == ["ended"]
    assert words(told, "starts") == ["start"]
    assert list(told.glob("slicewise-replica.*")) == []


def test_a_triton_that_dies_is_started_again(told: Path):
    (told / "kills").touch()
    assert start(told).wait(timeout=PATIENCE_S) == 3
    assert words(told, "starts") == ["start"] * 2


def test_a_cancelled_job_ends_client_and_triton(told: Path):
    (told / "hangs").touch()
    running = start(told)
    until((told / "where").exists)
    running.terminate()
    assert running.wait(timeout=PATIENCE_S) == 143
    assert words(told, "ended") == ["ended"]


def test_in_a_container_triton_alone(told: Path):
    text = script(told, runtime="pyxis", image="nvcr.io#nvidia/tritonserver:24.05-py3")
    assert "\nimage='nvcr.io#nvidia/tritonserver:24.05-py3'\n" in text
    assert '--container-image="$image"' in text
    assert subprocess.run(("bash", "-n"), input=text, text=True, check=True).returncode == 0
