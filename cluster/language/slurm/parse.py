"""Parses what Slurm's commands print into the types of ``language/jobs.py`` and ``interface``.

Written for 22.05, 24.11 and 26.05. Users choose names, comments and paths, and Slurm quotes none of
them. So jobs are read from ``squeue`` with a separator that no user can guess (``job_rows``),
associations between marks that no user can guess, steps one by one, and accounting without any text
of a user. ``told`` takes what can't be read.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import eq

from slicewise.cluster.language.gres import shared_of_tres
from slicewise.cluster.language.jobs import NodeView, PartitionView, StepView
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.cluster.language.slurm.node_states import read_states
from slicewise.cluster.language.slurm.unread import Fields, ReportsUnread, Unread, quoted
from slicewise.cluster.language.slurm.values import (
    duration_s,
    gpu_counts,
    gpu_indices,
    has_default_memory,
    hosts,
    is_whole,
    limits,
    named,
    names,
    node_blocked,
    numbers,
    plain,
    shared_counts,
    tres,
    unreadable,
    untyped_gpus,
    weights,
    whole,
)

COORDINATOR_FIELDS = ("Account", "Coordinators")

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
    "GrpSubmitJobs",
    "MaxSubmitJobs",
    "GrpTRESMins",
    "Share",
)
_PARENTS = "parent"
"""A share that is its parent's."""
USE_FIELDS = ("Cluster", "QOS")
QOS_FIELDS = (
    "Name",
    "GrpTRES",
    "Preempt",
    "MaxTRESPerAccount",
    "GrpTRESRunMins",
    "PreemptExemptTime",
    "PreemptMode",
    "Flags",
    "Priority",
    "GraceTime",
)

# -- Nodes, partitions and steps

_NODE_NAME = re.compile(r"\s*(?:scontrol: (?:show node \S+\n)?)?NodeName=(\S+)")
"""The beginning of a record, perhaps behind scontrol's prompt and the question that it echoes."""
MOST_STRANGERS = 64
"""Nodes with unknown names, such as those in no partition, that are looked into at most."""
_STRANGER = ""
_REASON = re.compile(r"^\s*Reason=(.*?)(?: \[[^\[\]\n]*\])?$", re.MULTILINE)
"""Without who gave it, and when."""
_REASON_SHOWN = 200
_RECORD = 1 << 16
"""Characters that are read of a record. None is longer by itself: one that a node's root has made
longer loses its end.
"""


def _block(block: str) -> Mapping[str, str]:
    # Administrators write Comment, Extra and Reason, which come last: a key's first value counts.
    fields: dict[str, str] = {}
    for word in block.split():
        key, equals, value = word.partition("=")
        if equals:
            fields.setdefault(key, value)
    return fields


def parse_nodes(
    text: str, told: ReportsUnread, columns: Collection[str] = ()
) -> tuple[NodeView, ...]:
    """Read ``scontrol show node -d``: records with a blank line between them.

    A node's root may have forged a million of them. So two records of each known name are read,
    enough to see that there are several, and 64 of all other names together.
    """
    seen: Counter[str] = Counter()
    nodes: list[NodeView] = []
    for block in re.split(r"\n\s*\n", text):
        if name := _NODE_NAME.match(block):
            kind = name[1] if name[1] in columns else _STRANGER
            seen[kind] += 1
            if seen[kind] <= (MOST_STRANGERS if kind == _STRANGER else 2):
                nodes.append(_node(block[:_RECORD], told))
    return tuple(nodes)


def _node(text: str, told: ReportsUnread) -> NodeView:
    block = _block(text)
    fields = Fields("node", block["NodeName"], lambda field: block.get(field, ""), told)
    # A sign at the end of a state means that slurmd does not answer (*), or power saving.
    states = re.sub(r"[^A-Z_+]", "", block.get("State", ""))
    memory_mib = fields.read("memory_mib", "RealMemory", _amount, 0)
    reserved_mib = fields.read("memory_mib", "MemSpecLimit", _amount, 0)
    return NodeView(
        name=block["NodeName"],
        address=block.get("NodeAddr", block["NodeName"]),
        states=read_states(states.split("+")),
        gpus=gpu_counts(block.get("Gres", "")),
        gpus_allotted=gpu_counts(block.get("GresUsed", "")),
        untyped_gpus=untyped_gpus(block.get("Gres", "")),
        shared=shared_counts(block.get("Gres", "")),
        # GresUsed counts the GPUs that are shared, not their parts.
        shared_allotted=fields.read("shared_allotted", "AllocTRES", _shared_of, {}),
        partitions=names(block.get("Partitions", "")),
        weight=fields.read("weight", "Weight", lambda text: whole(text or "1"), 1),
        gpus_held=fields.read("gpus_held", "GresUsed", gpu_indices, frozenset()),
        blocked=node_blocked(block),
        cpus=fields.read("cpus", "CPUEfctv" if "CPUEfctv" in block else "CPUTot", _amount, 0),
        threads_per_core=max(1, fields.read("threads_per_core", "ThreadsPerCore", _amount, 1)),
        memory_mib=max(0, memory_mib - reserved_mib),
        reason=_reason(text),
    )


def _reason(text: str) -> str:
    match = _REASON.search(text)
    words = "".join(letter for letter in match[1] if letter.isprintable()) if match else ""
    return words[:_REASON_SHOWN].strip()


def _amount(text: str) -> int:
    return whole(text or "0")


def _shared_of(text: str) -> Mapping[str, int]:
    return shared_of_tres(tres(text))


_PARTITION_WORDS = frozenset(
    {"OverSubscribe=EXCLUSIVE", "ExclusiveUser=YES", "RootOnly=YES", "ReqResv=YES", "LLN=YES"}
)


def parse_partitions(text: str, told: ReportsUnread) -> tuple[PartitionView, ...]:
    """Read ``scontrol show partition``: records with a blank line between them."""
    blocks = (_block(block) for block in re.split(r"\n\s*\n", text))
    return tuple(_partition(block, told) for block in blocks if "PartitionName" in block)


def _partition(block: Mapping[str, str], told: ReportsUnread) -> PartitionView:
    name = block["PartitionName"]
    fields = Fields("partition", name, lambda field: block.get(field, ""), told)
    allowed, denied = block.get("AllowQos", "ALL"), named(block.get("DenyQos", ""))
    return PartitionView(
        name=name,
        billing_weights=fields.read("billing_weights", "TRESBillingWeights", weights, {}),
        qos=named(block.get("QoS", "")),
        has_default_memory=has_default_memory(block),
        allow_qos=None if allowed in {"ALL", "N/A"} else names(allowed),
        deny_qos=names(denied),
        is_up=block.get("State", "UP") == "UP",
        max_time_s=fields.read("max_time_s", "MaxTime", duration_s, None),
        default_time_s=fields.read("default_time_s", "DefaultTime", _default_time_s, None),
        words=_PARTITION_WORDS & {f"{key}={text}" for key, text in block.items()},
    )


def _default_time_s(text: str) -> int | None:
    return None if text in {"", "NONE"} else duration_s(text)


def parse_step_ids(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``squeue --steps -o %i``: job as a person names it (``814_3``) and step, srun's only."""
    pairs = (line.strip().rpartition(".") for line in text.splitlines())
    return tuple((job, step) for job, _, step in pairs if is_whole(step))


def parse_step(text: str, job_id: int, step: str) -> StepView | None:
    """Read ``scontrol show step`` of that one step; None if it ended or has no reserved ports.

    The step's owner may have written lines like these into its name. Slurm prints the name after
    the line with the nodes and before the one with the ports. So the first line with nodes and the
    last line with ports are Slurm's.
    """
    nodes = re.search(r"^ +State=.* NodeList=(\S+)$", text, flags=re.MULTILINE)
    ports = re.findall(r"^ +ResvPorts=(\S+)$", text, flags=re.MULTILINE)
    if nodes is None or not ports or plain(ports[-1]) == "":
        return None
    return StepView(
        job_id=job_id,
        step=step,
        nodes=hosts(nodes[1]),
        ports=numbers(ports[-1]),
    )


# -- Accounting


def piped(
    record: str, text: str, fields: Sequence[str], told: ReportsUnread
) -> Iterator[Mapping[str, str]]:
    """Rows by field, from lines that accounting's commands print with ``-P -n``.

    A coordinator chooses the names of accounts below their own, which must not harm other rows.
    Surplus cells of a line are part of the account's name. What a line break in a name leaves of a
    row is left out, as is a row in which several columns of the same field differ.

    Raises OutsideError (SW-SLURM-FAILED) if no line has the right length, unless an account's name
    may be why.
    """
    count = 0
    account = fields.index("Account") if "Account" in fields else None
    for line in text.split("\n"):
        cells = line.split("|")
        if account is not None and len(cells) > len(fields):
            end = account + 1 + len(cells) - len(fields)
            cells[account:end] = ["|".join(cells[account:end])]
        row = dict(zip(fields, cells, strict=False))
        if len(cells) == len(fields) and all(map(eq, map(row.get, fields), cells)):
            count += 1
            yield row
        elif line:
            told(Unread(record, quoted(cells[0]), "", quoted(line)))
    if account is None and text.strip() and not count:
        raise unreadable(record, text)


def parse_associations(
    text: str, own: str, columns: Sequence[str], told: ReportsUnread
) -> tuple[Association, ...]:
    """Read ``sacctmgr -n -P show assoc`` without (``text``) and with ``wopl`` (``own``).

    ``wopl`` leaves out what is inherited. A row that has its cluster's name as ID is not Slurm's:
    it was written into a name, with the same text in every column that no user chooses.
    """
    rows_of_text = tuple(_rows(text, columns, told))
    own_said = _rows(own, columns, told)
    own_rows = {_association_key(row): row for row in own_said}
    return tuple(
        _association(row, own_rows.get(_association_key(row), row), told) for row in rows_of_text
    )


def parse_coordinators(text: str, told: ReportsUnread) -> Mapping[str, frozenset[str]]:
    """Read ``sacctmgr -n -P show account withcoord`` with COORDINATOR_FIELDS.

    An account's name with line breaks may imitate the row of another account, which then has two:
    of such accounts nobody is taken for a coordinator.
    """
    coordinators: dict[str, frozenset[str]] = {}
    for row in piped("account", text, COORDINATOR_FIELDS, told):
        account = row["Account"]
        users = frozenset(filter(None, row["Coordinators"].split(",")))
        coordinators[account] = frozenset() if account in coordinators else users
    return coordinators


def _rows(text: str, columns: Sequence[str], told: ReportsUnread) -> Iterator[Mapping[str, str]]:
    for row in piped("association", text, columns, told):
        if row.get("ID") == row["Cluster"]:
            told(Unread("association", quoted(row["Cluster"]), "ID", quoted(row["ID"])))
        else:
            yield row


def _share(text: str) -> int:
    return whole(text or "1")


def _association_key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[field] for field in ("Cluster", "Account", "User", "Partition"))


def _association(
    row: Mapping[str, str], own: Mapping[str, str], told: ReportsUnread
) -> Association:
    name = " ".join(word for word in (row["Account"], row["User"], row["Partition"]) if word)
    fields = Fields("association", name, row.__getitem__, told)
    return Association(
        cluster=row["Cluster"],
        account=row["Account"],
        user=row["User"],
        parent=row["ParentName"],
        qos=names(row["QOS"]),
        default_qos=row["DefaultQOS"],
        grp_tres=fields.read("grp_tres", "GrpTRES", limits, {}),
        grp_tres_run_mins=fields.read("grp_tres_run_mins", "GrpTRESRunMins", limits, {}),
        grp_tres_mins=fields.read("grp_tres_mins", "GrpTRESMins", limits, {}),
        own_qos=names(own["QOS"]),
        own_default_qos=own["DefaultQOS"],
        partition=row["Partition"],
        bounds_submits=bool(row["GrpSubmitJobs"] or row["MaxSubmitJobs"]),
        share=None if row["Share"] == _PARENTS else fields.read("share", "Share", _share, 1),
    )


def parse_qos_elsewhere(text: str, cluster: str, told: ReportsUnread) -> frozenset[str]:
    """Read ``sacctmgr -n -P show assoc``: every QOS in the lists of clusters other than this one.

    slurmdbd writes clusters' names in small letters, whatever slurm.conf says.
    """
    here = cluster.lower()
    rows = piped("association", text, USE_FIELDS, told)
    return frozenset(
        name for row in rows if row["Cluster"].lower() != here for name in names(row["QOS"])
    )


def parse_qos(text: str, told: ReportsUnread) -> tuple[Qos, ...]:
    """Read ``sacctmgr -n -P show qos``."""
    return tuple(_qos(row, told) for row in piped("QOS", text, QOS_FIELDS, told))


def _qos(row: Mapping[str, str], told: ReportsUnread) -> Qos:
    fields = Fields("QOS", row["Name"], row.__getitem__, told)
    return Qos(
        name=row["Name"],
        grp_tres=fields.read("grp_tres", "GrpTRES", limits, {}),
        preempt=names(row["Preempt"]),
        max_tres_per_account=fields.read("max_tres_per_account", "MaxTRESPerAccount", limits, {}),
        grp_tres_run_mins=fields.read("grp_tres_run_mins", "GrpTRESRunMins", limits, {}),
        preempt_exempt_s=fields.read("preempt_exempt_s", "PreemptExemptTime", duration_s, None),
        preempt_mode=row["PreemptMode"].lower(),
        flags=names(row["Flags"].lower()),
        priority=fields.read("priority", "Priority", _amount, 0),
        grace_s=fields.read("grace_s", "GraceTime", duration_s, None) or 0,
    )


# -- Configuration


def parse_config(text: str) -> Mapping[str, str]:
    """Read ``scontrol show config``: ``SLURM_VERSION``, ``ClusterName``, ..."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_version(text: str) -> tuple[int, ...]:
    """Read ``22.05.8`` as (22, 5, 8); a tail such as ``-0rc1`` is left out."""
    match = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*(?![0-9])", text)
    if match is None:
        raise unreadable("version", text)
    return tuple(whole(part) for part in match[0].split("."))
