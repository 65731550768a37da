"""``slicewise why --priority``: gathers the parts of a job's priority, for readers who may see
it.
"""

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.interface import SlurmReader
from slicewise.cluster.language.slurm.priorities import factor_weights, weight_points
from slicewise.cluster.rpc.read_messages import PriorityAnswer
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.priority_changes import PriorityInput, ranked
from slicewise.slurm_plugin.rules.explain.priority import InSlurm, explained, not_waiting
from slicewise.slurm_plugin.rules.explain.why_job import jobs_named
from slicewise.slurm_plugin.state.cluster_state import ClusterState


async def explain_priority(
    about: str,
    principal: Principal,
    slurm: SlurmReader,
    settings: Settings,
    cluster_state: ClusterState,
) -> PriorityAnswer:
    """Explain the priority of a waiting job.

    Raises InvalidInputError: SW-FORBIDDEN equally for a job that does not exist and for one that
    the reader may not see, SW-NAME-UNKNOWN to a reader who may see all, SW-NOTHING if the job
    does not wait.
    """
    jobs = jobs_named(about, cluster_state.jobs)
    if not jobs and principal.tenants is None:
        raise InvalidInputError(
            Code.NAME_UNKNOWN, f"There is no job {about!r}.", "Waiting jobs: squeue"
        )
    if not jobs or not all(map(principal.may_see, jobs)):
        raise InvalidInputError(
            Code.FORBIDDEN, f"There is no job {about!r} that you may see.", "Waiting jobs: squeue"
        )
    formula, now_s = formula_of(settings.priority), cluster_state.slurm_s
    state, costs = cluster_state, settings.costs
    standing = PriorityInput(state.shares, state.urgencies, costs, formula, state.passed_over)
    waiting = ranked(jobs, now_s, standing)
    if not waiting:
        raise not_waiting(about, jobs)
    first = max(waiting, key=lambda each: (each.job.priority, -each.job.job_id))
    in_slurm = await _in_slurm(first.job.job_id, slurm)
    return explained(first, cluster_state.jobs, formula, now_s, in_slurm)


async def _in_slurm(job_id: int, slurm: SlurmReader) -> InSlurm:
    known = factor_weights(await slurm.config())
    at_most = sum(weight_points(weight) for name, weight in known.items() if name != "age")
    for row in await slurm.priorities((job_id,)):
        return InSlurm(row.site, row.priority, row.parts, known, at_most)
    return InSlurm(weights=known, others_at_most=at_most)
