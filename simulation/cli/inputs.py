"""Gathers what is simulated: the site, its past, and which part of that counts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.periods import clock_text
from slicewise.cluster.language.slurm.interface import Association
from slicewise.cluster.language.units import counted
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.history.formats import read_history
from slicewise.simulation.rules.cluster import REPAIR_HOURS, NodeFailures, SimulatedCluster
from slicewise.simulation.rules.history.fitting import fitted, with_gpus_for_cpus
from slicewise.simulation.rules.history.jobs import HistoryJob, JobHistory
from slicewise.simulation.rules.report.figure_texts import unread_text
from slicewise.simulation.rules.runs.experiment import WARM_UP_S
from slicewise.simulation.rules.runs.spending import spending_of
from slicewise.simulation.rules.site.limits_of_round import own_accounts, own_qos
from slicewise.simulation.rules.site.plans import SitePlan, SlicewisePlan, SlurmPlan
from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits
from slicewise.simulation.rules.snapshot.site import SiteDescription, described
from slicewise.simulation.snapshot.archive_reader import is_archive, read_snapshot
from slicewise.simulation.snapshot.cluster_file import read_cluster_file
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota
from slicewise.slurm_plugin.rules.quota.types import Policy

ENFORCE = "enforce"
_DAY_S = 86_400
_WEEK_DAYS = 7
_OF_CLUSTER, _REQUEUE = "cluster", "requeue"
_ENDING = frozenset({_REQUEUE, "cancel"})
"""Modes of preemption in which Slurm ends jobs to make room."""
_TAIL_S = _DAY_S
"""Seconds after the end in which jobs still come: they compete with those that count."""


@dataclass(frozen=True)
class SiteInputs:
    """A site at one moment, and its past.

    Attributes:
        history: None if it holds none.
    """

    now: SiteDescription
    history: JobHistory | None = None

    @property
    def cluster(self) -> SimulatedCluster:
        """Its hardware and how its Slurm schedules."""
        return self.now.cluster

    @property
    def settings(self) -> Settings:
        """Its slicewise.toml, as far as that decides."""
        return self.now.settings

    @property
    def tenants(self) -> Policy:
        """Its policy, without the calendar's windows."""
        return self.now.ledger.tenants

    @property
    def zone(self) -> str:
        """The time zone of its days."""
        return self.settings.ledger.time_zone


def read_site(where: Path) -> SiteInputs:
    """Read an archive of ``slicewise snapshot``, or a cluster file.

    Raises InvalidInputError (SW-INPUT-FILE), also for the history in an archive.
    """
    try:
        is_taken = is_archive(where)
    except OSError:
        is_taken = False  # The reader of the other says why it can't be read.
    if not is_taken:
        return SiteInputs(read_cluster_file(where))
    taken = read_snapshot(where)
    return SiteInputs(described(taken.snapshot), taken.history)


def with_failures(
    site: SiteInputs, mean_days: float | None, repair_hours: float | None
) -> SiteInputs:
    """The site whose nodes fail once in so many days; None keeps what it says itself.

    Raises InvalidInputError (SW-USAGE) for hours of repair where no node ever fails.
    """
    own, repair_s = site.cluster.failures, REPAIR_HOURS * 3600
    if own is None and mean_days is None:
        if repair_hours is None:
            return site
        raise InvalidInputError(
            Code.USAGE,
            "--repair says how long nodes are down, and none of this site ever fails.",
            "Say how often by --failures DAYS.",
        )
    failures = own or NodeFailures(inf, repair_s)
    if mean_days is not None:
        failures = replace(failures, mean_s=mean_days * _DAY_S)
    if repair_hours is not None:
        failures = replace(failures, repair_s=repair_hours * 3600)
    return replace(site, now=replace(site.now, cluster=replace(site.cluster, failures=failures)))


def without_repartitions(site: SiteInputs) -> SiteInputs:
    """The site whose GPUs stay as they are cut, whatever its settings allow."""
    nodes = tuple(replace(node, boards=None) for node in site.cluster.nodes)
    return replace(site, now=replace(site.now, cluster=replace(site.cluster, nodes=nodes)))


def present_plan(site: SiteInputs) -> SitePlan:
    """How the site decides: by Slicewise, or by Slurm alone with the limits that it has.

    A cluster file with tenants means Slicewise; a snapshot says whether it sets limits.
    """
    sets_limits, is_taken = _sets_limits(site), site.now.taken_s > 0
    if site.tenants and (sets_limits or not is_taken):
        return slicewise_plan("present", site, site.tenants)
    return SlurmPlan("present", _qos_limits(site.now), _account_limits(site.now.associations))


def slicewise_plan(name: str, site: SiteInputs, policy: Policy) -> SlicewisePlan:
    """Slicewise with this policy, beside the site's own limits."""
    accounts = _account_limits(site.now.associations)
    if _sets_limits(site):
        of = site.settings
        accounts = own_accounts(accounts, site.tenants, of.costs, of.models)
    return SlicewisePlan(
        name,
        site.settings,
        policy,
        site.now.ledger.windows,
        qos=own_qos(_qos_limits(site.now), site.tenants),
        accounts=accounts,
        known_spending=spending_of(site.now),
    )


def _sets_limits(site: SiteInputs) -> bool:
    return site.settings.daemon.mode == ENFORCE and not site.now.ledger.is_uninstalled


def _qos_limits(now: SiteDescription) -> Mapping[str, QosLimits]:
    modes = {
        qos.name: now.preempt_mode if qos.preempt_mode == _OF_CLUSTER else qos.preempt_mode
        for qos in now.qos
    }
    # Slurm makes room by ending jobs; by the other modes none ends.
    going = {name for name, mode in modes.items() if mode in _ENDING} if now.preempts_by_qos else ()
    return {
        qos.name: QosLimits(
            grp_tres=qos.grp_tres,
            grp_run_mins=qos.grp_tres_run_mins,
            max_tres_per_account=qos.max_tres_per_account,
            preempts=qos.preempt.intersection(going),
            preempt_exempt_s=qos.preempt_exempt_s or 0,
            preempt_requeues=modes[qos.name] == _REQUEUE,
            priority=qos.priority,
        )
        for qos in now.qos
    }


def _account_limits(associations: Iterable[Association]) -> Mapping[str, AccountLimits]:
    return {
        association.account: AccountLimits(
            parent=association.parent,
            grp_tres=association.grp_tres,
            grp_run_mins=association.grp_tres_run_mins,
            share=1 if association.share is None else association.share,
        )
        for association in associations
        if not association.user
    }


@dataclass(frozen=True)
class Demand:
    """The jobs that are replayed, and which of them count.

    Attributes:
        start_s, end_s: Unix seconds; jobs that come between them count.
        known_from_s: from when on the history has all jobs that came.
        notes: what of the history was not read, was assumed or was changed, as sentences; that no
            job asks for GPUs stands first.
        without_gpus: that sentence; "" if a job that counts asks for GPUs.
    """

    jobs: tuple[HistoryJob, ...]
    start_s: float
    end_s: float
    known_from_s: float
    notes: tuple[str, ...]
    without_gpus: str = ""


def demand(
    site: SiteInputs,
    file: Path | None,
    *,
    start_s: float | None,
    days: int | None,
    seed: int,
    cpus_per_gpu: int | None = None,
) -> Demand:
    """Return the jobs of the file, or of the site's own past without one.

    ``start_s`` and ``days`` are from when on and for how long jobs count; None is from when on the
    history has all of them, and to its end. ``cpus_per_gpu`` lets jobs of a history without GPUs
    ask for a GPU for each so many of their CPUs.
    Raises InvalidInputError: SW-INPUT-FILE for a file that can't be read, SW-USAGE where
    no job counts, the site has no GPUs, or CPUs can't be taken for GPUs.
    """
    if not any(node.gpus for node in site.cluster.nodes):
        raise InvalidInputError(
            Code.USAGE,
            "The site has no GPUs, so nothing of it can be simulated.",
            "In a cluster file, nodes have them by gpus = { a100 = 8 }.",
        )
    history = site.history if file is None else read_history(file, seed)
    if history is None or not history.jobs:
        raise InvalidInputError(
            Code.USAGE,
            "The site holds no jobs of the past to replay.",
            "Name a file of them by --jobs, or take them with the site: slicewise snapshot FILE.zip"
            " --days 31",
        )
    as_it_was = history.jobs
    if cpus_per_gpu is not None:
        history = _with_gpus(history, cpus_per_gpu)
    first_s, last_s = history.jobs[0].submit_s, history.jobs[-1].submit_s
    known_from_s = _whole_from_s(history)
    begin_s = known_from_s if start_s is None else start_s
    # The last job counts, too.
    end_s = last_s + 1.0 if days is None else begin_s + days * _DAY_S
    counting = [job for job in as_it_was if begin_s <= job.submit_s < end_s]
    if not counting:
        first, last = (clock_text(at_s, site.zone) for at_s in (first_s, last_s))
        raise InvalidInputError(
            Code.USAGE,
            "No job came in the time that --from and --days name.",
            f"They came from {first} to {last}, {site.zone}.",
        )
    warm_s = max(known_from_s, begin_s - WARM_UP_S)
    jobs = [job for job in history.jobs if _matters(job, warm_s, end_s)]
    fit = fitted(
        *(jobs, site.cluster, _weights(site), site.settings.costs), start_s=begin_s, end_s=end_s
    )
    bare = _without_gpus(as_it_was, counting, cpus_per_gpu)
    notes = (*((bare,) if bare else ()), *_notes(history), *fit.notes)
    return Demand(fit.jobs, begin_s, end_s, known_from_s, notes, bare)


def no_jobs(start_s: float | None, days: int | None) -> Demand:
    """Return a time in which no jobs come: a week, if ``days`` does not say another length."""
    begin_s, length = start_s or 0.0, days or _WEEK_DAYS
    themselves = f"the services have the cluster for themselves, for {counted(length, 'day')}"
    note = f"No jobs of the past: {themselves}."
    return Demand((), begin_s, begin_s + length * _DAY_S, begin_s, (note,))


def _with_gpus(history: JobHistory, cpus_per_gpu: int) -> JobHistory:
    if any(job.gpus for job in history.jobs):
        raise InvalidInputError(
            Code.USAGE,
            "--cpus-per-gpu is for a history in which no job asks for GPUs, and this one has some.",
            "Leave it out: jobs without GPUs take none.",
        )
    if not any(job.cpus for job in history.jobs):
        raise InvalidInputError(
            Code.USAGE,
            "No job of the history says how many CPUs it had, so --cpus-per-gpu gives none a GPU.",
            "Take a history with ReqTRES or AllocTRES, or with processors.",
        )
    return replace(history, jobs=with_gpus_for_cpus(history.jobs, cpus_per_gpu))


def _without_gpus(
    jobs: Iterable[HistoryJob], counting: Iterable[HistoryJob], cpus_per_gpu: int | None
) -> str:
    """Say that no job asks for GPUs, of all or of those that count; "" if one does.

    It may be a history of CPUs, or one that lost its GPUs.
    """
    if any(job.gpus for job in counting):
        return ""
    no_difference = "quotas and lending, which are of GPUs, make no difference"
    if any(job.gpus for job in jobs):
        return f"No job that counts asks for GPUs: {no_difference}."
    who = "No job of the history asks for GPUs"
    if cpus_per_gpu is None:
        return (
            f"{who}: {no_difference}. --cpus-per-gpu N lets each ask for a GPU for N of its CPUs."
        )
    return (
        f"{who}: each is taken to ask for one for {counted(cpus_per_gpu, 'CPU')} that it had,"
        " and for no CPUs or memory."
    )


def _whole_from_s(history: JobHistory) -> float:
    """From when on all jobs are there: before that the site would be emptier than it was."""
    first_s, last_s = history.jobs[0].submit_s, history.jobs[-1].submit_s
    whole_s = history.whole_from_s
    return first_s if whole_s is None or whole_s > last_s else max(first_s, whole_s)


def _matters(job: HistoryJob, begin_s: float, end_s: float) -> bool:
    """Whether it comes in that time or soon after, ran before, or still waited when it began.

    What ran before has been used.
    """
    if job.submit_s >= begin_s:
        return job.submit_s < end_s + _TAIL_S
    return job.started_s is not None or job.submit_s + job.run_s > begin_s


def _weights(site: SiteInputs) -> Mapping[str, int]:
    """What each tenant is guaranteed; without tenants the shares of accounts with none below."""
    if site.tenants:
        return guaranteed_quota(site.tenants)
    accounts = site.cluster.accounts
    above = frozenset(accounts.values())
    return {name: site.cluster.shares.get(name, 1) for name in accounts if name not in above}


def _notes(history: JobHistory) -> Iterator[str]:
    if history.unread:
        yield unread_text(history.unread, "the history", history.first_unread)
    if history.open_ended:
        yield (
            f"{counted(history.open_ended, 'job')} had not ended when the history was taken:"
            " those that ran"
            " end there, those that waited run for their time limit."
        )
    for why, lines in sorted(history.left_out.items()):
        yield f"{counted(lines, 'line')} of the history left out: {why}."
    yield from history.assumed
