"""The sandbox itself: a real Slurm cluster whose jobs see emulated MIG devices."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.errors import SlicewiseError
from sandbox import process
from sandbox.cluster import Sandbox
from sandbox.inventory import NODES

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "launcher.main", "sandbox")


@pytest.fixture(scope="module")
def bare() -> Iterator[Sandbox]:
    """Only the servers: here nothing of Slicewise decides about jobs."""
    running = Sandbox.up(Path(f"/tmp/slicewise-bare-{os.getpid()}"), progress=print, services=False)
    yield running
    running.down()


def command(directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        (*COMMAND, words[0], "--dir", str(directory), *words[1:]),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def in_job(sandbox: Sandbox, script: str, *options: str, user: str = "alice") -> str:
    """Submit the script, wait for its end, return what it printed."""
    argv = ("sbatch", "--wait", "--parsable", "--output=job.out", *options)
    body = f"#!/bin/bash\n{script}\n"
    sandbox.run(user, argv, input=body)
    home = sandbox.layout.home / sandbox.state.users[user].name
    return (home / "job.out").read_text()


def test_every_node_is_idle_with_its_slices(bare: Sandbox):
    assert bare.node_states() == {node.name: "idle" for node in NODES}
    shown = bare.run("alice", ("sinfo", "-h", "-N", "-o", "%N %G")).stdout.split()
    assert dict(zip(shown[::2], shown[1::2], strict=True)) == {n.name: n.gres for n in NODES}


def test_a_job_sees_the_devices_that_slurm_gave_it(bare: Sandbox):
    script = "echo $CUDA_VISIBLE_DEVICES $SLURMD_NODENAME; id -u; id -un"
    user = bare.state.users["alice"]
    out = in_job(bare, script, "--gres=gpu:3g.40gb:1").split()
    assert out == ["3", "gpu02", str(user.uid), user.name]
    assert in_job(bare, script, "--gres=gpu:1g.18gb:2", "-w", "gpu04").split()[:2] == [
        "0,1",
        "gpu04",
    ]


def test_a_job_s_billing_is_its_millislices(bare: Sandbox):
    in_job(bare, "true", "--gres=gpu:3g.71gb:1", "--job-name=billed")
    argv = ("sacct", "-a", "-X", "-n", "-P", "--name=billed", "-o", "AllocTRES")

    def charged() -> bool:
        return "billing=3500," in bare.run("slurm", argv).stdout

    assert process.wait_until(charged, 10)


@pytest.mark.parametrize("node", [node.name for node in NODES])
def test_a_step_in_a_batch_job_gets_ports_on_every_node(bare: Sandbox, node: str):
    script = "srun --resv-ports=3 bash -c 'echo $SLURM_STEP_RESV_PORTS'"
    first, last = map(int, in_job(bare, script, "-w", node).split("-"))
    assert last - first == 2
    assert {first, last} <= set(bare.layout.reserved_ports)


def test_two_nodes_can_serve_the_same_port(bare: Sandbox):
    script = (
        "import socket, sys; socket.create_server((sys.argv[1], int(sys.argv[2]))); print('bound')"
    )
    port = str(bare.layout.reserved_ports[-1])
    held = [
        bare.popen(
            "alice",
            ("/usr/bin/python3", "-c", f"{script}; sys.stdin.read()", address, port),
            stdin=subprocess.PIPE,
        )
        for address in list(bare.layout.node_addresses.values())[:2]
    ]
    time.sleep(0.5)
    assert [child.poll() for child in held] == [None, None]
    for child in held:
        child.communicate()


def test_a_script_without_the_sandbox_s_environment_still_knows_its_user(bare: Sandbox):
    out = in_job(bare, "id -un; echo $SLURM_CONF", "--export=NONE").split()
    assert out == [bare.state.users["alice"].name, str(bare.layout.slurm_conf)]


def test_exit_187_gives_the_slot_back_held(bare: Sandbox):
    argv = ("sbatch", "--parsable", "--requeue", "--output=/dev/null", "--wrap", "exit 187")
    job = bare.run("alice", argv).stdout.strip()

    def held() -> bool:
        shown = bare.run("alice", ("squeue", "-h", "-j", job, "-o", "%T %r")).stdout
        return shown == "SPECIAL_EXIT JobHeldUser\n"

    assert process.wait_until(held, 10)
    bare.run("alice", ("scancel", job))


def test_each_user_is_charged_to_its_own_tenant(bare: Sandbox):
    for user, account in (("alice", "vision"), ("bob", "nlp"), ("carol", "guest")):
        assert in_job(bare, "echo $SLURM_JOB_ACCOUNT", user=user).strip() == account


def test_the_ledger_s_database_answers_its_owner(bare: Sandbox):
    url = bare.environment("slurm")["SLICEWISE_DATABASE_URL"]
    script = f"import psycopg; print(psycopg.connect({url!r}).execute('select 1').fetchone())"
    program = bare.state.program
    argv = ("env", f"PYTHONPATH={program.site_packages}", str(program.python), "-c", script)
    for operator in ("slurm", "root"):
        assert bare.run(operator, argv).stdout == "(1,)\n"


def test_a_refused_command_names_the_users(bare: Sandbox):
    with pytest.raises(SlicewiseError, match="alice, bob, carol"):
        bare.run("mallory", ("true",))


def test_up_again_finds_it_up(bare: Sandbox):
    answer = command(bare.layout.directory, "up", "--no-services")
    assert answer.returncode == 0
    assert "up already" in answer.stdout


def test_status_tells_machines_the_same_as_people(bare: Sandbox):
    shown = json.loads(command(bare.layout.directory, "status", "--json").stdout)
    assert {row["state"] for row in shown["servers"]} == {"running"}
    assert [row["slices"] for row in shown["nodes"]] == [dict(node.slices) for node in NODES]


def test_a_started_program_is_supervised(bare: Sandbox):
    bare.start("napper", "alice", ("sleep", "60"))
    assert process.is_alive(bare.state.processes["napper"])
    bare.stop("napper")
    assert not process.is_alive(bare.state.processes["napper"])


def test_a_limit_that_sacctmgr_sets_reaches_slurmctld(bare: Sandbox):
    argv = ("sacctmgr", "-i", "modify", "account", "guest", "set", "grptres=billing=123")
    bare.run("slurm", argv)
    show = ("scontrol", "show", "assoc_mgr", "accounts=guest", "flags=assoc")

    def arrived() -> bool:
        return "billing=123(" in bare.run("slurm", show).stdout

    assert process.wait_until(arrived, 5)
    bare.run("slurm", (*argv[:-1], "grptres=billing=-1"))


def test_another_sandbox_beside_it_ends_without_a_trace_in_the_middle_of_its_start(bare: Sandbox):
    directory = Path(f"/tmp/slicewise-cut-{os.getpid()}")
    for number in (signal.SIGINT, signal.SIGTERM):
        starting = subprocess.Popen(
            # A shell that runs tests in the background has them ignore SIGINT.
            (
                "env",
                "--default-signal=INT",
                *COMMAND,
                "up",
                "--no-services",
                "--dir",
                str(directory),
            ),
            cwd=PROJECT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.wait_until((directory / "log" / "slurmdbd.log").exists, 30)
        starting.send_signal(number)
        starting.communicate(timeout=60)
        assert starting.returncode == 130
        assert process.leftovers(directory, ()) == ()
        assert not directory.exists()
    assert set(bare.node_states().values()) == {"idle"}


def test_down_sweeps_what_a_killed_up_left_and_jobs_that_hide():
    directory = Path(f"/tmp/slicewise-killed-{os.getpid()}")
    sandbox = Sandbox.up(directory, progress=print, services=False)
    hidden = "setsid env -i sleep 4321 & disown; sleep 4321"
    sandbox.run("alice", ("sbatch", "--output=/dev/null"), input=f"#!/bin/bash\n{hidden}\n")
    assert process.wait_until(
        lambda: sandbox.run("alice", ("squeue", "-h", "-t", "R")).stdout != "", 10
    )
    sandbox.kill("slurmctld")
    sandbox.kill("postgres")
    assert command(directory, "status").returncode == 0
    assert command(directory, "down").returncode == 0
    assert process.leftovers(directory, ()) == ()
    assert not directory.exists()
    argv = ("ps", "-u", str(sandbox.state.users["alice"].uid), "-o", "stat=,args=")
    listed = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert [line for line in listed.stdout.splitlines() if "sleep 4321" in line] == []


def test_a_server_that_cannot_start_shows_its_log_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    directory = Path(f"/tmp/slicewise-broken-{os.getpid()}")
    monkeypatch.setattr("sandbox.mariadb._SMALL", ("--no-such-option",))
    with pytest.raises(SlicewiseError, match="no-such-option"):
        Sandbox.up(directory, progress=print, services=False)
    assert process.leftovers(directory, ()) == ()
    assert not directory.exists()
