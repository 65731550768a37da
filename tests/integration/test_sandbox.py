"""The sandbox itself: a real Slurm cluster whose jobs see emulated MIG devices."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from run_folder import path_for
from waiting import until, until_is

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.gpus.inventory_json import gpu_of, inventory_of
from slicewise.cluster.language.gpus.placement_text import placements_text
from slicewise.cluster.settings.read import devices_directory, load_settings
from slicewise.cluster.slurm import maintenance, node_command
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host import process
from slicewise.sandbox.host.inventory import NODES
from slicewise.sandbox.servers.slurm import slurmd_version
from slicewise.slurm_plugin.rules.slurm_config import gres as slurm_gres
from slicewise.slurm_plugin.rules.slurm_config import node_lines

pytestmark = pytest.mark.integration

PROJECT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "slicewise.launcher.main", "sandbox")
NO_JOB_WITHOUT_LOGIN_SINCE = (25, 5)


@pytest.fixture(scope="module")
def bare() -> Iterator[Sandbox]:
    """Only the servers: here nothing of Slicewise decides about jobs."""
    running = Sandbox.up(path_for("bare"), progress=print, services=False)
    # slicewise.lua's kill switch: it decides some things without a daemon.
    (running.layout.etc / "off").touch()
    yield running
    running.down()


def command(directory: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        (*COMMAND, words[0], "--dir", str(directory), *words[1:]),
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def command_line(process_directory: Path) -> bytes:
    """Empty for a process that has ended."""
    try:
        return (process_directory / "cmdline").read_bytes()
    except OSError:
        return b""


def in_job(sandbox: Sandbox, script: str, *options: str, user: str = "alice") -> str:
    """Submit the script, wait for its end, return what it printed."""
    argv = ("sbatch", "--wait", "--parsable", "--output=job.out", *options)
    body = f"#!/bin/bash\n{script}\n"
    sandbox.run(user, argv, input=body)
    home = sandbox.layout.home / sandbox.state.users[user].name
    return (home / "job.out").read_text()


def test_every_node_is_idle_with_its_slices(bare: Sandbox):
    until_is(bare.node_states, {node.name: "idle" for node in NODES})
    shown = bare.run("alice", ("sinfo", "-h", "-N", "-o", "%N %G")).stdout.split()
    found = dict(zip(shown[::2], shown[1::2], strict=True))
    for node in NODES:
        gres = found[node.name].split(",")
        kinds = [f"gpu:{kind}:{count}" for kind, count in node.slices.items()]
        assert [one for one in gres if not one.startswith("gpu:pad")] == kinds
        assert sum(int(one.rpartition(":")[2]) for one in gres) == 7


def test_a_job_s_node_is_cut_as_its_driver_says(bare: Sandbox):
    found = inventory_of(in_job(bare, "slicewise node probe --json", "-w", "gpu04"))
    placements = [one.placement for gpu in found.gpus for one in gpu.instances]
    assert placements_text(placements) == NODES[3].instances


def test_a_job_sees_the_devices_that_slurm_gave_it(bare: Sandbox):
    script = "echo $CUDA_VISIBLE_DEVICES $SLURMD_NODENAME; id -u; id -un"
    user = bare.state.users["alice"]
    out = in_job(bare, script, "--gres=gpu:3g.40gb:1").split()
    assert out == ["4", "gpu02", str(user.uid), user.name]
    assert in_job(bare, script, "--gres=gpu:1g.18gb:2", "-w", "gpu04").split()[:2] == [
        "0,1",
        "gpu04",
    ]


def test_a_job_s_billing_is_its_millislices(bare: Sandbox):
    in_job(bare, "true", "--gres=gpu:3g.71gb:1", "--job-name=billed")
    argv = ("sacct", "-a", "-X", "-n", "-P", "--name=billed", "-o", "AllocTRES")

    def charged() -> bool:
        return "billing=3500," in bare.run("slurm", argv).stdout

    until(charged)


@pytest.mark.parametrize("node", [node.name for node in NODES])
def test_a_step_in_a_batch_job_gets_ports_on_every_node(bare: Sandbox, node: str):
    script = "srun --resv-ports=3 bash -c 'echo $SLURM_STEP_RESV_PORTS'"
    first, last = map(int, in_job(bare, script, "-w", node).split("-"))
    assert last - first == 2
    assert {first, last} <= set(bare.layout.reserved_ports)


def test_two_nodes_can_serve_the_same_port(bare: Sandbox):
    script = (
        "import socket, sys; socket.create_server((sys.argv[1], int(sys.argv[2])));"
        " print('bound', flush=True)"
    )
    port = str(bare.layout.reserved_ports[-1])
    held = [
        bare.popen(
            "alice",
            ("/usr/bin/python3", "-c", f"{script}; sys.stdin.read()", address, port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for address in list(bare.layout.node_addresses.values())[:2]
    ]
    assert [child.stdout and child.stdout.readline() for child in held] == ["bound\n"] * 2
    for child in held:
        child.communicate()


def test_a_script_without_the_sandbox_s_environment_still_knows_its_user(bare: Sandbox):
    if slurmd_version() >= NO_JOB_WITHOUT_LOGIN_SINCE:
        pytest.skip("Such a job is held: su, by which slurmd asks, knows no user of the sandbox.")
    out = in_job(bare, "id -un; echo $SLURM_CONF", "--export=NONE").split()
    assert out == [bare.state.users["alice"].name, str(bare.layout.slurm_conf)]


def test_exit_187_gives_the_slot_back_held(bare: Sandbox):
    argv = ("sbatch", "--parsable", "--requeue", "--output=/dev/null", "--wrap", "exit 187")
    job = bare.run("alice", argv).stdout.strip()

    def held() -> bool:
        shown = bare.run("alice", ("squeue", "-h", "-j", job, "-o", "%T %r")).stdout
        return shown == "SPECIAL_EXIT JobHeldUser\n"

    until(held)
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


def test_a_command_has_the_ids_and_the_mask_of_its_user(bare: Sandbox):
    if not bare.state.several_users:
        pytest.skip("All users are one: commands keep the groups and the mask of who runs this.")
    for role in ("alice", "root"):
        user = bare.state.users[role]
        said = bare.run(role, ("sh", "-c", "id -u; id -G; umask; cat"), input="given").stdout
        assert said.split() == [str(user.uid), str(user.gid), "0022", "given"]


@pytest.mark.parametrize("user", ["alice", "root"])
def test_a_command_that_is_not_there_is_one_line(bare: Sandbox, user: str):
    answer = command(bare.layout.directory, "shell", "--user", user, "--", "nosuchcmd")
    assert answer.returncode == 127
    assert answer.stderr.count("\n") == 1
    assert "SW-PROGRAM" in answer.stderr


def test_a_command_that_the_user_may_not_execute_is_one_line(bare: Sandbox):
    answer = command(bare.layout.directory, "shell", "--user", "alice", "--", "/etc/passwd")
    assert (answer.returncode, answer.stdout) == (126, "")
    assert answer.stderr == "/etc/passwd: Permission denied. [SW-PROGRAM]\n"


def test_a_shell_begins_where_its_user_may_write(bare: Sandbox):
    answer = command(bare.layout.directory, "shell", "--user", "alice", "--", "pwd")
    home = bare.layout.home / bare.state.users["alice"].name
    assert Path(answer.stdout.strip()) == (home if bare.state.several_users else PROJECT)


def test_status_tells_machines_the_same_as_people(bare: Sandbox):
    shown = json.loads(command(bare.layout.directory, "status", "--json").stdout)
    assert {row["state"] for row in shown["servers"]} == {"running"}
    assert [row["slices"] for row in shown["nodes"]] == [dict(node.slices) for node in NODES]


async def test_a_job_keeps_its_device_while_its_gpu_is_cut_anew(
    bare: Sandbox, monkeypatch: pytest.MonkeyPatch
):
    for name, value in bare.environment("root").items():
        monkeypatch.setenv(name, value)
    asks = ("sbatch", "--parsable", "-w", "gpu01", "--output=/dev/null")
    two_g, one_g, three_g = (f"--gres=gpu:{kind}:1" for kind in ("2g.20gb", "1g.10gb", "3g.40gb"))

    def started(kind: str) -> str:
        return bare.run("alice", (*asks, kind, "--wrap=sleep 300")).stdout.strip()

    jobs = [started(one_g) for _ in range(3)]
    until(lambda: device(bare, jobs[2]))
    bare.run("alice", ("scancel", *jobs[:2]))
    ended = ("squeue", "--noheader", f"--jobs={jobs[0]},{jobs[1]}")
    until_is(lambda: bare.run("root", ended).stdout, "")
    assert device(bare, jobs[2]) == "2"

    before = "1g.10gb@0,1g.10gb@1,1g.10gb@2,1g.10gb@3,1g.10gb@4,1g.10gb@5,1g.10gb@6"
    await cut_anew("gpu01", before, "2g.20gb@0,1g.10gb@2,1g.10gb@3,3g.40gb@4", {2})

    assert device(bare, jobs[2]) == "2"
    show = ("sinfo", "-h", "-n", "gpu01", "-o", "%G %T")
    cut = ["gpu:2g.20gb:1,gpu:1g.10gb:2,gpu:pad3:1,gpu:3g.40gb:1,gpu:pad5:2", "mixed"]
    until(lambda: bare.run("root", show).stdout.split() == cut)
    more = [started(kind) for kind in (two_g, one_g, three_g)]
    until_is(lambda: [device(bare, job) for job in more], ["0", "1", "4"])
    bare.run("alice", ("scancel", *jobs, *more))


async def test_a_node_hears_nothing_of_root_s_variables(
    bare: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a repartition is run, the ledger's URL may be one: with its password it is the
    ledger.
    """
    for name, value in bare.environment("root").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLICEWISE_DATABASE_URL", "postgresql://slicewise:s3cret@db/slicewise")
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    found = await node_command.run_on("gpu01", "", ("env",), 60)
    assert "SLURMD_NODENAME=gpu01" in found
    assert "s3cret" not in found


async def test_nobody_waits_for_a_connection_while_a_node_runs_what_root_wants(
    bare: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun does, and a node's root tells it where to connect to (SRUN_NET_FORWARD)."""
    for name, value in bare.environment("root").items():
        monkeypatch.setenv(name, value)
    before = listening_children()
    asked = asyncio.create_task(node_command.run_on("gpu01", "", ("sleep", "4"), 60))
    while not asked.done():
        assert listening_children() <= before
        await asyncio.sleep(0.1)
    assert await asked == ""


def listening_children() -> set[str]:
    """Names of this process's children that accept connections."""
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    rows = (line.split() for lines in tables for line in lines)
    waiting = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    found = set()
    for task in Path("/proc/self/task").iterdir():
        children: list[str] = []
        # Either may have ended.
        with suppress(OSError):
            children = (task / "children").read_text().split()
        for child in children:
            with suppress(OSError):
                files = {str(one.readlink()) for one in Path(f"/proc/{child}/fd").iterdir()}
                if waiting & files:
                    found.add(Path(f"/proc/{child}/comm").read_text().strip())
    return found


def device(sandbox: Sandbox, job: str) -> str:
    """Slurm's index of what a job has; "" unless it runs."""
    shown = sandbox.run("root", ("scontrol", "show", "job", "-d", job)).stdout
    match = re.search(r"IDX:(\d+)", shown)
    return match[1] if match and "JobState=RUNNING" in shown else ""


async def cut_anew(node: str, before: str, after: str, held: set[int]) -> None:
    """Each step of a repartition once, by hand."""
    settings, name = load_settings(), "slicewise_repartition_1"
    repartition, slurm_conf = settings.repartition, settings.repartition.slurm_conf.read_text()
    gres_conf = repartition.gres_conf.read_text()
    await maintenance.reserve(name, node, 5)
    probed = await node_command.run_on(node, name, ("slicewise", "node", "probe", "--json"), 60)
    (gpu,) = inventory_of(probed).gpus
    words = ("slicewise", "node", "cut", gpu.uuid, "--old", before, "--new", after)
    gpu = gpu_of(await node_command.run_on(node, name, words, 60))
    found = slurm_gres.devices(
        replace(inventory_of(probed), gpus=(gpu,)),
        slurm_gres.types_by_kind(settings.boards_by_type),
        devices_directory(node),
    )
    there = node_lines.node_positions(slurm_conf, gres_conf, node)
    arranged = node_lines.positions(there, found, held)
    devices = node_lines.padded(arranged, "NVIDIA", devices_directory(node))
    lines, gres = slurm_gres.gres_conf(node, devices), slurm_gres.node_gres(devices)
    repartition.gres_conf.write_text(node_lines.with_node_lines(gres_conf, node, lines))
    repartition.slurm_conf.write_text(node_lines.with_node_gres(slurm_conf, node, gres))
    await maintenance.restart_node(node, name, repartition.restart_slurmd)
    await maintenance.restart_controller(repartition.restart_slurmctld, (22, 5, 8), node)
    await maintenance.release(name)


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

    until(arrived)
    bare.run("slurm", (*argv[:-1], "grptres=billing=-1"))


def is_cut_short(directory: Path, number: signal.Signals) -> bool:
    """Signal a sandbox in the middle of its start; False if it was up before it could be told, as
    where the machine stalls: then it is taken down.
    """
    up = (*COMMAND, "up", "--no-services", "--dir", str(directory))
    starting = subprocess.Popen(
        # A shell that runs tests in the background has them ignore SIGINT.
        ("env", "--default-signal=INT", *up),
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    until((directory / "log" / "slurmdbd.log").exists)
    starting.send_signal(number)
    starting.communicate(timeout=300)
    if starting.returncode == 0:
        assert command(directory, "down").returncode == 0
        return False
    assert starting.returncode == 130
    return True


def test_another_sandbox_beside_it_ends_without_a_trace_in_the_middle_of_its_start(bare: Sandbox):
    directory = path_for("cut")
    for number in (signal.SIGINT, signal.SIGTERM):
        until(lambda number=number: is_cut_short(directory, number))
        assert process.leftovers(directory, ()) == ()
        assert not directory.exists()
    until_is(lambda: set(bare.node_states().values()), {"idle"})


def test_down_sweeps_what_a_killed_up_left_and_jobs_that_hide():
    directory = path_for("killed")
    sandbox = Sandbox.up(directory, progress=print, services=False)
    # No other run on this machine sleeps for so long.
    asleep_s = 100_000 + os.getpid()
    hidden = f"setsid env -i sleep {asleep_s} & disown; sleep {asleep_s}"
    argv = ("sbatch", "--output=/dev/null", "--gres=gpu:1g.10gb:1")
    sandbox.run("alice", argv, input=f"#!/bin/bash\n{hidden}\n")
    until(lambda: sandbox.run("alice", ("squeue", "-h", "-t", "R")).stdout)
    sandbox.kill("slurmctld")
    sandbox.kill("postgres")
    assert command(directory, "status").returncode == 0
    assert command(directory, "down").returncode == 0
    assert process.leftovers(directory, ()) == ()
    assert not directory.exists()
    assert [
        pid
        for pid in Path("/proc").glob("[0-9]*")
        if f"sleep\0{asleep_s}".encode() in command_line(pid)
    ] == []


def temporary_table_of_another_mariadb(owner: int) -> Path:
    """A file such as each MariaDB that starts removes from its folder for temporary tables."""
    table = Path("/tmp") / f"#sql-temptable-test-{os.getpid()}.MAI"
    table.touch()
    os.chown(table, owner, owner)
    return table


def test_up_starts_again_what_has_ended_and_keeps_all_data():
    directory = path_for("again")
    sandbox = Sandbox.up(directory, progress=print)
    table = temporary_table_of_another_mariadb(sandbox.state.users["slurm"].uid)
    try:
        set_quota = ("slicewise", "tenant-quota", "set", "vision", "--nominal", "3")
        sandbox.run("root", set_quota)
        file = sandbox.layout.home / sandbox.state.users["alice"].name / "kept"
        file.write_text("kept")
        survivor = sandbox.state.processes["slurmd-gpu04"]
        for name in sandbox.state.processes:
            if name != survivor.name:
                sandbox.kill(name)
                # This process started it and must reap it: others would take it for running.
                ended = sandbox.state.processes[name]
                until(lambda ended=ended: not process.is_alive(ended))
        answer = command(directory, "up")
        assert answer.returncode == 0, answer.stderr
        again = Sandbox.attach(directory)
        assert all(map(process.is_alive, again.state.processes.values()))
        assert again.state.processes[survivor.name] == survivor
        listed = json.loads(again.run("root", ("slicewise", "tenant", "list", "--json")).stdout)
        assert "vision" in json.dumps(listed)
        assert file.read_text() == "kept"
        assert table.exists()
        until_is(lambda: set(again.node_states().values()), {"idle"})
        assert in_job(again, "echo done", "--gres=gpu:1g.10gb:1").strip() == "done"

        again.kill("launcher")
        until(lambda: "ended" in command(directory, "status").stdout)
        again.layout.settings_file.rename(directory / "hidden")
        answer = command(directory, "up")
        assert answer.returncode == 1
        assert "--anew" in answer.stderr
        assert process.is_alive(again.state.processes["slurmctld"])

        answer = command(directory, "up", "--anew", "--no-services")
        assert answer.returncode == 0, answer.stderr
        assert not file.exists()
        assert "launcher" not in Sandbox.attach(directory).state.processes
    finally:
        table.unlink(missing_ok=True)
        command(directory, "down")


def test_postgresql_starts_again_while_a_session_of_the_killed_one_still_computes(bare: Sandbox):
    url = bare.layout.database_url(bare.state.users["slurm"].name)
    with closing(psycopg.connect(url)) as session:
        # It sees that its server has gone when it next waits for its client.
        session.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 10000000)")
        bare.kill("postgres")
        # This process started it and must reap it: others would take it for running.
        until(lambda: not process.is_alive(bare.state.processes["postgres"]))
        bare.restore(print)
    test_the_ledger_s_database_answers_its_owner(bare)


def test_a_server_that_cannot_start_shows_its_log_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    directory = path_for("broken")
    monkeypatch.setattr("slicewise.sandbox.servers.mariadb._SMALL", ("--no-such-option",))
    with pytest.raises(SlicewiseError, match="no-such-option"):
        Sandbox.up(directory, progress=print, services=False)
    assert process.leftovers(directory, ()) == ()
    assert not directory.exists()
