"""What Slurm's commands print, into the types of ``cluster.jobs`` and ``interface``.

Written for 22.05, 24.11 and 26.05. Users choose names, comments and paths, and Slurm quotes none
of them: a line break in a job's name can imitate a whole record of ``scontrol show job``, tag and
all. So jobs are read from ``squeue`` with a separator that nobody can guess, steps one by one, and
accounting without any text of a user.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cluster.jobs import JobState, JobView, NodeView, PartitionView, StepView
from cluster.slurm.interface import Association, Qos
from cluster.slurm.values import (
    duration_s,
    gpu_counts,
    gpu_indices,
    hosts,
    limits,
    named,
    names,
    node_blocked,
    numbers,
    plain,
    time_s,
    tres,
    unreadable,
    weights,
)

JOB_FIELDS = (
    "JobId",
    "ArrayJobId",
    "ArrayTaskId",
    "Name",
    "UserName",
    "UserId",
    "Account",
    "Partition",
    "QOS",
    "State",
    "Reason",
    "PriorityLong",
    "admin_comment",
    "Comment",
    "tres-alloc",
    "NodeList",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "EligibleTime",
    "TimeLimit",
    "RestartCnt",
)
"""What ``squeue -O`` is asked for. ``tres-alloc`` is the request while the job is pending."""

RELEASE_FIELDS = ("ArrayTaskId", "State", "RestartCnt", "SubmitTime")

ASSOCIATION_FIELDS = (
    "Cluster",
    "Account",
    "User",
    "Partition",
    "ParentName",
    "QOS",
    "DefaultQOS",
    "GrpTRES",
    "GrpTRESRunMins",
)
USE_FIELDS = ("Cluster", "QOS")
QOS_FIELDS = ("Name", "GrpTRES", "Preempt", "MaxTRESPerAccount", "PreemptExemptTime")

_ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "RECONFIG_FAIL",
        "TIMEOUT",
    }
)
_PENDING = frozenset({"REQUEUE_HOLD", "RESV_DEL_HOLD"})
HOLDABLE = frozenset({JobState.PENDING, JobState.SPECIAL_EXIT})


# -- Jobs


def job_format(fields: Sequence[str], separator: str) -> str:
    """For SQUEUE_FORMAT2: each field in full, ended by the separator (a letter first)."""
    return ",".join(f"{field}:{separator}" for field in fields)


def parse_rows(text: str, fields: Sequence[str], separator: str) -> tuple[Mapping[str, str], ...]:
    """Rows of squeue by field; whatever a user wrote stays inside its value, line breaks too."""
    *cells, end = text.split(separator)
    if end.strip() or len(cells) % len(fields):
        raise unreadable("job list", text)
    width = len(fields)
    starts = range(0, len(cells), width)
    # Each row ends with a line break, which so stands before the next row's first cell.
    rows = (dict(zip(fields, cells[start : start + width], strict=True)) for start in starts)
    return tuple({**row, fields[0]: row[fields[0]].removeprefix("\n")} for row in rows)


def parse_pending(text: str) -> Mapping[int, frozenset[int]]:
    """``squeue -o %i`` without ``-r``: indices by array, of lines such as ``814_[0-8:2,11%4]``."""
    found: dict[int, frozenset[int]] = {}
    for line in text.split():
        array, _, indices = line.partition("_")
        if indices and array.isdigit():
            several = frozenset(numbers(indices.strip("[]")))
            found[int(array)] = found.get(int(array), frozenset()) | several
    return found


def parse_jobs(
    rows: Sequence[Mapping[str, str]], pending: Mapping[int, frozenset[int]]
) -> tuple[JobView, ...]:
    """Rows of ``squeue -r``; the untouched tasks of an array, which share its id, as one record.

    Where the untouched indices are evenly spaced (``0-8:2``), ``squeue -r`` of 22.05 leaves out
    the last, so ``pending``, read before the rows, completes them: all but those with an own row.
    """
    grouped: dict[int, list[JobView]] = {}
    for job in map(_job, rows):
        grouped.setdefault(job.job_id, []).append(job)
    split = _split_tasks(same[0] for same in grouped.values())
    return tuple(
        _record(same, pending.get(job_id, frozenset()) - split.get(job_id, frozenset()))
        for job_id, same in grouped.items()
    )


def _split_tasks(jobs: Iterable[JobView]) -> Mapping[int, frozenset[int]]:
    """By array, the tasks with an id of their own."""
    found: dict[int, frozenset[int]] = {}
    for job in jobs:
        array = job.array_job_id
        if array is not None and array != job.job_id and job.task_index is not None:
            found[array] = found.get(array, frozenset()) | {job.task_index}
    return found


def _record(same: Sequence[JobView], missed: frozenset[int]) -> JobView:
    first = same[0]
    indices = missed.union(job.task_index for job in same if job.task_index is not None)
    if len(indices) <= 1:
        return first
    # The rest of an array can also end as a whole: nothing of it can be released any more.
    untouched = frozenset() if first.state is JobState.ENDED else indices
    return replace(first, task_index=None, untouched=untouched)


def _job(row: Mapping[str, str]) -> JobView:
    try:
        return _job_view(row)
    except ValueError:
        raise unreadable("job", str(dict(row))) from None


def _job_view(row: Mapping[str, str]) -> JobView:
    task_index = int(row["ArrayTaskId"]) if row["ArrayTaskId"].isdigit() else None
    state = job_state(row["State"])
    return JobView(
        job_id=int(row["JobId"]),
        array_job_id=None if task_index is None else int(row["ArrayJobId"]),
        task_index=task_index,
        untouched=frozenset(),
        name=plain(row["Name"]),
        user=row["UserName"],
        uid=int(row["UserId"]),
        account=plain(row["Account"]),
        partition=row["Partition"],
        qos=plain(row["QOS"]),
        state=state,
        reason=row["Reason"],
        held=state in HOLDABLE and row["PriorityLong"] == "0",
        priority=int(row["PriorityLong"]),
        admin_comment=plain(row["admin_comment"]),
        comment=plain(row["Comment"]),
        tres=tres(row["tres-alloc"]),
        nodes=hosts(row["NodeList"]),
        submit_s=time_s(row["SubmitTime"]),
        start_s=time_s(row["StartTime"]),
        end_s=time_s(row["EndTime"]),
        eligible_s=time_s(row["EligibleTime"]),
        time_limit_s=duration_s(row["TimeLimit"]),
        restarts=int(row["RestartCnt"]),
        ended=row["State"] if state is JobState.ENDED else "",
    )


def job_state(word: str) -> JobState:
    """Slurm's word; a task held after a requeue (REQUEUE_HOLD) is pending underneath."""
    if word in _ENDED:
        return JobState.ENDED
    if word in _PENDING:
        return JobState.PENDING
    return JobState(word) if word in JobState.__members__ else JobState.OTHER


def last_end_s(rows: Sequence[Mapping[str, str]], now_s: int) -> int:
    """When the last run of these tasks ended, from ``RELEASE_FIELDS``: now if one still does.

    A requeue sets SubmitTime. 0 if none has run yet.
    """
    return max((_end_s(row, now_s) for row in rows), default=0)


def started(rows: Sequence[Mapping[str, str]]) -> frozenset[int]:
    """Indices of these tasks, from ``RELEASE_FIELDS``, that are not pending."""
    return frozenset(
        int(row["ArrayTaskId"])
        for row in rows
        if row["ArrayTaskId"].isdigit() and job_state(row["State"]) not in HOLDABLE
    )


def _end_s(row: Mapping[str, str], now_s: int) -> int:
    if row["State"] == JobState.COMPLETING:
        return now_s
    return 0 if row["RestartCnt"] == "0" else time_s(row["SubmitTime"]) or 0


# -- Nodes, partitions and steps


def _block(block: str) -> Mapping[str, str]:
    # Administrators write Comment, Extra and Reason, which come last: the first of a key counts.
    found: dict[str, str] = {}
    for word in block.split():
        key, equals, value = word.partition("=")
        if equals:
            found.setdefault(key, value)
    return found


def parse_nodes(text: str) -> tuple[NodeView, ...]:
    """``scontrol show node -d``: records with a blank line between them."""
    blocks = (_block(block) for block in re.split(r"\n\s*\n", text))
    return tuple(_node(block) for block in blocks if "NodeName" in block)


def _node(block: Mapping[str, str]) -> NodeView:
    # A sign at the end of a state tells of a daemon that does not answer (*) or of power saving.
    states = re.sub(r"[^A-Z_+]", "", block.get("State", ""))
    return NodeView(
        name=block["NodeName"],
        address=block.get("NodeAddr", block["NodeName"]),
        states=frozenset(states.split("+")),
        gpus=gpu_counts(block.get("Gres", "")),
        gpus_allotted=gpu_counts(block.get("GresUsed", "")),
        partitions=names(block.get("Partitions", "")),
        weight=int(block.get("Weight", "1")),
        gpus_held=gpu_indices(block.get("GresUsed", "")),
        blocked=node_blocked(block),
    )


def parse_partitions(text: str) -> tuple[PartitionView, ...]:
    """``scontrol show partition``: records with a blank line between them."""
    blocks = (_block(block) for block in re.split(r"\n\s*\n", text))
    return tuple(_partition(block) for block in blocks if "PartitionName" in block)


def _partition(block: Mapping[str, str]) -> PartitionView:
    return PartitionView(
        name=block["PartitionName"],
        billing_weights=weights(block.get("TRESBillingWeights", "")),
        qos=named(block.get("QoS", "")),
    )


def parse_step_ids(text: str) -> tuple[tuple[str, str], ...]:
    """``squeue --steps -o %i``: job as a person names it (``814_3``) and step; only srun's."""
    pairs = (line.strip().rpartition(".") for line in text.splitlines())
    return tuple((job, step) for job, _, step in pairs if step.isdigit())


def parse_step(text: str, job: JobView, step: str) -> StepView | None:
    """``scontrol show step`` of that one step; None if it ended or has no reserved ports.

    Its owner may have written lines like these into its name. That stands before the line with the
    ports and behind the one with the nodes, so the last and the first of them are Slurm's.
    """
    nodes = re.search(r"^ +State=.* NodeList=(\S+)$", text, flags=re.MULTILINE)
    ports = re.findall(r"^ +ResvPorts=(\S+)$", text, flags=re.MULTILINE)
    if nodes is None or not ports or plain(ports[-1]) == "":
        return None
    return StepView(
        job_id=job.job_id,
        array_job_id=job.array_job_id,
        task_index=job.task_index,
        step=step,
        nodes=hosts(nodes[1]),
        ports=numbers(ports[-1]),
    )


# -- Accounting


def piped(text: str, fields: Sequence[str]) -> Iterator[Mapping[str, str]]:
    """Lines of accounting's commands with ``-P -n``, by field.

    A coordinator chooses the names of accounts below his, and nobody else's rows may suffer from
    it: what is too much for a line belongs to its account's name, and what a line break in one
    leaves of a row is left out.
    """
    account = fields.index("Account") if "Account" in fields else None
    for line in text.split("\n"):
        cells = line.split("|")
        if account is not None and len(cells) > len(fields):
            end = account + 1 + len(cells) - len(fields)
            cells[account:end] = ["|".join(cells[account:end])]
        if len(cells) == len(fields):
            yield dict(zip(fields, cells, strict=True))
        elif line and account is None:
            raise unreadable("accounting", line)


def parse_associations(text: str, own: str) -> tuple[Association, ...]:
    """``sacctmgr -n -P show assoc`` without and with ``wopl``, which leaves out the inherited."""
    own_rows = {_association_key(row): row for row in piped(own, ASSOCIATION_FIELDS)}
    return tuple(
        _association(row, own_rows.get(_association_key(row), row))
        for row in piped(text, ASSOCIATION_FIELDS)
    )


def _association_key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[field] for field in ("Cluster", "Account", "User", "Partition"))


def _association(row: Mapping[str, str], own: Mapping[str, str]) -> Association:
    return Association(
        cluster=row["Cluster"],
        account=row["Account"],
        user=row["User"],
        parent=row["ParentName"],
        qos=names(row["QOS"]),
        default_qos=row["DefaultQOS"],
        grp_tres=limits(row["GrpTRES"]),
        grp_tres_run_mins=limits(row["GrpTRESRunMins"]),
        own_qos=names(own["QOS"]),
        own_default_qos=own["DefaultQOS"],
        partition=row["Partition"],
    )


def parse_qos_elsewhere(text: str, cluster: str) -> frozenset[str]:
    """``sacctmgr -n -P show assoc``: every QOS in the lists of other clusters than that one."""
    rows = piped(text, USE_FIELDS)
    return frozenset(
        name for row in rows if row["Cluster"] != cluster for name in names(row["QOS"])
    )


def parse_qos(text: str) -> tuple[Qos, ...]:
    """``sacctmgr -n -P show qos``."""
    rows = piped(text, QOS_FIELDS)
    return tuple(_qos(row) for row in rows)


def _qos(row: Mapping[str, str]) -> Qos:
    return Qos(
        name=row["Name"],
        grp_tres=limits(row["GrpTRES"]),
        preempt=names(row["Preempt"]),
        max_tres_per_account=limits(row["MaxTRESPerAccount"]),
        preempt_exempt_s=duration_s(row["PreemptExemptTime"]),
    )


# -- Configuration


def parse_config(text: str) -> Mapping[str, str]:
    """``scontrol show config``: ``SLURM_VERSION``, ``ClusterName``, ..."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_version(text: str) -> tuple[int, ...]:
    """``22.05.8`` as (22, 5, 8); a tail such as ``-0rc1`` is left out."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    if match is None:
        raise unreadable("version", text)
    return tuple(int(part) for part in match[0].split("."))
