"""Who asks the daemon, and what he may read."""

from dataclasses import dataclass, field

from cluster.jobs import JobView


@dataclass(frozen=True)
class Reader:
    """Who asks.

    Attributes:
        user: his name as Slurm writes it.
        tenants: which he may read: the accounts that he belongs to; None is every one.
    """

    uid: int
    user: str
    tenants: frozenset[str] | None = field(hash=False)

    def may_read(self, tenant: str) -> bool:
        """Whether everything of that tenant is his to read."""
        return self.tenants is None or tenant in self.tenants

    def may_see(self, job: JobView) -> bool:
        """Whether he may know of that job: his own, or one of his tenants'."""
        return job.uid == self.uid or self.may_read(job.account)
