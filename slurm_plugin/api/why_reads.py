"""``slicewise why``: gathers what is known of a job, service or tenant for who may see it."""

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.periods import next_start_s
from slicewise.cluster.rpc.read_messages import WhyAnswer
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now
from slicewise.slurm_plugin.rules.explain.headroom import situation
from slicewise.slurm_plugin.rules.explain.shortage import WhyInput
from slicewise.slurm_plugin.rules.explain.why_job import jobs_named, why_job, why_without_ledger
from slicewise.slurm_plugin.rules.explain.why_tenant import why_no_tenant, why_tenant
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of
from slicewise.slurm_plugin.state.cluster_state import ClusterState


def why(
    about: str,
    principal: Principal,
    ledger: Ledger,
    settings: Settings,
    cluster_state: ClusterState,
) -> WhyAnswer:
    """Explain the state of a job, an array, a tenant, or a service: of the first that it names.

    Raises InvalidInputError: SW-FORBIDDEN equally for what does not exist and for what the reader
    may not see, SW-NAME-UNKNOWN to a reader who may see everything, SW-USAGE if several
    tenants of the reader have such a service.
    """
    jobs = jobs_named(about, cluster_state.jobs)
    if not jobs and principal.may_read(about):
        sight = _sight(ledger, settings, cluster_state)
        if about in sight.situation.policy:
            return why_tenant(about, sight)
        if (answer := why_no_tenant(about, sight)) is not None:
            return answer
    if not jobs:
        jobs = _jobs_of_service(about, principal, cluster_state)
        about = str(jobs[0].array_job_id) if jobs else about
    if jobs and all(map(principal.may_see, jobs)):
        try:
            sight = _sight(ledger, settings, cluster_state)
        except UnreachableError:
            answer = why_without_ledger(about, jobs)
            if answer is None:
                raise
            return answer
        answer = why_job(about, jobs, sight)
        # A user who has left a tenant sees own jobs of it, but nothing about its other users.
        whole = principal.may_read(jobs[0].account)
        return answer if whole else answer.model_copy(update={"tables": ()})
    if about in (principal.tenants or ()):
        raise InvalidInputError(
            Code.FORBIDDEN,
            f"Your account {about!r} has no quota: it is no tenant yet.",
            f"The operator can give it one: slicewise tenant-quota set {about} --nominal N",
        )
    hint = "A job submitted just now appears within a second; for ended jobs: sacct -j JOB."
    if principal.tenants is None:
        raise InvalidInputError(
            Code.NAME_UNKNOWN, f"There is no job, service or tenant {about!r}.", hint
        )
    own = ", ".join(sorted(principal.tenants)) or "none"
    raise InvalidInputError(
        Code.FORBIDDEN,
        f"There is no job, service or tenant {about!r} that you may see.",
        f"{hint} Your tenants: {own}.",
    )


def _jobs_of_service(
    about: str, principal: Principal, cluster_state: ClusterState
) -> tuple[JobView, ...]:
    """The records of the newest generation of the service NAME or TENANT/NAME; () if none is seen.

    Raises InvalidInputError (SW-USAGE).
    """
    found: dict[str, tuple[JobView, ...]] = {}
    for service in sorted(cluster_state.view.services, key=lambda each: each.array_job_id):
        full_name = f"{service.tenant}/{service.name}"
        if about in {service.name, full_name}:
            jobs = jobs_named(str(service.array_job_id), cluster_state.jobs)
            if jobs and all(map(principal.may_see, jobs)):
                found[full_name] = jobs
    if len(found) > 1:
        raise InvalidInputError(
            Code.USAGE,
            f"Several services are named {about!r}.",
            f"Name one of: {', '.join(sorted(found))}.",
        )
    return next(iter(found.values()), ())


def _sight(ledger: Ledger, settings: Settings, cluster_state: ClusterState) -> WhyInput:
    ledger_view = ledger_view_now(ledger, settings, cluster_state.clock.shown_s)
    inputs = world_of(
        ledger_view,
        settings,
        SlurmView(cluster_state.quota_jobs, cluster_state.nodes, cluster_state.view.services),
    )
    return WhyInput(
        now_s=ledger_view.now_s,
        jobs=cluster_state.jobs,
        nodes=cluster_state.nodes,
        partitions=inputs.rules.partitions,
        situation=situation(inputs),
        resets_s=_resets_s(ledger_view.policy, ledger_view.now_s, settings.ledger.time_zone),
        notes={service.array_job_id: service.note for service in cluster_state.view.services},
        reports={
            (report.tenant, report.name): report
            for report in cluster_state.service_reports.of(cluster_state.view.services)
        },
        refusals=cluster_state.refusals,
        recalls=ledger_view.recalls,
        grace_s=settings.lending.grace_s,
        over_budget=frozenset(job.job_id for job in inputs.jobs.waiting if job.waits.for_budget),
        kept_back=cluster_state.kept_back,
        barred=cluster_state.barred.jobs,
        gave_way=cluster_state.gave_way,
        made_way=cluster_state.requeues.why(cluster_state.jobs),
        as_set=ledger_view.tenants,
    )


def _resets_s(policy: Policy, now_s: int, zone: str) -> dict[str, int | None]:
    return {
        name: next_start_s(tenant.budget.period, now_s, zone)
        for name, tenant in policy.items()
        if tenant.budget is not None
    }
