"""The user who asks the daemon, and what this user may read."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.rpc.message import Request


@dataclass(frozen=True)
class Principal:
    """A user who asks the daemon.

    Attributes:
        user: the user's name as Slurm writes it.
        tenants: tenants that the user may read, namely those of the user's accounts; None is all.
    """

    uid: int
    user: str
    tenants: frozenset[str] | None = field(hash=False)

    def may_read(self, tenant: str) -> bool:
        """Whether the user may read everything of that tenant."""
        return self.tenants is None or tenant in self.tenants

    def may_see(self, job: JobView) -> bool:
        """Whether the user may see that job: their own, or of a tenant they may read."""
        return job.uid == self.uid or self.may_read(job.account)


ReaderHandler = Callable[[Any, Principal], Awaitable[BaseModel]]
ReaderHandlers = Mapping[type[Request], ReaderHandler]
"""What answers each request that depends on the user's tenants."""
