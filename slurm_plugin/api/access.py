"""The user who asks the daemon, and what this user may read."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.rpc.message import Request

NO_UID = -1
"""In the place of a guest's uid: no process has it."""


@dataclass(frozen=True)
class Caller:
    """Who asks: by the kernel's word or munge's, or a visitor of the page by the web server's.

    Attributes:
        uid: ``NO_UID`` of a guest.
        by_page: whether the web server asks for a visitor.
        guest: the name of a guest; "" of a user.
    """

    uid: int
    by_page: bool = False
    guest: str = ""


@dataclass(frozen=True)
class Principal:
    """A user who asks the daemon.

    Attributes:
        user: the user's name as Slurm writes it.
        tenants: tenants that the user may read, namely those of the user's accounts; None is all.
        by_page: whether the web server asks for the user.
        managed: tenants whose keys and limits the user manages beside operators; none by the page.
    """

    uid: int
    user: str
    tenants: frozenset[str] | None = field(hash=False)
    by_page: bool = False
    managed: frozenset[str] = field(default=frozenset(), hash=False)

    @property
    def author(self) -> str:
        """The name under which the ledger keeps what the user changes."""
        return f"{self.user} (page)" if self.by_page else self.user

    @property
    def who(self) -> int | str:
        """Whom to count: guests have no uid."""
        return self.user if self.uid == NO_UID else self.uid

    def may_read(self, tenant: str) -> bool:
        """Whether the user may read everything of that tenant."""
        return self.tenants is None or tenant in self.tenants

    def may_see(self, job: JobView) -> bool:
        """Whether the user may see that job: their own, or of a tenant they may read."""
        return job.uid == self.uid or self.may_read(job.account)


ReaderHandler = Callable[[Any, Principal], Awaitable[BaseModel]]
ReaderHandlers = Mapping[type[Request], ReaderHandler]
"""What answers each request that depends on the user's tenants."""
