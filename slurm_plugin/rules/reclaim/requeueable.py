"""Finds the batch jobs on borrowed quota that Slicewise may requeue before Slurm preempts any.

Only what Slurm's own preemption would requeue now, and no harder than it would.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.jobs import JobState, JobTag, JobView, RunOfJob
from slicewise.cluster.language.slurm.interface import Qos
from slicewise.cluster.language.slurm.values import duration_s
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed, is_own, tenant_of
from slicewise.slurm_plugin.rules.quota.types import Recall
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import PREEMPT_QOS

_REQUEUE, _OF_CLUSTER = "requeue", "cluster"
_PRIORITY, _USER_SIGNAL = "priority", "send_user_signal"
_SECONDS = re.compile(r"\d{1,9}")
_EXEMPT_PRIORITY = re.compile(r"\bmin_exempt_priority=(\d{1,10})\b")
_KILL_WAIT_S = 30
"""Slurm's default."""


def requeueable(
    jobs: Iterable[JobView],
    qos: Iterable[Qos],
    config: Mapping[str, str],
    *,
    grace_s: int,
    now_s: float,
    refused: Collection[RunOfJob] = (),
    spared: Collection[str] = (),
) -> frozenset[RunOfJob]:
    """The runs of batch jobs on borrowed quota that may be requeued for a lender.

    Slurm would requeue them, too: it preempts by QOS, their QOS is in the list of a tenant's own
    one, its mode is to requeue, and they have run for as long as it lets them alone
    (PreemptExemptTime) and have a priority below min_exempt_priority. A QOS with a GraceTime is
    left to Slurm, which announces the end first. So are jobs of a site with JobRequeue=0, with
    preemption by priority or with send_user_signal, those that Slurm ``refused`` to requeue
    (preemption cancels them), and those that Slicewise has not admitted. So are the components of
    heterogeneous jobs: a requeue of the first one requeues all of them, of another one Slurm
    refuses it, and Slurm preempts only where all of them may be. So are those of tenants that are
    ``spared``. Nothing may be requeued unless
    ``grace_s``, the grace of a recall, is longer than KillWait: the lender's limit would rise while
    these runs still end, and Slurm would preempt others.
    """
    by_qos = config.get("PreemptType") == PREEMPT_QOS and config.get("JobRequeue") != "0"
    if not by_qos or _announces(config) or grace_s <= kill_wait_s(config):
        return frozenset()
    exempt_s = dict(_exempt_s(qos, config))
    match = _EXEMPT_PRIORITY.search(config.get("PreemptParameters", ""))
    exempt_priority = int(match[1]) if match else inf
    return frozenset(
        (job.job_id, job.start_s)
        for job in jobs
        if job.qos in exempt_s and job.state is JobState.RUNNING and not job.is_doubtful
        if job.start_s is not None and now_s - job.start_s >= exempt_s[job.qos]
        if job.priority < exempt_priority and tenant_of(job.qos) not in spared
        if _is_batch(job) and not job.het_job_id and (job.job_id, job.start_s) not in refused
    )


def spared(refused_of: Collection[str], recalls: Iterable[Recall]) -> frozenset[str]:
    """The tenants of whose runs none is to end while Slurm refuses limits of ``refused_of``.

    Of these themselves, as another of their jobs could start in place of each that ends; and of
    those who owe such a tenant quota, which might start nothing on it.
    """
    owing = (recall.borrower for recall in recalls if recall.lender in refused_of)
    return frozenset((*refused_of, *owing))


def _is_batch(job: JobView) -> bool:
    """Whether Slicewise has admitted it, and it is no slot of a service."""
    tag = JobTag.find(job.admin_comment)
    return tag is not None and tag.service is None


def _announces(config: Mapping[str, str]) -> bool:
    """Whether Slurm sends a job the signal of its own choice (``--signal``) when it preempts."""
    return any(
        _USER_SIGNAL in config.get(key, "") for key in ("PreemptParameters", "SlurmctldParameters")
    )


def kill_wait_s(config: Mapping[str, str]) -> int:
    """Slurm's KillWait, by the settings that slurmctld shows."""
    match = _SECONDS.match(config.get("KillWait", ""))
    return int(match[0]) if match else _KILL_WAIT_S


def _exempt_s(qos: Iterable[Qos], config: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """The borrowed QOS whose jobs Slurm requeues, with the seconds for which it lets them alone."""
    rows = tuple(qos)
    of_cluster = config.get("PreemptMode", "").lower()
    preempted = {
        name
        for row in rows
        # With this mode only jobs of a lower priority than the lender's would go.
        if is_own(row.name) and _PRIORITY not in f"{of_cluster},{row.preempt_mode}".split(",")
        for name in row.preempt
    }
    try:
        else_s: float = duration_s(config.get("PreemptExemptTime", "")) or 0
    except OutsideError:
        else_s = inf
    for row in rows:
        mode = of_cluster if row.preempt_mode == _OF_CLUSTER else row.preempt_mode
        is_one = is_borrowed(row.name) and row.name in preempted
        if is_one and mode == _REQUEUE and not row.grace_s:
            yield row.name, else_s if row.preempt_exempt_s is None else row.preempt_exempt_s
