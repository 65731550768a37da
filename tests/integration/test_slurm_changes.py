"""Many changes of jobs in one go, and what sprio shows of them, on a real cluster."""

from collections.abc import Callable, Collection, Iterator, Mapping

import pytest
from slurm_contract import check_requeues
from waiting import until, until_done

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.sandbox.cluster import Sandbox

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("without_admission")]

MANY = 250
COMMENT = "site:1 token=ab tenant=vision \"quoted\" and 'so'"


@pytest.fixture
def slurm(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> CommandSlurm:
    for name, value in sandbox.environment("root").items():
        monkeypatch.setenv(name, value)
    return CommandSlurm()


@pytest.fixture
def submit(sandbox: Sandbox) -> Iterator[Callable[..., int]]:
    """Of alice, without a GPU: the daemon has no part in them."""

    def one(*options: str) -> int:
        argv = ("sbatch", "--parsable", "--output=/dev/null", "--mem=20", "--time=5", *options)
        return int(sandbox.run("alice", (*argv, "--wrap=sleep 300")).stdout)

    yield one
    sandbox.run("root", ("scancel", "--user=alice"), check=False)


async def jobs(slurm: CommandSlurm) -> dict[int, JobView]:
    return {job.job_id: job for job in await slurm.jobs()}


async def running(slurm: CommandSlurm, job_id: int) -> None:
    await until_done(lambda: jobs(slurm), lambda now: now[job_id].state is JobState.RUNNING)


async def shown(slurm: CommandSlurm, job_ids: Collection[int], expected: Mapping[int, int]) -> None:
    """sprio shows a job once the scheduler has looked at it."""

    async def sites() -> dict[int, int]:
        return {row.job_id: row.site for row in await slurm.priorities(job_ids)}

    await until_done(sites, lambda now: now == expected)


async def test_only_the_runs_that_are_meant_are_requeued(
    slurm: CommandSlurm, submit: Callable[..., int]
) -> None:
    def one(*, tasks: int = 0, requeues: bool = True) -> int:
        array = (f"--array=0-{tasks - 1}",) if tasks else ()
        return submit("--requeue" if requeues else "--no-requeue", *array)

    await check_requeues(slurm, one)


async def test_what_slurm_takes_is_changed_and_what_it_refuses_is_told(
    slurm: CommandSlurm, submit: Callable[..., int]
) -> None:
    everything = submit("--nodes=4", "--cpus-per-task=16")
    await running(slurm, everything)
    plain, below, ended, spoilt, tagged = (submit() for _ in range(5))
    array, held = submit("--array=0-9"), submit("--hold")
    await slurm.cancel(ended)
    rest = Tasks(array, frozenset(range(10)))
    unknown = 4_000_000
    changes: dict[Target, JobChange] = {
        plain: JobChange(site_factor=10_000),
        below: JobChange(site_factor=-5),
        ended: JobChange(site_factor=1),
        everything: JobChange(qos="normal-not"),
        spoilt: JobChange(site_factor=7, qos="none-of-this-name"),
        rest: JobChange(site_factor=500),
        unknown: JobChange(site_factor=1),
        held: JobChange(site_factor=900),
        tagged: JobChange(site_factor=55, admin_comment=COMMENT),
    }
    refused = await slurm.update(changes)
    assert refused.keys() == {ended, everything, spoilt, unknown}
    assert "finished" in refused[ended]
    assert all("\n" not in words for words in refused.values())
    # A held job has no priority.
    expected = {plain: 10_000, below: -5, array: 500, tagged: 55}
    await shown(slurm, (*expected, held), expected)
    seen = await jobs(slurm)
    assert seen[array].untouched == rest.indices
    assert (seen[held].held, seen[tagged].admin_comment) == (True, COMMENT)
    assert all(row.priority == max(1, row.site) for row in await slurm.priorities((plain, below)))


async def test_a_running_task_does_not_keep_the_others_from_their_change(
    slurm: CommandSlurm, submit: Callable[..., int]
) -> None:
    array = submit("--array=0-5", "--cpus-per-task=16", "--nodelist=gpu01")
    await until_done(
        lambda: slurm.tasks({array}),
        lambda tasks: any(job.state is JobState.RUNNING for job in tasks),
    )
    assert await slurm.update({Tasks(array, frozenset(range(6))): JobChange(site_factor=42)}) == {}
    await shown(slurm, (array,), {array: 42})


async def test_hundreds_are_changed_in_one_go(
    slurm: CommandSlurm, submit: Callable[..., int]
) -> None:
    array = submit(f"--array=0-{MANY - 1}", "--hold")
    changes: dict[Target, JobChange] = {
        Tasks(array, frozenset({index})): JobChange(site_factor=1 + index) for index in range(MANY)
    }
    assert await slurm.update(changes) == {}
    # Slurm makes a record of its own for each task that differs from the others.
    tasks = await slurm.tasks({array})
    assert len({job.task_index for job in tasks}) == len(tasks) == MANY


async def test_a_change_of_several_tasks_reaches_each_of_them(
    slurm: CommandSlurm, submit: Callable[..., int]
) -> None:
    """slurmctld changes GRES, and since 24.11 the QOS, of the first task of a list only."""
    array = submit("--array=0-9", "--hold")
    some, others = Tasks(array, frozenset({1, 2, 3, 7})), Tasks(array, frozenset(range(10)))

    async def gpus() -> dict[int, int]:
        return {
            index: job.gpus.get("1g.10gb", 0)
            for job in await slurm.tasks({array})
            for index in (job.untouched if job.task_index is None else {job.task_index})
        }

    asked = JobChange(gres="gpu:1g.10gb:1")
    assert await slurm.update({some: asked}) == {}
    assert await gpus() == {index: int(index in some.indices) for index in range(10)}
    # Some with records of their own, the rest in one.
    assert await slurm.update({others: asked}) == {}
    assert await gpus() == dict.fromkeys(range(10), 1)
    records = [job for job in await slurm.tasks({array}) if job.untouched]
    assert [job.untouched for job in records] == [others.indices - some.indices]


async def test_excluded_nodes_reach_each_of_several_tasks(
    slurm: CommandSlurm, submit: Callable[..., int]
) -> None:
    array = submit("--array=0-5", "--hold", "--exclude=gpu04")
    some, all_ = Tasks(array, frozenset({1, 2, 4})), Tasks(array, frozenset(range(6)))

    async def excluded() -> dict[int, frozenset[str]]:
        nodes = await slurm.excluded_nodes(array)
        return {
            index: nodes[job.job_id]
            for job in await slurm.tasks({array})
            for index in (job.untouched if job.task_index is None else {job.task_index})
        }

    own, more = frozenset({"gpu04"}), frozenset({"gpu01", "gpu04"})
    assert await slurm.update({some: JobChange(excluded_nodes=more, admin_comment=COMMENT)}) == {}
    assert await excluded() == {i: more if i in some.indices else own for i in range(6)}
    tasks = await slurm.tasks({array})
    assert {job.task_index for job in tasks if job.admin_comment == COMMENT} == some.indices
    assert await slurm.update({all_: JobChange(excluded_nodes=frozenset())}) == {}
    assert await excluded() == dict.fromkeys(range(6), frozenset())


async def test_a_new_qos_reaches_each_of_several_tasks(
    slurm: CommandSlurm, submit: Callable[..., int], sandbox: Sandbox
) -> None:
    """Since 24.11 slurmctld changes that of the first task of a list only."""
    other = "several-tasks"
    sandbox.run("root", ("sacctmgr", "--immediate", "add", "qos", other))
    try:
        to_alice = ("modify", "user", "where", "name=alice", "set", f"qos+={other}")
        sandbox.run("root", ("sacctmgr", "--immediate", *to_alice))
        array = submit("--array=0-9", "--hold")
        some, rest = Tasks(array, frozenset({1, 2, 3, 7})), Tasks(array, frozenset(range(10)))

        async def moved() -> set[int]:
            return {
                index
                for job in await slurm.tasks({array})
                if job.qos == other
                for index in (job.untouched if job.task_index is None else {job.task_index})
            }

        # slurmctld hears of a new QOS from slurmdbd.
        await until_done(lambda: slurm.update({some: JobChange(qos=other)}), lambda bad: bad == {})
        assert await moved() == some.indices
        assert await slurm.update({rest: JobChange(qos=other)}) == {}
        assert await moved() == rest.indices
    finally:
        sandbox.run("root", ("scancel", "--user=alice"))
        sandbox.run("root", ("sacctmgr", "--immediate", "remove", "qos", other))


async def test_a_job_without_a_time_limit_and_a_stopped_one_are_seen(
    slurm: CommandSlurm, submit: Callable[..., int], sandbox: Sandbox
) -> None:
    """squeue says NONE for the end of the one and STOPPED of the other, which runs all the same."""
    endless, stopped = submit("--time=UNLIMITED"), submit()
    for job_id in (endless, stopped):
        await running(slurm, job_id)
    sandbox.run("alice", ("scancel", "--signal=STOP", "--batch", str(stopped)))
    argv = ("squeue", "--noheader", f"--jobs={stopped}", "--format=%T")
    word = until(lambda: sandbox.run("root", argv).stdout.strip().replace("RUNNING", ""))
    assert word in {"STOPPED", "SIGNALING"}
    seen = await jobs(slurm)
    assert (seen[endless].time_limit_s, seen[endless].end_s) == (None, None)
    assert {seen[one].state for one in (endless, stopped)} == {JobState.RUNNING}
    assert not seen[endless].unread | seen[stopped].unread
