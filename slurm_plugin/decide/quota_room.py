"""What is left of guarantees and of what may be borrowed, with what runs already."""

from collections import Counter
from collections.abc import Iterable, Mapping

from cluster.jobs import ALLOTTED, JobView
from cluster.units import Millislices
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import is_managed
from slurm_plugin.decide.policy import Policy
from slurm_plugin.decide.qos_names import qos_name
from slurm_plugin.decide.tenants import ancestors, effective_nominal, own_part


class QuotaRoom:
    """Of every tenant, and of every subtree."""

    def __init__(
        self,
        policy: Policy,
        jobs: Iterable[JobView],
        partitions: frozenset[str],
        costs: Mapping[str, Millislices],
    ) -> None:
        nominal = effective_nominal(policy)
        self._above = {name: (name, *ancestors(policy, name)) for name in policy}
        self._borrows = {
            name for name in policy if policy[name].quota.borrowing_limit_millislices > 0
        }
        self._own = Counter(own_part(policy))
        self._subtree = {
            name: nominal[name] + tenant.quota.borrowing_limit_millislices
            for name, tenant in policy.items()
        }
        for job in jobs:
            if job.state in ALLOTTED and job.account in policy and is_managed(job, partitions):
                self.take(job.account, job.qos, run_cost(job.gpus, costs))

    def take(self, tenant: str, qos: str, cost: int) -> None:
        """Count what runs, or shall, in that QOS."""
        if qos == qos_name(tenant):
            self._own[tenant] -= cost
        for name in self._above[tenant]:
            self._subtree[name] -= cost

    def most(self, tenant: str, qos: str) -> int:
        """Millislices that may still start in that QOS: of the own part, or of all that the tenant
        and those above it may hold.
        """
        if qos == qos_name(tenant):
            return max(0, self._own[tenant])
        return max(0, min(self._subtree[name] for name in self._above[tenant]))

    def has(self, tenant: str, qos: str, cost: int) -> bool:
        """Whether there is room for that much in that QOS; in the borrowed one of who may borrow
        nothing there is none, whatever its own part has left.
        """
        may = qos == qos_name(tenant) or tenant in self._borrows
        return may and cost <= self.most(tenant, qos)
