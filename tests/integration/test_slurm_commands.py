"""The commands adapter against a real cluster: the life of a held job array."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
from waiting import until_done

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import JobState, JobTag, JobView, NodeView
from slicewise.cluster.language.slurm.interface import Submission, Tasks
from slicewise.cluster.slurm import commands
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.cluster.slurm.sbatch import submit
from slicewise.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("without_admission")]

TAG = JobTag("0123456789abcdef", "vision")
INDICES = frozenset(range(0, 200, 2))
ENDING = frozenset(range(20, 36, 2))
NAME = "a b = c | d\nJobId=1 Account=guest"
COMMENT = "AdminComment=slicewise:1 token=ff tenant=guest"

# No GPU: those are the plugin's business. `sleep` runs in the background so that the trap runs at
# once. Tasks 20 to 34 end by themselves, as drained replicas do. The step's name tries to lie.
SCRIPT = """#!/bin/bash
#SBATCH --array=0-198:2 --hold --requeue --mem=20 --time=10 --output=/dev/null
trap 'exit 0' TERM
if [ "$SLURM_ARRAY_TASK_ID" -ge 20 ]; then sleep 0.5; exit 187; fi
srun --mem=20 --resv-ports=2 --job-name=$'x ResvPorts=1-2\\n   ResvPorts=3-4' sleep 300 &
wait
"""


@pytest.fixture
def slurm(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> CommandSlurm:
    for name, value in sandbox.environment("root").items():
        monkeypatch.setenv(name, value)
    return CommandSlurm()


@pytest.fixture
async def array(sandbox: Sandbox, slurm: CommandSlurm) -> AsyncIterator[int]:
    """A tenant's array of 100 tasks, held by its user, tagged."""
    argv = ("sbatch", "--parsable", f"--job-name={NAME}", f"--comment={COMMENT}")
    job_id = int(sandbox.run("alice", argv, input=SCRIPT).stdout)
    tag = f"AdminComment={TAG.text()}"
    sandbox.run("root", ("scontrol", "update", f"JobId={job_id}", tag))
    yield job_id
    await slurm.cancel(job_id)


async def tasks_of(slurm: CommandSlurm, array: int) -> Mapping[int | None, JobView]:
    """By index; the untouched rest under None."""
    return {job.task_index: job for job in await slurm.jobs() if job.array_job_id == array}


async def task_when(
    slurm: CommandSlurm, array: int, index: int | None, done: Callable[[JobView], bool]
) -> JobView:
    def is_done(tasks: Mapping[int | None, JobView]) -> bool:
        return index in tasks and done(tasks[index])

    return (await until_done(lambda: tasks_of(slurm, array), is_done))[index]


def is_running(job: JobView) -> bool:
    return job.state is JobState.RUNNING


async def test_untouched_tasks_are_one_record(slurm: CommandSlurm, array: int) -> None:
    (rest,) = (await tasks_of(slurm, array)).values()
    assert rest.untouched == INDICES
    assert (rest.job_id, rest.task_index, rest.held) == (array, None, True)
    assert (rest.name, rest.comment) == (NAME, COMMENT)
    assert (rest.account, rest.time_limit_s) == ("vision", 600)
    assert JobTag.find(rest.admin_comment) == TAG
    assert rest.submit_s is not None
    assert abs(rest.submit_s - time.time()) < 60


async def test_users_cannot_release_what_the_administrator_holds(
    sandbox: Sandbox, slurm: CommandSlurm, array: int
) -> None:
    await task_when(slurm, array, None, lambda job: job.reason == "JobHeldUser")
    await slurm.hold(Tasks(array, INDICES))
    refused = sandbox.run("alice", ("scontrol", "release", f"{array}_[0-2]"), check=False)
    assert refused.returncode != 0
    tasks = (await tasks_of(slurm, array)).values()
    assert all(job.held and job.reason == "JobHeldAdmin" for job in tasks)


async def test_slots_are_released_run_and_come_back_held(slurm: CommandSlurm, array: int) -> None:
    began_s = int(time.time())
    slot = Tasks(array, frozenset({0}))
    await slurm.hold(Tasks(array, INDICES))
    await slurm.release(Tasks(array, frozenset({0, 2})))
    first = await task_when(slurm, array, 0, is_running)
    await task_when(slurm, array, 2, is_running)
    assert first.job_id != array
    assert (await tasks_of(slurm, array))[None].untouched == INDICES - {0, 2}

    # Accounting tells runs apart by their submit time, which a requeue sets: in whole seconds.
    await asyncio.sleep(1)
    await slurm.requeue_hold(slot)
    held = await task_when(slurm, array, 0, lambda job: job.held)
    assert (held.state, held.restarts, held.job_id) == (JobState.PENDING, 1, first.job_id)

    await slurm.release(slot)
    second = await task_when(slurm, array, 0, is_running)
    # Slurm lets what was requeued wait for 120 s, unless it is told to start it now.
    assert None not in (second.eligible_s, held.eligible_s)
    assert second.eligible_s < held.eligible_s
    runs = await until_done(
        lambda: runs_of(slurm, began_s, f"{array}_0"), lambda runs: len(runs) == 2
    )
    assert [start_s for start_s, _ in runs] == [first.start_s, second.start_s]
    assert runs[0][1] is not None
    assert runs[1][1] is None


async def runs_of(slurm: CommandSlurm, since_s: int, task: str) -> list[tuple[int, int | None]]:
    runs = [run for run in await slurm.runs(since_s) if run.task == task]
    assert all((run.user, run.account) == ("alice", "vision") for run in runs)
    return sorted((run.start_s, run.end_s) for run in runs)


async def test_a_hold_leaves_alone_what_runs(
    sandbox: Sandbox, slurm: CommandSlurm, array: int
) -> None:
    await slurm.release(Tasks(array, frozenset({0})))
    job = await task_when(slurm, array, 0, is_running)

    async def eligible() -> str:
        argv = ("sacct", "-n", "-X", f"--jobs={job.job_id}", "--format=Eligible")
        return sandbox.run("root", argv).stdout.strip()

    before = await until_done(eligible, lambda text: text not in {"", "Unknown"})
    await slurm.hold(Tasks(array, frozenset({0, 4})))
    await task_when(slurm, array, 4, lambda job: job.reason == "JobHeldAdmin")
    still = (await tasks_of(slurm, array))[0]
    assert (still.state, still.priority) == (job.state, job.priority)
    # `scontrol hold` would have taken it, and so hidden the run from sacct.
    assert await eligible() == before


async def test_ports_are_those_that_slurm_allotted(slurm: CommandSlurm, array: int) -> None:
    await slurm.release(Tasks(array, frozenset({2})))
    job = await task_when(slurm, array, 2, is_running)

    async def steps() -> list[tuple[str, tuple[str, ...], tuple[int, ...]]]:
        views = await slurm.steps([job])
        return [(s.step, s.nodes, s.ports) for s in views if s.job_id == job.job_id]

    ((step, nodes, ports),) = await until_done(steps, lambda found: len(found) == 1)
    assert (step, nodes) == ("0", job.nodes)
    assert len(ports) == 2
    assert min(ports) >= 1024  # below lie the ports that the step's name claims


async def test_slots_that_end_with_187_are_held_and_run_again_at_once(
    slurm: CommandSlurm, array: int
) -> None:
    slots = Tasks(array, ENDING)

    async def ends() -> set[tuple[JobState, bool, int]]:
        tasks = await tasks_of(slurm, array)
        return {(tasks[i].state, tasks[i].held, tasks[i].restarts) for i in ENDING}

    await slurm.release(slots)
    await until_done(ends, lambda seen: seen == {(JobState.SPECIAL_EXIT, True, 1)})
    await slurm.release(slots)
    await until_done(ends, lambda seen: seen == {(JobState.SPECIAL_EXIT, True, 2)})


async def test_cancelled_tasks_end_and_the_rest_stays(slurm: CommandSlurm, array: int) -> None:
    gone = frozenset({0, 2, 4, 198})
    # Slurm may keep no record of an untouched task once it is cancelled.
    await slurm.release(Tasks(array, gone))
    await slurm.hold(Tasks(array, gone))
    await slurm.cancel(Tasks(array, gone))
    ended = {(JobState.ENDED, "CANCELLED")}
    tasks = await until_done(
        lambda: tasks_of(slurm, array),
        lambda tasks: {(tasks[i].state, tasks[i].ended) for i in gone & tasks.keys()} == ended,
    )
    assert tasks[None].untouched == INDICES - gone


async def test_scripts_come_back_as_they_were_submitted(slurm: CommandSlurm) -> None:
    script = "#!/bin/bash\n# name=b\u00e9rt\n#SBATCH --hold --mem=20\ntrue\n"
    submitted = submit(script)
    assert await slurm.batch_script(submitted.job_id) == script
    await slurm.cancel(submitted.job_id)


async def test_scripts_and_directories_of_many_come_in_one_go(
    slurm: CommandSlurm, array: int
) -> None:
    # Without a line break at its end, and with words of scontrol's own in it.
    script = "#!/bin/bash\n#SBATCH --hold --mem=20\nscontrol: show hostnames x\ntrue"
    job = submit(script).job_id
    found = await slurm.submissions({job, array, 4_000_000})
    assert found.keys() == {job, array}
    assert found[job] == Submission(script, str(Path.cwd()))
    assert found[array].script.startswith("#!/bin/bash\n")
    await slurm.cancel(job)


async def test_the_tasks_of_one_array_are_seen_alone(slurm: CommandSlurm, array: int) -> None:
    own = {job.array_job_id for job in await slurm.tasks({array})}
    assert own == {array}


async def test_who_is_in_a_reservation_and_who_beside_it(
    slurm: CommandSlurm, sandbox: Sandbox
) -> None:
    what = ("users=alice", "starttime=now", "duration=30", "nodes=gpu02", "corecnt=2")
    create = ("scontrol", "create", "reservation", "reservationname=part", *what)
    sandbox.run("root", create)
    argv = ("sbatch", "--parsable", "--mem=20", "--output=/dev/null", "--nodelist=gpu02")
    wrap = "--wrap=sleep 300"
    inside = int(sandbox.run("alice", (*argv, "--reservation=part", "--time=10", wrap)).stdout)
    beside = int(sandbox.run("alice", (*argv, "--array=0-1", "--time=10", wrap)).stdout)
    try:
        seen = await until_done(
            lambda: slurm.tasks({inside, beside}),
            lambda jobs: [job.state for job in jobs] == [JobState.RUNNING] * 3,
        )
        # Slurm tells which cores once it has saved its state.
        (part,) = await until_done(slurm.reservations, lambda those: bool(those[0].cores))
        assert await slurm.reserved() == {inside: frozenset({"part"})}
        cores = {job_id: found["gpu02"] for job_id, found in (await slurm.cores(seen)).items()}
        assert cores.keys() == {job.job_id for job in seen}
        assert all(
            (own <= part.cores["gpu02"]) is (job_id == inside) for job_id, own in cores.items()
        )
    finally:
        for job in (inside, beside):
            await slurm.cancel(job)
        await until_done(
            lambda: slurm.tasks({inside, beside}),
            lambda jobs: all(job.state is JobState.ENDED for job in jobs),
        )
        sandbox.run("root", ("scontrol", "delete", "reservationname=part"))


async def test_which_gpus_jobs_have(
    slurm: CommandSlurm, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "vision", "--nominal", "7"))
    # Without admission only its user names a job's QOS; in another QOS it waits at the gate.
    sandbox.run("root", ("slicewise", "compile"))
    argv = ("sbatch", "--parsable", "--mem=20", "--output=/dev/null", "--time=10")
    argv += ("--qos=slicewise_vision",)
    liar, honest = (
        int(sandbox.run("alice", (*argv, *words, "--wrap=sleep 300")).stdout)
        for words in (
            (f"--job-name={NAME}", "--gres=gpu:3g.40gb:1"),
            ("--nodelist=gpu02", "--gres=gpu:1g.10gb:2"),
        )
    )
    try:
        seen = await until_done(
            lambda: slurm.tasks({liar, honest}),
            lambda jobs: [job.state for job in jobs] == [JobState.RUNNING] * 2,
        )
        found = await slurm.devices(seen)
        one, two = found[liar]["gpu02"], found[honest]["gpu02"]
        assert (len(one), len(two), len(one | two)) == (1, 2, 3)

        async def held() -> list[frozenset[int]]:
            return [node.gpus_held for node in await slurm.nodes() if node.name == "gpu02"]

        await until_done(held, lambda now: now == [one | two])
        monkeypatch.setattr(commands, "_FEW_JOBS", 0)
        assert await slurm.devices(seen) == {honest: {"gpu02": two}, liar: {}}
    finally:
        sandbox.run("root", ("scancel", str(liar), str(honest)))
        await until_done(slurm.nodes, lambda nodes: not any(node.gpus_held for node in nodes))


async def test_failures_carry_the_words_of_slurm(slurm: CommandSlurm) -> None:
    with pytest.raises(OutsideError, match=r"Invalid job id.*\[SW-SLURM-FAILED\]"):
        await slurm.hold(Tasks(4_000_000, frozenset({1})))
    with pytest.raises(OutsideError, match=r"Invalid job id.*\[SW-SLURM-FAILED\]"):
        await slurm.release(Tasks(4_000_000, frozenset({1})))
    with pytest.raises(OutsideError, match=r"(?s)invalid partition.*\[SW-SLURM-FAILED\]"):
        submit("#!/bin/bash\n#SBATCH --partition=nowhere\n")


async def test_a_slurmctld_that_is_away_is_no_answer(
    slurm: CommandSlurm, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = sandbox.layout.slurm_conf.read_text(encoding="utf-8")
    away = tmp_path / "slurm.conf"
    away.write_text(re.sub(r"(?m)^SlurmctldPort=.*", "SlurmctldPort=1", text), encoding="utf-8")
    monkeypatch.setenv("SLURM_CONF", str(away))
    with pytest.raises(UnreachableError, match="SW-SLURM-DOWN"):
        await slurm.jobs()


async def test_nodes_show_their_gpus_by_type(slurm: CommandSlurm) -> None:
    nodes = {node.name: node for node in await slurm.nodes()}
    assert nodes["gpu02"].gpus == {"1g.10gb": 3, "pad3": 1, "3g.40gb": 1, "pad5": 2}
    assert nodes["gpu02"].gpus_allotted.keys() == {"1g.10gb", "pad3", "3g.40gb", "pad5"}
    addresses = {node.address for node in nodes.values()}
    assert len(addresses) == len(nodes)


async def test_a_text_of_one_node_makes_no_record_of_another(
    slurm: CommandSlurm, sandbox: Sandbox
) -> None:
    """Its root can send such a text as its OS; an operator's comment is printed as it is, too."""
    # Nodes change when the jobs end that other tests have cancelled.
    await until_done(slurm.jobs, lambda jobs: all(job.state is JobState.ENDED for job in jobs))
    before = {node.name: node for node in await slurm.nodes()}
    fakes = (
        f"\n\nNodeName={name} Gres=gpu:1g.10gb:99\n   State=DOWN" for name in ("gpu02", "ghost")
    )
    try:
        forged = f"Comment=x{''.join(fakes)}"
        sandbox.run("root", ("scontrol", "update", "NodeName=gpu01", forged))
        assert "NodeName=ghost" in sandbox.run("root", ("scontrol", "show", "node")).stdout

        async def seen() -> dict[str, NodeView]:
            return {node.name: node for node in await slurm.nodes()}

        await until_done(seen, lambda now: now == before)
    finally:
        sandbox.run("root", ("scontrol", "update", "NodeName=gpu01", "Comment="))


async def test_the_lightest_node_comes_first_and_a_daemon_that_weighs_none_puts_weights_back(
    slurm: CommandSlurm, sandbox: Sandbox
) -> None:
    async def shown() -> dict[str, int]:
        return {node.name: node.weight for node in await slurm.nodes()}

    own = await shown()
    heavier = dict.fromkeys(own, 9)
    try:
        for lightest in ("gpu03", "gpu01"):
            await slurm.weigh_nodes({**heavier, lightest: 5})
            assert await shown() == {**heavier, lightest: 5}
            argv = ("srun", "--quiet", "--mem=20", "--time=1", "printenv", "SLURMD_NODENAME")
            assert sandbox.run("alice", argv).stdout.strip() == lightest
        with pytest.raises(OutsideError, match="Invalid node name"):
            await slurm.weigh_nodes({"nowhere": 5})
        await slurm.weigh_nodes({"gpu02": 1_000_092})
        await until_done(shown, lambda now: now["gpu02"] == 9)
    finally:
        await slurm.weigh_nodes(own)


async def test_limits_are_written_and_read_back(slurm: CommandSlurm) -> None:
    assert await slurm.version() >= (22, 5)
    change = ("modify", "qos", "where", "name=commands-test", "set", "grptres=billing=3000,mem=2G")
    await slurm.sacctmgr([("add", "qos", "commands-test")])
    refused = ("modify", "account", "where", "name=nobodys", "set", "qos+=commands-test")
    assert (await slurm.sacctmgr([refused, change])).keys() == {refused}
    found = {qos.name: qos.grp_tres for qos in await slurm.qos()}
    less = (*change[:-1], "grptres=billing=2000")
    nobodys = ("modify", "qos", "where", "name=nobodys", "set", "grptres=billing=1")
    changed = await slurm.set_limits([less, nobodys])
    assert changed.refused.keys() == {nobodys}
    assert {qos.name: qos.grp_tres for qos in changed.qos} == {
        "commands-test": {"billing": 2000, "mem": 2048}
    }
    await slurm.sacctmgr([("delete", "qos", "commands-test")])
    assert found["commands-test"] == {"billing": 3000, "mem": 2048}
    accounts = {(row.account, row.user): row for row in await slurm.associations()}
    assert accounts["vision", ""].parent == "root"
    assert ("vision", "alice") in accounts
