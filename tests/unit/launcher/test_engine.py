"""How a replica's script starts Triton: bare, by Apptainer, by Pyxis.

The script runs whole, under bash; Slurm's commands, the container runtime and Triton are stand-ins
that write down what they were told.
"""

import subprocess
from pathlib import Path

import pytest

from cluster.service import service_spec
from cluster.settings import TritonSettings
from launcher.render import service_script

ODD = {"GREETING": """it's "$HOME" `id` \\ & ;""", "EMPTY": "", "LD_LIBRARY_PATH": "/a:/b"}
STAND_INS = {
    "scontrol": 'echo "NodeAddr=127.0.0.1 KillWait"\necho "KillWait = 30 sec"',
    "srun": """printf '%s\\n' "$@" >"$TOLD/srun"
        export SLURM_STEP_RESV_PORTS=21001-21003
        until [ "$1" = bash ]; do shift; done
        exec "$@" """,
    "apptainer": """printf '%s\\n' "$@" >"$TOLD/apptainer"
        until [ "$1" = "$IMAGE" ]; do shift; done
        shift
        exec "$@" """,
    "tritonserver": """printf '%s\\n' "$@" >"$TOLD/tritonserver"
        env >"$TOLD/environment" """,
}


@pytest.fixture
def told(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    return tmp_path


def run(told: Path, **change: object) -> None:
    """Run the script of such a service."""
    values: dict[str, object] = {
        "name": "chat",
        "tenant": "vision",
        "model_repository": "/models/@chat",
        "model": "m",
        "profile": "1g.10gb",
    }
    command = told / "it's bare"
    command.symlink_to(told / "bin" / "tritonserver")
    settings = TritonSettings(command=command)
    text = service_script(service_spec(values | change), settings)
    variables = {
        "PATH": f"{told}/bin:/usr/bin:/bin",
        "TOLD": str(told),
        "IMAGE": str(change.get("image", "")),
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_JOB_ID": "10",
        "SLURMD_NODENAME": "n1",
    }
    # Into a file: what the script leaves sleeping for a second would hold a pipe open.
    with (told / "log").open("w") as log:
        ran = subprocess.run(
            ("bash", "-s"),
            input=text,
            text=True,
            stdout=log,
            stderr=log,
            check=False,
            env=variables,
            timeout=30,
        )
    assert ran.returncode == 187, (told / "log").read_text()


def words(told: Path, program: str) -> list[str]:
    return (told / program).read_text().splitlines()


IMAGES = [
    {},
    {"runtime": "apptainer", "image": "/images/triton.sif"},
    {"runtime": "pyxis", "image": "nvcr.io#nvidia/tritonserver:24.05-py3"},
]


@pytest.mark.parametrize("container", IMAGES)
def test_triton_gets_the_same_options_in_every_runtime(told: Path, container: dict[str, object]):
    run(told, **container)
    assert {
        "--id=chat.7.3",
        "--model-repository=/models/@chat",
        "--http-address=127.0.0.1",
        "--http-port=21001",
        "--grpc-port=21002",
        "--metrics-port=21003",
    } <= set(words(told, "tritonserver"))


@pytest.mark.parametrize("container", IMAGES)
def test_its_environment_is_as_it_was_written(told: Path, container: dict[str, object]):
    run(told, environment=ODD, **container)
    assert {f"{name}={value}" for name, value in ODD.items()} <= set(words(told, "environment"))


def test_the_environment_is_of_triton_alone(told: Path):
    srun = told / "bin" / "srun"
    srun.write_text(srun.read_text().replace("exec", 'env >"$TOLD/srun_has"; exec'))
    run(told, environment={"LD_PRELOAD_LATER": "x"})
    assert "LD_PRELOAD_LATER=x" in words(told, "environment")
    assert "LD_PRELOAD_LATER=x" not in words(told, "srun_has")


def test_apptainer_gives_it_the_gpu_and_the_models(told: Path):
    run(told, environment={"A": "1"}, **IMAGES[1])
    assert words(told, "apptainer")[:7] == [
        "exec",
        "--nv",
        "--bind",
        "/models/@chat:/models/@chat",
        "/images/triton.sif",
        "env",
        "A=1",
    ]


def test_pyxis_starts_the_step_in_the_image_with_the_models(told: Path):
    run(told, **IMAGES[2])
    options = words(told, "srun")
    assert "--container-image=nvcr.io#nvidia/tritonserver:24.05-py3" in options
    (mounts,) = (one for one in options if one.startswith("--container-mounts="))
    assert mounts.startswith("--container-mounts=/models/@chat:/models/@chat,/")


def test_without_a_container_srun_hears_of_none(told: Path):
    run(told)
    assert not any("container" in option for option in words(told, "srun"))
