"""Admission on the model: each submission is decided as slurmctld's would be, on what is known."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slicewise.cluster.language.gres import AUTO
from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.settings.file import Settings
from slicewise.simulation.rules.site.past_requests import ANY_TYPE, chosen_gpus, submission
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest
from slicewise.slurm_plugin.rules.admission.rules import decide
from slicewise.slurm_plugin.rules.admission.snapshot import Snapshot
from slicewise.slurm_plugin.rules.quota.demand import guaranteed_instances, guaranteed_use
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.services.quota_in_force import QuotaInForce
from slicewise.slurm_plugin.rules.services.state import Observation, used_by_tenant


@dataclass(frozen=True)
class Refused:
    """A submission that is refused, with the error's code."""

    code: str


class SiteAdmission:
    """Decides submissions on the quotas in force and what the account's jobs hold now.

    Which GPUs are free is as of the last round; only jobs that leave their type open are asked it.
    """

    def __init__(self, settings: Settings) -> None:
        self._partitions = frozenset(settings.cluster.partitions)
        self._costs = settings.costs
        self._quotas = QuotaInForce(_choosing(settings))
        self._policy: Policy | None = None
        self._seen = Observation(0.0, (), (), (), {})
        self._shares: Mapping[str, float] = {}
        self._snapshot: Snapshot | None = None
        self._submissions = 0

    def follow(
        self, policy: Policy, highest: Policy | None, shares: Mapping[str, float], seen: Observation
    ) -> None:
        """Take the quotas in force and a look at Slurm, after a round."""
        if policy is not self._policy:
            self._quotas.set_policy(policy, {}, highest)
            self._policy, self._snapshot = policy, None
        self._seen, self._shares = seen, shares

    def decided(self, request: ModelRequest, own_jobs: Iterable[JobView]) -> ModelRequest | Refused:
        """What is submitted; ``own_jobs`` are those of the tenant that is charged, as of now.

        A job that passes, such as one without GPUs, keeps what it asked for.
        """
        if self._snapshot is None or ANY_TYPE in request.gpus:
            self._snapshot = self._quotas.snapshot(self._seen, (), {}, self._shares)
        self._submissions += 1
        own_jobs = tuple(own_jobs)
        snapshot = replace(
            self._snapshot,
            used=used_by_tenant(own_jobs, self._partitions, self._costs),
            guaranteed_used=guaranteed_use(own_jobs, self._partitions, self._costs),
            guaranteed_instances=guaranteed_instances(own_jobs, self._partitions),
            shares=self._shares,
        )
        token = f"{self._submissions:x}"
        answer = decide(submission(request, token), snapshot, token).answer
        if answer.action == "refuse":
            return Refused(answer.code)
        if answer.action == "pass":
            return request
        return replace(
            request,
            qos=answer.qos or request.qos,
            gpus=request.gpus if answer.gres is None else chosen_gpus(answer.gres),
            site_factor=answer.site_factor or 0,
            admin_comment=answer.tag or "",
        )


def _choosing(settings: Settings) -> Settings:
    """The settings of a site that refuses GPUs without a type, as if its users let it choose.

    Users of the past named none, and would name one once they were refused.
    """
    if settings.admission.untyped != "refuse":
        return settings
    admission = settings.admission.model_copy(update={"untyped": AUTO})
    return settings.model_copy(update={"admission": admission})
