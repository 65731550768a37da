"""Access to Slurm through its own commands, which works with every version and needs no library."""

import asyncio
import re
import time
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import (
    ALLOTTED,
    WAITING,
    JobState,
    JobView,
    NodeView,
    PartitionView,
    PastRun,
    PlannedStart,
    ReservationView,
    RunOfJob,
    RunRecord,
    StepView,
)
from slicewise.cluster.language.slurm import parse
from slicewise.cluster.language.slurm.accounting import (
    RUN_FIELDS,
    RUN_STATES,
    jobs_without_start,
    parse_runs,
)
from slicewise.cluster.language.slurm.interface import (
    CLOCK_KNOWN_S,
    Association,
    Changed,
    JobChange,
    JobRequest,
    PriorityRow,
    Qos,
    Requeued,
    Slurm,
    Submission,
    Target,
    Tasks,
)
from slicewise.cluster.language.slurm.job_history import HISTORY_FIELDS, parse_history
from slicewise.cluster.language.slurm.job_rows import (
    JOB_FIELDS,
    RELEASE_FIELDS,
    RUN_OF_JOB_FIELDS,
    Shown,
    job_format,
    last_end_s,
    parse_jobs,
    parse_pending,
    parse_rows,
    parse_throttled,
    read_rows,
    records,
    running_targets,
    started,
    uncertain,
)
from slicewise.cluster.language.slurm.planned_starts import (
    PLAN_FIELDS,
    RESERVED_FIELDS,
    by_job,
    parse_cores,
    parse_devices,
    parse_plans,
    parse_reservations,
    parse_reserved,
)
from slicewise.cluster.language.slurm.priorities import PRIORITY_FORMAT, parse_priorities
from slicewise.cluster.language.slurm.requests import (
    EXCLUDED_FORMAT,
    REQUEST_FIELDS,
    parse_excluded,
    parse_requests,
)
from slicewise.cluster.language.slurm.submissions import parse_scripts, script_questions
from slicewise.cluster.language.slurm.unnamed_gpus import shown_gpus
from slicewise.cluster.language.slurm.unread import ReportsUnread, Unread, quoted
from slicewise.cluster.language.slurm.values import answers, time_text, without_prompts
from slicewise.cluster.runtime.together import together
from slicewise.cluster.slurm.batch import address, named_qos, own_words, weights_script
from slicewise.cluster.slurm.change_jobs import change_jobs
from slicewise.cluster.slurm.clock import slurmctld_s
from slicewise.cluster.slurm.nodes import NodeReader, read_threads
from slicewise.cluster.slurm.run_command import (
    CHANGE_DEADLINE_S,
    DEADLINE_S,
    IDS,
    SQUEUE,
    attempt,
    run,
    secret,
    secret_columns,
)
from slicewise.cluster.slurm.running_steps import StepReader
from slicewise.cluster.slurm.slurmctld_clock import SlurmctldClock
from slicewise.cluster.slurm.unread_log import UnreadLog

_LONGEST_WAIT_S = 2.0
"""Wait before a release at most, should slurmctld's clock have been set meanwhile."""
_PLAIN = ("--noheader", "--parsable2")
_UNSTARTABLE = "StartTime=now+60"
"""Keeps a pending job from starting for longer than a hold takes."""
_SACCTMGRS = 32
"""Processes at a time: slurmdbd has 100 threads for all clients (MaxDBDThreads of old versions)."""
_LINES, _LINE_BYTES = 50, 4000
"""Lines that one ``sacctmgr`` reads at most, and bytes of each."""
_LINE_S = 1.0
"""Added to the deadline for each line: where slurmdbd is busy, the lines wait one after the other.
"""
_WORD = re.compile(r"[!#-&(-~]+")
"""A word that ``sacctmgr`` reads unchanged: no blanks or quotes, and no character that readline,
through which it may read its lines, takes for a key. The character 0x15 deletes everything before
it, even without a terminal.
"""
_FEW_QOS = 100
"""Up to this number, QOS are asked for by name: their names are shorter than an argument may be."""
_FEW_JOBS = 100
"""Up to this number, jobs are asked for one by one, a millisecond each; all jobs of a large cluster
together take a tenth of a second.
"""
_FEW_ARRAYS = 4
"""Up to this number, arrays are asked for one by one."""
_NAME_S = 300.0
"""Seconds for which slurmctld's ClusterName is not asked again: it stays while there are jobs."""
_REQUEUES = 8
"""Processes at a time."""
_OVER_BY_NOW = ("already completing or completed", "Job is pending execution", "Invalid job id")
"""What Slurm says of a job that has ended, or that it has requeued itself, in between."""
_SCRIPTS = 20
"""Scripts at a time: each may have 4 MB (max_script_size), and all are in memory together."""


class CommandSlurm(Slurm):
    """Runs squeue, scontrol, scancel, sacct and sacctmgr as the user that this process runs as."""

    def __init__(self, told: ReportsUnread | None = None) -> None:
        """``told`` takes what can't be read; by default it is logged as a warning."""
        self._told: ReportsUnread = UnreadLog() if told is None else told
        self._nodes = NodeReader(self._told)
        self._steps = StepReader(self._told)
        self._rows: Mapping[str, JobView] = {}
        self._waiting: Mapping[Shown, frozenset[int]] = {}
        self._given: dict[_Run, Mapping[str, int]] = {}
        self._cluster_name, self._named_until_s = "", 0.0
        self._clock = SlurmctldClock(slurmctld_s)

    async def version(self) -> tuple[int, ...]:
        """Read it from slurmctld's configuration: the commands may be of another version."""
        return parse.parse_version((await self.config())["SLURM_VERSION"])

    async def clock_s(self, known_for_s: float = 0.0) -> float:
        """Run ``sdiag``, where its last answer is too old."""
        return await self._clock.now_s(known_for_s)

    async def config(self) -> Mapping[str, str]:
        """Run ``scontrol show config``."""
        return parse.parse_config(await run(("scontrol", "show", "config")))

    async def partitions(self) -> tuple[PartitionView, ...]:
        """Run ``scontrol show partition``."""
        shown = await run(("scontrol", "show", "partition"))
        return parse.parse_partitions(shown, self._told)

    async def jobs(self) -> tuple[JobView, ...]:
        """Run ``squeue``, which is cheaper than ``scontrol show job`` and can't be deceived.

        Where rows show an array in which a waiting task may be missing (see ``records``), and
        did not show the same last time, another ``squeue`` lists the indices of what waits. The
        rows are then read once more: a task that started before the list is in those alone, and a
        missing job looks ended.
        """
        rows = await _rows("all")
        doubted = uncertain(rows)
        if doubted - self._waiting.keys():
            listed = await run((*SQUEUE, "--states=pending", IDS))
            pending = parse_pending(listed, self._told)
            rows = await _rows("all")
            # Without an array that came behind the list: that one is listed at the next look.
            listed_ones = (row for row in uncertain(rows) if row[0] in pending)
            self._waiting = {pair: pending[pair[0]] for pair in listed_ones}
        else:
            self._waiting = {run: self._waiting[run] for run in doubted}
        waiting = {shown[0]: indices for shown, indices in self._waiting.items()}
        self._rows = read_rows(rows, self._rows, self._told)
        return await self._typed(records(self._rows.values(), waiting))

    async def _typed(
        self, jobs: tuple[JobView, ...], *, asked_too: bool = False
    ) -> tuple[JobView, ...]:
        """Add to jobs what GPUs they were given where nothing else names the type.

        Slurm is asked once for each run of such a job; with ``asked_too`` also for those that wait,
        where the jobs were read without all that they ask for.
        """
        kept = ALLOTTED | {JobState.ENDED} | (WAITING if asked_too else frozenset())
        some = {_run(job): job for job in jobs if job.untyped_gpus and job.state in kept}
        self._given = {run: counts for run, counts in self._given.items() if run in some}
        if new := {run: job for run, job in some.items() if run not in self._given}:
            texts = dict(await _shown_jobs(new.values()))
            # Among all others, one that somebody's name imitates is not told apart.
            if left := [job for job in new.values() if job.job_id not in texts]:
                texts |= await _shown_apart(left)
            for run, job in new.items():
                text, has_begun = texts.get(job.job_id, ""), job.state not in WAITING
                if not text:  # Slurm said nothing of it, such as under load: ask again.
                    continue
                gpus = shown_gpus(job.tres, text, has_begun=has_begun)
                if gpus is None:
                    self._told(Unread("job", job.task, "JOB_GRES", quoted(text)))
                self._given[run] = gpus.unnamed if gpus is not None else {}
        if not any(self._given.values()):
            return jobs
        found_by = {some[run].job_id: given for run, given in self._given.items() if given}
        return tuple(
            replace(job, unnamed=found_by[job.job_id]) if job.job_id in found_by else job
            for job in jobs
        )

    async def tasks(self, array_job_ids: Collection[int]) -> tuple[JobView, ...]:
        """Run ``squeue`` for these arrays: for a few, once for each.

        For several together, slurmctld sends all jobs.
        """
        several = array_job_ids if len(array_job_ids) > _FEW_ARRAYS else ()
        apart = () if several else sorted(array_job_ids)
        groups = [*((job_id,) for job_id in apart), *((several,) if several else ())]
        row_groups = await together(*(_rows("all", job_ids=group) for group in groups))
        return parse_jobs([row for rows in row_groups for row in rows], {}, self._told)

    async def nodes(self) -> tuple[NodeView, ...]:
        """Run ``scontrol show node -d``, and ``sinfo`` where its answer may have changed."""
        return await self._nodes.read()

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        """Run ``squeue --steps``, and one ``scontrol`` for the ports of new steps."""
        return await self._steps.read(jobs)

    async def plans(self) -> tuple[PlannedStart, ...]:
        """Run ``squeue`` for pending jobs."""
        return parse_plans(await _rows("pending", PLAN_FIELDS), self._told)

    async def reservations(self) -> tuple[ReservationView, ...]:
        """Run ``scontrol show reservation``."""
        shown = await run(("scontrol", "--oneliner", "show", "reservation"))
        return parse_reservations(shown, self._told)

    async def reserved(self) -> Mapping[int, frozenset[str]]:
        """Run ``squeue`` for running jobs."""
        return parse_reserved(await _rows("running", RESERVED_FIELDS), self._told)

    async def cores(self, jobs: Collection[JobView]) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """Run one ``scontrol show job -d`` for all of them, and ``sinfo``."""
        threads = await read_threads()
        answered = zip(jobs, await _details(jobs), strict=False)
        return {job.job_id: parse_cores(text, threads) for job, text in answered}

    async def devices(
        self, jobs: Collection[JobView]
    ) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """Run ``scontrol show job -d`` for each job; for more than 100, once for all jobs."""
        texts = await _shown_jobs(jobs)
        return {job.job_id: parse_devices(texts.get(job.job_id, "")) for job in jobs}

    async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
        """Run ``sacct`` for requeued runs too (``-D``), of whole jobs (``-X``), by state.

        Without states sacct leaves out runs that have no eligible time, and any user can remove
        that of a running job by ``scontrol hold``. A requeued run can also lose its start. Then its
        job is asked for again with the batch step, which started in the same second.
        """
        text = await _runs(since_s, "--allocations")
        if without := jobs_without_start(text):
            text += await _runs(since_s, f"--jobs={','.join(map(str, sorted(without)))}")
        return parse_runs(text, since_s, self._told)

    async def job_history(self, since_s: int, until_s: int) -> tuple[PastRun, ...]:
        """Run ``sacct`` for requeued runs too (``-D``), of whole jobs (``-X``), in any state."""
        window = (f"--starttime={time_text(since_s)}", f"--endtime={time_text(until_s)}")
        which = ("--allocations", *window)
        text = await _accounting(HISTORY_FIELDS, *which, deadline_s=CHANGE_DEADLINE_S)
        return parse_history(text, self._told)

    async def batch_script(self, job_id: int) -> str:
        """Run ``scontrol write batch_script`` to standard output; its failures have status 0."""
        reply = await attempt(("scontrol", "write", "batch_script", str(job_id), "-"))
        if not reply.output:
            raise OutsideError(Code.SLURM_FAILED, f"scontrol write: {reply.complaint}")
        return reply.output

    async def submissions(self, job_ids: Collection[int]) -> Mapping[int, Submission]:
        """Run one ``scontrol`` for every 20 scripts, and one ``squeue`` for the directories.

        A path may hold any text at which a line of ``scontrol`` would be cut.
        """
        asked = sorted(job_ids)
        rows = await _rows("all", ("JobId", "ArrayJobId", "WorkDir"), asked) if asked else ()
        keys = ("JobId", "ArrayJobId")
        places = {row[key]: row["WorkDir"] for row in rows for key in keys}
        scripts: dict[int, str] = {}
        for start in range(0, len(asked), _SCRIPTS):
            scripts |= await _scripts(asked[start : start + _SCRIPTS])
        return {
            job_id: Submission(scripts[job_id], places.get(str(job_id), "")) for job_id in scripts
        }

    async def associations(self) -> tuple[Association, ...]:
        """Run ``sacctmgr show assoc`` twice, with inheritance and without.

        It asks for slurmctld's own ClusterName.
        """
        where = f"where cluster={await self._own_name()}"
        columns = secret_columns(parse.ASSOCIATION_FIELDS)
        text, own = await together(
            _show_secretly(f"show assoc {where}", columns),
            _show_secretly(f"show assoc {where} wopl", columns),
        )
        return parse.parse_associations(text, own, columns, self._told)

    async def coordinators(self) -> Mapping[str, frozenset[str]]:
        """Run ``sacctmgr show account withcoord``."""
        text = await _show("account", parse.COORDINATOR_FIELDS, "withcoord")
        return parse.parse_coordinators(text, self._told)

    async def qos(self) -> tuple[Qos, ...]:
        """Run ``sacctmgr show qos``."""
        return parse.parse_qos(await _show("qos", parse.QOS_FIELDS), self._told)

    async def qos_elsewhere(self) -> frozenset[str]:
        """Run ``sacctmgr show assoc`` for every cluster."""
        here, text = await together(self._own_name(), _show("assoc", parse.USE_FIELDS))
        return parse.parse_qos_elsewhere(text, here, self._told)

    async def _own_name(self) -> str:
        """ClusterName of slurmctld, asked again after a while."""
        now_s = time.monotonic()
        if now_s >= self._named_until_s:
            self._cluster_name = (await self.config())["ClusterName"]
            self._named_until_s = now_s + _NAME_S
        return self._cluster_name

    async def requests(self, job_ids: Collection[int]) -> Mapping[int, JobRequest]:
        """Run ``squeue`` for all pending jobs."""
        requests = parse_requests(await _rows("pending", REQUEST_FIELDS), self._told)
        return {job_id: requests[job_id] for job_id in job_ids if job_id in requests}

    async def excluded_nodes(self, array_job_id: int) -> Mapping[int, frozenset[str]]:
        """Run ``squeue``, task by task: of several it would show the first one's list."""
        which = (f"--jobs={array_job_id}", "--states=pending,special_exit")
        argv = (*SQUEUE, "--array", *which, f"--format={EXCLUDED_FORMAT}")
        return parse_excluded(await run(argv), self._told)

    async def throttled(self, array_job_ids: Collection[int]) -> frozenset[int]:
        """Run ``squeue``, of these arrays if they are few."""
        few = 0 < len(array_job_ids) <= _FEW_ARRAYS
        which = (f"--jobs={','.join(map(str, sorted(array_job_ids)))}",) if few else ()
        shown = await run((*SQUEUE, "--states=pending,special_exit", *which, IDS))
        return parse_throttled(shown) & set(array_job_ids)

    async def hold(self, target: Target) -> None:
        """Run ``scontrol hold``: as administrator if this process is SlurmUser or root.

        On a task that has started meanwhile, it would remove the eligible time of the task's run in
        accounting, and so hide the run from sacct. So the start of all is delayed first, which
        Slurm refuses for those that run. What is pending then can't start before it is held.
        """
        delay = ("scontrol", "update", f"JobId={address(target)}", _UNSTARTABLE)
        is_pending = (await attempt(delay)).status == 0
        if isinstance(target, int):
            if is_pending:
                await run(("scontrol", "hold", address(target)))
            return
        begun = started(await _rows_of(target))
        if pending := target.indices - begun:
            await run(("scontrol", "hold", address(Tasks(target.array_job_id, pending))))

    async def release(
        self, target: Target, limit_min: int | None = None, ended_s: float | None = None
    ) -> None:
        """Set StartTime=now and release.

        Without StartTime, a requeued task waits as long as its old credential lives (120 s). If a
        task's run has just ended, this comes up to a second late: slurmd takes a credential made in
        the second in which it revoked the last one for that one, and the task would end FAILED
        ("already killed, do not launch batch job"). For a task that never ran nothing changes.
        """
        named = address(target)
        if ended_s is None:
            ended_s = last_end_s(await _rows_of(target), int(await self.clock_s(CLOCK_KNOWN_S)))
        if ended_s:
            now_s = await self.clock_s(CLOCK_KNOWN_S)
            await asyncio.sleep(min(max(ended_s + 1 - now_s, 0.0), _LONGEST_WAIT_S))
        limit = "" if limit_min is None else f" TimeLimit={limit_min}"
        lines = f"update JobId={named} StartTime=now{limit}\nrelease {named}\n"
        await run(("scontrol",), stdin=lines)

    async def requeue_hold(self, target: Target) -> None:
        """Run ``scontrol requeuehold``, also for a job that its user has forbidden to requeue."""
        again = ("scontrol", "requeuehold", address(target))
        if (await attempt(again)).status:
            await attempt(("scontrol", "update", f"JobId={address(target)}", "Requeue=1"))
            await run(again)

    async def requeue(self, runs: Collection[RunOfJob]) -> Requeued:
        """Run ``squeue``, then ``scontrol requeue`` for each run that it shows.

        Without "incomplete" a job would run again that has just ended by itself.
        """
        ended, refused = set[RunOfJob](), dict[RunOfJob, str]()
        turn = asyncio.Semaphore(_REQUEUES)

        async def one(run_of_job: RunOfJob, target: Target) -> None:
            async with turn:
                reply = await attempt(("scontrol", "requeue", "incomplete", address(target)))
            if not reply.status:
                ended.add(run_of_job)
            elif not any(words in reply.complaint for words in _OVER_BY_NOW):
                refused[run_of_job] = own_words(reply.complaint)

        # Not by their ids: squeue fails if the only one has been forgotten.
        rows = await _rows("running", RUN_OF_JOB_FIELDS) if runs else ()
        targets = running_targets(rows, self._told)
        done = await asyncio.gather(
            *(one(run, targets[run]) for run in runs if run in targets), return_exceptions=True
        )
        for raised in filter(None, done):
            # What the others have done must not be lost; these runs can be asked for again.
            if not isinstance(raised, UnreachableError) or not (ended or refused):
                raise raised
        return Requeued(frozenset(ended), refused)

    async def cancel(self, target: Target) -> None:
        """Run ``scancel``; for a job that has ended already this is no error."""
        await run(("scancel", address(target)))

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        """Run one ``scontrol`` for every 200 changes, and one for each change that fits on no line.

        A job that has started meanwhile takes a site_factor all the same.
        """
        return await change_jobs(changes)

    async def weigh_nodes(self, weights: Mapping[str, int]) -> None:
        """Run one ``scontrol``. For each line of its input, Slurm changes all nodes or none."""
        await run(("scontrol",), stdin=weights_script(weights), deadline_s=CHANGE_DEADLINE_S)

    async def priorities(self, job_ids: Collection[int]) -> tuple[PriorityRow, ...]:
        """Run ``sprio`` for all jobs."""
        argv = ("sprio", "--noheader", "--local", f"--format={PRIORITY_FORMAT}")
        return parse_priorities(await run(argv), job_ids, self._told)

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        """Run up to 50 modifications by each ``sacctmgr``, and up to 32 of these at a time.

        A thousand processes take four times as long. If one modification of such a group is
        refused, each of the group is made again by a process of its own, which shows which one it
        was. An error such as slurmdbd being down is raised only after all processes that had begun
        have ended.
        """
        turn = asyncio.Semaphore(_SACCTMGRS)

        async def alone(change: tuple[str, ...]) -> Mapping[tuple[str, ...], str]:
            async with turn:
                argv = ("sacctmgr", "--immediate", *change)
                reply = await attempt(argv, deadline_s=CHANGE_DEADLINE_S)
            return {change: reply.complaint or reply.output.strip()} if reply.status else {}

        async def together(some: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
            if len(some) == 1:
                return await alone(some[0])
            lines = "".join(f"{' '.join(change)}\n" for change in some)
            deadline_s = CHANGE_DEADLINE_S + _LINE_S * len(some)
            async with turn:
                argv = ("sacctmgr", "--immediate")
                try:
                    reply = await attempt(argv, stdin=lines, deadline_s=deadline_s)
                except UnreachableError as error:
                    raise _partly(error, len(some)) from None
            return await _all(map(alone, some)) if reply.status else {}

        lined = [change for change in changes if _is_line(change)]
        parts = [lined[at : at + _LINES] for at in range(0, len(lined), _LINES)]
        apart = [change for change in changes if not _is_line(change)]
        return await _all([*map(together, parts), *map(alone, apart)])

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        """Run ``sacctmgr``, then ``sacctmgr show qos`` for these QOS; of more than 100, for all."""
        refused = await self.sacctmgr(changes)
        names = named_qos(changes)
        if not names:
            return Changed(refused)
        where = ("where", f"name={','.join(sorted(names))}") if len(names) <= _FEW_QOS else ()
        shown = parse.parse_qos(await _show("qos", parse.QOS_FIELDS, *where), self._told)
        return Changed(refused, tuple(qos for qos in shown if qos.name in names))


_Run = tuple[int, int | None]
"""Job id, and Unix second of the start of its run."""


def _run(job: JobView) -> _Run:
    return job.job_id, None if job.state in WAITING else job.start_s


def _is_line(change: tuple[str, ...]) -> bool:
    """Whether one ``sacctmgr`` may read the change among others, and read it again after a refusal.

    Only modifications qualify: what was added can't be added once more. sacctmgr cuts a line at
    blanks outside of quotes, and without readline after 4095 bytes.
    """
    is_short = sum(len(word) + 1 for word in change) < _LINE_BYTES
    return change[0] == "modify" and is_short and all(map(_WORD.fullmatch, change))


def _partly(error: UnreachableError, lines: int) -> UnreachableError:
    refusal = error.refusal
    return UnreachableError(
        refusal.code,
        f"{refusal.message}. Some of {lines} changes may have been made; the next look at limits "
        "makes the rest.",
        refusal.hint,
    )


async def _all(
    runs: Iterable[Awaitable[Mapping[tuple[str, ...], str]]],
) -> Mapping[tuple[str, ...], str]:
    refused: dict[tuple[str, ...], str] = {}
    for outcome in await asyncio.gather(*runs, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        refused |= outcome
    return refused


async def _shown_jobs(jobs: Collection[JobView]) -> Mapping[int, str]:
    """What ``scontrol show job -d`` prints of each job; some are left out."""
    if len(jobs) <= _FEW_JOBS:
        return await _shown_apart(jobs)
    return by_job(await run(("scontrol", "-d", "show", "job"), deadline_s=CHANGE_DEADLINE_S))


async def _shown_apart(jobs: Collection[JobView]) -> Mapping[int, str]:
    answered = zip(jobs, await _details(jobs), strict=False)
    return {job.job_id: text for job, text in answered}


async def _details(jobs: Collection[JobView]) -> Sequence[str]:
    mark = secret()
    # Under its own number, the last task of an array would be shown with all other tasks.
    lines = (f"show job {job.task}\nshow hostnames {mark}\n" for job in jobs)
    # A job that has ended meanwhile is no failure.
    reply = await attempt(("scontrol", "-d"), stdin="".join(lines))
    return answers(reply.output, mark)


async def _runs(since_s: int, which: str) -> str:
    window = (f"--starttime={time_text(since_s)}", "--endtime=now")
    return await _accounting(RUN_FIELDS, which, *window, f"--state={','.join(RUN_STATES)}")


async def _accounting(fields: Sequence[str], *which: str, deadline_s: float = DEADLINE_S) -> str:
    kind = ("--noconvert", "--allusers", "--duplicates", *which)
    # A line break in an account's name could imitate a run, but not a separator made just now.
    separator = secret()
    cut = f"--delimiter={separator}"
    shown = f"--format={','.join(fields)}"
    text = await run(("sacct", *_PLAIN, cut, *kind, shown), deadline_s=deadline_s)
    return text.replace("|", "/").replace(separator, "|")


async def _show(what: str, fields: Sequence[str], *where: str) -> str:
    columns = f"format={','.join(fields)}"
    argv = ("sacctmgr", *_PLAIN, "show", what, *where, columns)
    return await run(argv, deadline_s=CHANGE_DEADLINE_S)


async def _show_secretly(question: str, columns: Sequence[str]) -> str:
    """Show columns without naming them in an argument, which every user can read while it runs.

    Each column has another width, or sacctmgr would show a field only once; with ``--parsable2`` it
    cuts nothing.
    """
    shown = ",".join(f"{name}%{width}" for width, name in enumerate(columns, 1))
    line = f"{question} format={shown}"
    argv = ("sacctmgr", *_PLAIN)
    return without_prompts(await run(argv, stdin=f"{line}\n", deadline_s=CHANGE_DEADLINE_S))


async def _scripts(job_ids: Sequence[int]) -> Mapping[int, str]:
    """Read these scripts by one ``scontrol``.

    If scontrol can't reach slurmctld, it says so for each job and exits with status 0.
    """
    mark = secret()
    questions = script_questions(job_ids, mark)
    reply = await attempt(("scontrol",), stdin=questions, deadline_s=CHANGE_DEADLINE_S)
    return parse_scripts(reply.output, job_ids, mark)


async def _rows(
    states: str, fields: Sequence[str] = JOB_FIELDS, job_ids: Collection[int] = ()
) -> tuple[Mapping[str, str], ...]:
    """Rows of ``squeue``, of all jobs unless some are named."""
    separator = secret()
    # Not as an argument: every user can read those of a running command.
    variables = {"SQUEUE_FORMAT2": job_format(fields, separator)}
    only = (f"--jobs={','.join(map(str, sorted(job_ids)))}",) if job_ids else ()
    argv = (*SQUEUE, "--array", f"--states={states}", *only)
    return parse_rows(await run(argv, variables=variables), fields, separator)


async def _rows_of(target: Target) -> Sequence[Mapping[str, str]]:
    """Rows of these tasks with RELEASE_FIELDS.

    squeue 22.05 finds only some tasks of ``--jobs=814_[0-2]``, so the whole array is asked for.
    """
    if isinstance(target, int):
        return await _rows("all", RELEASE_FIELDS, (target,))
    rows = await _rows("all", RELEASE_FIELDS, (target.array_job_id,))
    indices = {str(index) for index in target.indices}
    return [row for row in rows if row["ArrayTaskId"] in indices]
