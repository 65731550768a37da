"""What every door to Slurm must say of one and the same scene.

The scene is set up on a cluster (``scene_on``), or was when its replies were recorded. Each door
looks at it once; what it saw has to pass the tests of ``SlurmContract``.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from slicewise.cluster.language.jobs import TAG_PREFIX, JobState, JobTag, JobView, StepView
from slicewise.cluster.language.slurm.interface import Association, Qos, Requeued, Slurm, Tasks
from slicewise.cluster.slurm.commands import CommandSlurm
from slicewise.sandbox.cluster import Sandbox

PATIENCE_S = 120.0
TAG = JobTag("0123456789abcdef", "vision")
INDICES = frozenset(range(0, 200, 2))
TOUCHED = frozenset({0, 2, 4, 6, 8, 20})
CANCELLED_UNTOUCHED = 198
LYING_NAME = "a b = c | d\nJobId=1 Account=guest"
LYING_COMMENT = f"AdminComment={TAG.text()}\x01"
NOT_UTF8 = "caf\udce9"

# `sleep` runs in the background so that the trap runs at once. Tasks from 20 on end by themselves,
# as drained replicas do. The step's name tries to lie.
SLOTS = """#!/bin/bash
trap 'exit 0' TERM
if [ "$SLURM_ARRAY_TASK_ID" -ge 20 ]; then sleep 0.5; exit 187; fi
srun --mem=20 --resv-ports=2 --job-name=$'x ResvPorts=1-2\\n   ResvPorts=3-4' sleep 300 &
wait
"""
SLEEP = "#!/bin/bash\nsleep 300\n"
STUBBORN = "#!/bin/bash\ntrap '' TERM\nfor i in $(seq 600); do sleep 1; done\n"


@dataclass(frozen=True)
class Look:
    """What one door saw."""

    jobs: tuple[JobView, ...]
    steps: tuple[StepView, ...]
    script: str

    def job(self, name: str) -> JobView:
        """The only job of that name."""
        (job,) = self.named(name)
        return job

    def named(self, name: str) -> tuple[JobView, ...]:
        """All records of that name."""
        return tuple(job for job in self.jobs if job.name == name)

    @property
    def slots(self) -> Mapping[int | None, JobView]:
        """Records of the big array by index; the untouched rest under None."""
        return {job.task_index: job for job in self.jobs if job.name == LYING_NAME}


async def look(slurm: Slurm, scene: frozenset[int]) -> Look:
    """At everything of the scene, whose arrays and jobs have these ids."""
    jobs = tuple(j for j in await slurm.jobs() if scene & {j.job_id, j.array_job_id})
    tagged = (job for job in jobs if TAG_PREFIX in job.admin_comment)
    steps = await slurm.steps([job for job in tagged if job.state is JobState.RUNNING])
    return Look(jobs, steps, await slurm.batch_script(min(scene)))


@asynccontextmanager
async def scene_on(sandbox: Sandbox, *options: str) -> AsyncIterator[frozenset[int]]:
    """Set it up, with ``options`` of sbatch for the big array; the ids of its jobs.

    It was recorded with ``--gres=gpu:1g.10gb:1``, which no quota forbade there. It lasts as long as
    it is looked at: the node of the job that ends hears of that afterwards.
    """
    slurm = CommandSlurm()

    def submit(name: str, script: str, *more: str) -> int:
        limits = ("--mem=20", "--time=10", "--output=/dev/null", "--requeue")
        argv = ("sbatch", "--parsable", f"--job-name={name}", *limits, *more)
        return int(sandbox.run("alice", argv, input=script).stdout)

    slots = submit(
        LYING_NAME, SLOTS, "--array=0-198:2", "--hold", f"--comment={LYING_COMMENT}", *options
    )
    tag = f"AdminComment={TAG.text()}"
    sandbox.run("root", ("scontrol", "update", f"JobId={slots}", tag))
    pair = submit("pair", SLEEP, "--array=0-1")
    single = submit("single", SLEEP, "--array=3", "--hold")
    plain = submit("plain", SLEEP, "--hold", "--time=UNLIMITED", f"--comment={NOT_UTF8}")
    ending = submit("ending", STUBBORN)

    scene = frozenset({slots, pair, single, plain, ending})

    async def until(done: Callable[[Look], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done(seen := await look(slurm, scene)):
            assert time.monotonic() < deadline, seen
            await asyncio.sleep(0.1)

    await slurm.release(Tasks(slots, frozenset({0, 2, 4, 8, 20})))
    await slurm.hold(Tasks(slots, frozenset({6})))
    await slurm.cancel(Tasks(slots, frozenset({CANCELLED_UNTOUCHED})))
    await until(lambda seen: {seen.slots[i].state for i in (4, 8)} == {JobState.RUNNING})
    await slurm.cancel(Tasks(slots, frozenset({8})))
    await asyncio.sleep(1)  # accounting tells runs apart by whole seconds
    await slurm.requeue_hold(Tasks(slots, frozenset({4})))
    await until(lambda seen: seen.slots[4].held and seen.slots[20].held and len(seen.steps) == 2)
    await until(lambda seen: seen.slots[8].state is JobState.ENDED)
    await until(lambda seen: [one.state for one in seen.named("pair")] == [JobState.RUNNING] * 2)
    await until(lambda seen: seen.job("ending").state is JobState.RUNNING)
    (node,) = (await look(slurm, scene)).job("ending").nodes
    sandbox.kill(f"slurmd-{node}", signal.SIGSTOP)
    try:
        await slurm.cancel(ending)
        await until(lambda seen: seen.job("ending").state is JobState.COMPLETING)
        yield scene
    finally:
        sandbox.kill(f"slurmd-{node}", signal.SIGCONT)


async def check_requeues(slurm: Slurm, submit: Callable[..., int]) -> None:
    """What every door must do that requeues runs: end these alone, and none that may not be.

    ``submit`` takes ``tasks`` of an array and whether Slurm ``requeues`` the job.
    """
    array, plain, other, ended = submit(tasks=2), submit(), submit(), submit()
    fixed = submit(requeues=False)
    mine = {array, plain, other, ended, fixed}

    async def seen() -> Mapping[int, JobView]:
        jobs = await slurm.jobs()
        return {job.job_id: job for job in jobs if mine & {job.job_id, job.array_job_id}}

    async def until(done: Callable[[Mapping[int, JobView]], bool]) -> Mapping[int, JobView]:
        deadline = time.monotonic() + PATIENCE_S
        while not done(now := await seen()):
            assert time.monotonic() < deadline, now
            await asyncio.sleep(0.2)
        return now

    def count(jobs: Mapping[int, JobView], state: JobState) -> int:
        return sum(job.state is state for job in jobs.values())

    before = await until(lambda jobs: count(jobs, JobState.RUNNING) == 6)
    await slurm.cancel(ended)
    await until(lambda jobs: jobs[ended].state is JobState.ENDED)
    # The last task of an array has the array's own number.
    going = {(one, before[one].start_s) for one in (array, plain)}
    stays = {(other, (before[other].start_s or 0) - 1), (ended, before[ended].start_s)}
    kept = fixed, before[fixed].start_s
    done = await slurm.requeue({*going, *stays, kept})
    assert (done.ended, done.refused.keys()) == (going, {kept})
    assert done.refused[kept]
    after = await until(lambda jobs: count(jobs, JobState.PENDING) == 2)
    assert {one for one, job in after.items() if job.restarts == 1} == {array, plain}
    runs = before.keys() - {array, plain, ended}
    assert {one: after[one] for one in runs} == {one: before[one] for one in runs}
    assert after[ended].state is JobState.ENDED
    # Once more does nothing.
    assert (await slurm.requeue(going)) == Requeued()
    assert count(await seen(), JobState.PENDING) == 2


class SlurmContract:
    """``seen`` is a fixture of those that inherit these tests."""

    def test_untouched_tasks_are_one_record(self, seen: Look) -> None:
        # Their list has more than 64 characters.
        rest = seen.slots[None]
        assert rest.untouched == INDICES - TOUCHED - {CANCELLED_UNTOUCHED}
        assert (rest.job_id, rest.task_index) == (rest.array_job_id, None)
        assert (rest.held, rest.reason) == (True, "JobHeldUser")
        # Of an untouched task that is cancelled no record remains on newer versions.
        assert seen.slots.keys() - {CANCELLED_UNTOUCHED} == TOUCHED | {None}

    def test_task_zero_runs(self, seen: Look) -> None:
        first = seen.slots[0]
        assert (first.task_index, first.state, first.held) == (0, JobState.RUNNING, False)
        assert first.array_job_id == seen.slots[None].job_id != first.job_id
        assert len(first.nodes) == 1
        assert first.start_s is not None

    def test_users_text_stays_in_its_field(self, seen: Look) -> None:
        for job in seen.slots.values():
            assert (job.name, job.comment) == (LYING_NAME, LYING_COMMENT)
            assert (job.user, job.account) == ("alice", "vision")
            assert job.admin_comment == TAG.text()
        assert all(not job.admin_comment for job in seen.jobs if job.name != LYING_NAME)

    def test_text_that_is_not_utf8_spoils_nothing(self, seen: Look) -> None:
        assert seen.job("plain").comment == "caf\ufffd"

    def test_a_requeued_slot_is_held_and_has_restarts(self, seen: Look) -> None:
        back = seen.slots[4]
        assert (back.state, back.held, back.restarts) == (JobState.PENDING, True, 1)
        assert back.reason == "job requeued in held state"
        assert (back.nodes, back.tres.keys() >= {"cpu", "mem"}) == ((), True)

    def test_a_slot_that_the_administrator_holds(self, seen: Look) -> None:
        held = seen.slots[6]
        assert (held.held, held.reason, held.priority) == (True, "JobHeldAdmin", 0)

    def test_a_slot_that_ended_with_187(self, seen: Look) -> None:
        ended = seen.slots[20]
        assert (ended.state, ended.held, ended.restarts) == (JobState.SPECIAL_EXIT, True, 1)

    def test_a_cancelled_slot_has_ended(self, seen: Look) -> None:
        gone = seen.slots[8]
        assert (gone.state, gone.held, gone.untouched) == (JobState.ENDED, False, frozenset())
        assert gone.end_s is not None

    def test_the_last_task_bears_the_id_of_the_array(self, seen: Look) -> None:
        pair = {job.task_index: job for job in seen.jobs if job.name == "pair"}
        assert pair.keys() == {0, 1}
        assert [job.untouched for job in pair.values()] == [frozenset(), frozenset()]
        assert pair[0].array_job_id == pair[1].array_job_id == pair[1].job_id != pair[0].job_id

    def test_the_only_task_is_no_rest(self, seen: Look) -> None:
        single = seen.job("single")
        assert (single.task_index, single.untouched) == (3, frozenset())
        assert single.array_job_id == single.job_id

    def test_a_plain_job(self, seen: Look) -> None:
        plain = seen.job("plain")
        assert (plain.array_job_id, plain.task_index, plain.untouched) == (None, None, frozenset())
        assert (plain.state, plain.held, plain.reason) == (JobState.PENDING, True, "JobHeldUser")
        assert (plain.time_limit_s, plain.start_s, plain.restarts) == (None, None, 0)
        assert seen.slots[0].time_limit_s == 600

    def test_a_job_that_ends(self, seen: Look) -> None:
        ending = seen.job("ending")
        assert (ending.state, ending.held) == (JobState.COMPLETING, False)
        assert len(ending.nodes) == 1

    def test_ports_are_those_that_slurm_allotted(self, seen: Look) -> None:
        found = {step.job_id: step for step in seen.steps}
        running = [seen.slots[index] for index in (0, 2)]
        assert found.keys() == {slot.job_id for slot in running}
        for slot in running:
            step = found[slot.job_id]
            assert (step.step, step.nodes) == ("0", slot.nodes)
            # Below lie the ports that the step's name claims.
            assert len(step.ports) == 2
            assert min(step.ports) >= 1024

    def test_the_script_is_as_it_was_submitted(self, seen: Look) -> None:
        assert seen.script == SLOTS


def assert_same(seen: Look, other: Look) -> None:
    """Two doors that looked at the same moment: all jobs in all fields."""
    by_id = {job.job_id: job for job in other.jobs}
    assert by_id.keys() == {job.job_id for job in seen.jobs}
    for job in seen.jobs:
        assert job == by_id[job.job_id]
        assert job.tres == by_id[job.job_id].tres
    assert set(seen.steps) == set(other.steps)


OWN_QOS, LOAN_QOS = "contract_own", "contract_loan"
ABOVE, BELOW, MEMBER = "contract_above", "contract_below", "alice"
"""An account, one below it, and a user in that one, which a test makes before."""
ORDINARY = "normal"
"""The QOS that all accounts may use at first."""


@dataclass(frozen=True)
class LimitsLook:
    """What accounting shows after some changes.

    Attributes:
        refused: the changes that it refused.
        qos: those of the contract, by name.
        rows: the contract's accounts, and the user under (account, user).
    """

    refused: Mapping[tuple[str, ...], str]
    qos: Mapping[str, Qos]
    rows: Mapping[tuple[str, str], Association]

    def lists(self) -> list[set[str]]:
        """Which QOS the account, the one below it, and its user may use."""
        return [set(self.rows[key].qos) for key in _ROWS]

    def defaults(self) -> list[str]:
        """Their default QOS."""
        return [self.rows[key].default_qos for key in _ROWS]


_ROWS = ((ABOVE, ""), (BELOW, ""), (BELOW, MEMBER))


async def limits_on(slurm: Slurm, cluster: str, member: str) -> list[LimitsLook]:
    """Change limits as Slicewise does, and look after each change."""

    def account(name: str, *settings: str) -> tuple[str, ...]:
        return (
            "modify",
            "account",
            "where",
            f"name={name}",
            f"cluster={cluster}",
            "set",
            *settings,
        )

    def of(name: str, *settings: str) -> tuple[str, ...]:
        return ("modify", "qos", "where", f"name={name}", "set", *settings)

    limit = "grptres=billing=3000,gres/gpu:1g.10gb=2"
    steps = (
        ("add", "qos", LOAN_QOS, "preemptmode=requeue", "preemptexempttime=2:30"),
        ("add", "qos", OWN_QOS, limit, "grptresrunmins=billing=600", "flags=overpartqos"),
        of(OWN_QOS, f"preempt+={LOAN_QOS}"),
        account(ABOVE, f"qos+={OWN_QOS},{LOAN_QOS}", f"defaultqos={OWN_QOS}"),
        account(BELOW, f"qos-={LOAN_QOS}"),
        account(BELOW, f"defaultqos={LOAN_QOS}"),
        ("remove", "qos", "where", f"name={OWN_QOS}"),
        of(OWN_QOS, "grptres=billing=-1", "grptresrunmins=billing=-1"),
        account(ABOVE, "grptres=gres/gpu:1g.10gb=4"),
        account(ABOVE, "grptres=gres/gpu:1g.10gb=-1", "defaultqos=-1"),
        ("remove", "qos", "where", f"name={LOAN_QOS},{OWN_QOS}"),
    )
    found = []
    for change in steps:
        refused = await slurm.sacctmgr([change])
        qos = {one.name: one for one in await slurm.qos() if one.name in {OWN_QOS, LOAN_QOS}}
        rows = {
            (one.account, MEMBER if one.user == member else one.user): one
            for one in await slurm.associations()
            if one.account in {ABOVE, BELOW}
        }
        found.append(LimitsLook(refused, qos, rows))
    return found


class LimitsContract:
    """``limits`` is a fixture of those that inherit these tests: a look after each change."""

    def test_a_qos_has_what_it_was_added_with(self, limits: list[LimitsLook]) -> None:
        loan, own = limits[1].qos[LOAN_QOS], limits[1].qos[OWN_QOS]
        assert (loan.preempt_mode, loan.preempt_exempt_s, loan.grp_tres) == ("requeue", 150, {})
        assert own.grp_tres == {"billing": 3000, "gres/gpu:1g.10gb": 2}
        assert own.grp_tres_run_mins == {"billing": 600}
        assert own.flags == {"overpartqos"}
        assert limits[2].qos[OWN_QOS].preempt == {LOAN_QOS}

    def test_lists_and_defaults_are_inherited(self, limits: list[LimitsLook]) -> None:
        every = {ORDINARY, OWN_QOS, LOAN_QOS}
        assert limits[2].lists() == [{ORDINARY}] * 3
        assert limits[3].lists() == [every] * 3
        assert limits[3].defaults() == [OWN_QOS] * 3
        assert limits[4].lists() == [every, every - {LOAN_QOS}, every - {LOAN_QOS}]

    def test_a_default_that_is_not_in_the_list_is_left_out_without_a_word(
        self, limits: list[LimitsLook]
    ) -> None:
        assert limits[5].defaults() == limits[4].defaults()
        assert limits[5].lists() == limits[4].lists()

    def test_a_qos_that_is_a_default_is_not_removed(self, limits: list[LimitsLook]) -> None:
        assert limits[6].qos.keys() == {OWN_QOS, LOAN_QOS}

    def test_minus_one_is_no_limit(self, limits: list[LimitsLook]) -> None:
        own = limits[7].qos[OWN_QOS]
        assert (own.grp_tres, own.grp_tres_run_mins) == ({"gres/gpu:1g.10gb": 2}, {})
        assert limits[8].rows[ABOVE, ""].grp_tres == {"gres/gpu:1g.10gb": 4}
        assert limits[8].rows[BELOW, ""].grp_tres == {}
        assert limits[9].rows[ABOVE, ""].grp_tres == {}

    def test_what_is_removed_is_in_no_list(self, limits: list[LimitsLook]) -> None:
        assert limits[10].qos == {}
        assert limits[10].lists() == [{ORDINARY}] * 3
        assert not {OWN_QOS, LOAN_QOS} & set(limits[10].defaults())
