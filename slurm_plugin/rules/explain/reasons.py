"""Translates Slurm's reasons why a job waits into plain words. Covers Slurm 22.05 to 26.05."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.cluster.language.jobs import SHAPES_NODE
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed, is_ours
from slicewise.slurm_plugin.rules.explain.headroom import Cause
from slicewise.slurm_plugin.rules.quota.waits import QOS_BUDGET, QOS_SLICES, QOS_TYPES


@dataclass(frozen=True)
class Reason:
    """One of Slurm's reasons.

    Attributes:
        words: text that follows "waits: ".
        hint: what the job's user can do; JOB stands for the job's number.
        cause: the limit that Slicewise knows in numbers; None if the reason is no such limit.
    """

    words: str
    hint: str = ""
    cause: Cause | None = None


def translate(text: str, qos: str) -> Reason:
    """Explain the reason that squeue shows for a job in that QOS.

    An unknown reason is shown as it is.
    """
    if SHAPES_NODE in text:
        return _NOT_CUT
    # Details may follow: "ReqNodeNotAvail, UnavailableNodes:node[1-2]".
    name = text.partition(",")[0].strip().strip("()").replace(" ", "_")
    if name == QOS_BUDGET and is_ours(qos):
        return _BUDGET
    if name == QOS_SLICES:
        return _BORROWED_LIMIT if is_borrowed(qos) else _OWN_LIMIT if is_ours(qos) else _AT_THE_GATE
    if name == QOS_TYPES and is_ours(qos) and not is_borrowed(qos):
        return _OWN_TYPE
    return REASONS.get(name) or _limit(name) or Reason(f"Slurm says {text!r}")


_RELEASE = "Release it: scontrol release JOB"
_SHORTER = (
    "A job with a shorter time limit may start in a gap: scontrol update JobId=JOB TimeLimit=T"
)
_ASK = "Ask the operators."
_ANEW = "It will never start: cancel it (scancel JOB) and submit it again."
_NOT_CUT = Reason("no GPU is now cut into what it asks for", cause=Cause.NONE_FREE)
_REQUEUED_HELD = Reason("it ran before, and was requeued and held", _RELEASE)
_BUDGET = Reason("the budget does not allow a run this long now", cause=Cause.BUDGET)
_OWN_LIMIT = Reason("its tenant's guaranteed part is used up", cause=Cause.OWN_QOS)
_OWN_TYPE = Reason(
    "its tenant's guaranteed part has no more instances of this type", cause=Cause.GUARANTEED_TYPE
)
_BORROWED_LIMIT = Reason("its tenant is at its limit", cause=Cause.BORROWED_QOS)
_AT_THE_GATE = Reason(
    "its partition gives GPUs only to jobs in Slicewise's QOS",
    "Give it its tenant's QOS: scontrol update JobId=JOB QOS=slicewise_ACCOUNT",
)

REASONS: Mapping[str, Reason] = {
    "None": Reason("Slurm has not looked at it yet", "Look again in a moment."),
    "AssocGrpGRES": Reason(
        "its tenant may hold no more instances of this type", cause=Cause.TYPE_LIMIT
    ),
    "Resources": Reason("no node has enough free for it", _SHORTER, Cause.NONE_FREE),
    "Priority": Reason("jobs of higher priority go first", _SHORTER, Cause.NONE_FREE),
    "Dependency": Reason(
        "the jobs that it depends on have not ended", "See: scontrol show job JOB"
    ),
    "DependencyNeverSatisfied": Reason(
        "a job that it depends on did not end as it requires", _ANEW
    ),
    "BeginTime": Reason(
        "its begin time has not come", "Start it earlier: scontrol update JobId=JOB StartTime=now"
    ),
    "JobHeldUser": Reason("its user holds it", _RELEASE),
    "JobHeldAdmin": Reason("an administrator holds it", _ASK),
    "JobHoldMaxRequeue": Reason("it was requeued too often, and is held", _ASK),
    "job_requeued_in_held_state": _REQUEUED_HELD,
    "launch_failed_requeued_held": Reason("its node could not start it, and it is held", _RELEASE),
    "JobArrayTaskLimit": Reason("no more tasks of its array may run at one time"),
    "ReqNodeNotAvail": Reason(
        "nodes that it needs are down, drained or reserved", "See: sinfo -R", Cause.NONE_FREE
    ),
    "Reservation": Reason("its reservation has not begun", "See: scontrol show reservation"),
    "ReservationDeleted": Reason("its reservation was deleted", _ANEW),
    "ReservationInvalid": Reason("its reservation is not for it", _ANEW),
    "PartitionDown": Reason("its partition is down", _ASK),
    "PartitionInactive": Reason("its partition starts no jobs now", _ASK),
    "PartitionTimeLimit": Reason(
        "its time limit is above its partition's",
        "Lower it: scontrol update JobId=JOB TimeLimit=T (see: sinfo -o '%P %l')",
    ),
    "PartitionNodeLimit": Reason("it asks for more nodes than its partition allows or has", _ANEW),
    "PartitionConfig": Reason("its partition's settings do not allow it", _ASK),
    "BadConstraints": Reason("no node can ever give what it asks for", _ANEW),
    "Constraints": Reason("no node can ever give what it asks for", _ANEW),
    "InvalidQOS": Reason("its QOS is gone, or its account may not use it", _ANEW),
    "QOSNotAllowed": Reason("its partition does not allow its QOS", _ANEW),
    "InvalidAccount": Reason("its account is gone, or its user is no longer in it", _ASK),
    "AccountNotAllowed": Reason("its partition does not allow its account", _ANEW),
    "Licenses": Reason("licenses that it needs are in use", "See: scontrol show licenses"),
    "Prolog": Reason("its nodes are being made ready"),
    "Cleaning": Reason("Slurm still cleans up after its last run"),
    "Nodes_required_for_job_are_DOWN": Reason("nodes that it needs are down", "See: sinfo -R"),
    "FrontEndDown": Reason("no front end node is up", _ASK),
    "SchedDefer": Reason(
        "Slurm does not start jobs right at submission here (SchedulerParameters=defer)"
    ),
    "AccountingPolicy": Reason("a limit of accounting, which Slurm does not name", _ASK),
    "QOSUsageThreshold": Reason("its fair share is below the threshold of its QOS", _ASK),
    "BurstBufferResources": Reason("its burst buffer has no room"),
    "BurstBufferStageIn": Reason("its burst buffer is being filled"),
    "DeadLine": Reason("it could not end before its deadline", _ANEW),
}

_LIMIT = re.compile(
    r"(?P<of>Assoc|QOS)?(?P<kind>Grp|Max|Min)(?P<what>[A-Za-z]+?)"
    r"(?P<time>RunMinutes|RunMins|Minutes)?"
    r"(?P<per>Per(?:User|Account|Job|Node))?(?P<end>Limit|NotSatisfied)?"
)
_OWNERS = {"Assoc": "its account's", "QOS": "its QOS'", None: "its QOS'"}
_THINGS = {
    "Billing": "slices",
    "BB": "burst buffers",
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "Energy": "energy",
    "GRES": "GPUs",
    "Jobs": "running jobs",
    "License": "licenses",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "SubmitJob": "submitted jobs",
    "SubmitJobs": "submitted jobs",
    "Wall": "running time",
    "WallDuration": "running time",
}
_STILL = " × minutes that running jobs may still take"
_SPANS = {"RunMinutes": _STILL, "RunMins": _STILL, None: ""}
_EACH = {"PerUser": " of one user", "PerAccount": " of one account", "PerNode": " on one node"}


def _limit(name: str) -> Reason | None:
    """Explain a limit by the parts of its name in Slurm, such as ``AssocGrpMemRunMinutes``.

    None if the name is not that of a known limit.
    """
    match = _LIMIT.fullmatch(name)
    if match is None or match["what"] not in _THINGS:
        return None
    span = _SPANS.get(match["time"], " × minutes")
    each = " of one job" if match["per"] == "PerJob" else _EACH.get(match["per"], "")
    least = "at least this many" if match["kind"] == "Min" else "no more"
    return Reason(
        f"{_OWNERS[match['of']]} limit allows {least} {_THINGS[match['what']]}{span}{each}"
        f" ({name})",
        f"Slicewise has not set this limit. {_ASK}",
    )
