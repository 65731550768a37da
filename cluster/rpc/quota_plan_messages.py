"""Messages about what a change of quotas would do."""

from pydantic import Field

from slicewise.cluster.rpc.message import Answer, Asks, Message, Request

LONGEST_FILE = 32 * 1024
"""Most characters of a file of quotas: with its escapes in JSON it then fits into a request."""


class PlannedSide(Message):
    """What a tenant and the tenants below it have before or after a change, in millislices.

    Attributes:
        nominal_millislices: of them together; ``guaranteed_millislices``: of the tenant's own jobs.
        lent_millislices, borrowed_millislices: loans that leave and that enter.
        limit_millislices: the most they may have in use.
    """

    nominal_millislices: int
    guaranteed_millislices: int
    lent_millislices: int
    borrowed_millislices: int
    limit_millislices: int


class PlannedTenant(Message):
    """A tenant before and after a change; None where there is no such tenant.

    ``depth`` is the number of tenants above it.
    """

    name: str
    depth: int
    before: PlannedSide | None = None
    after: PlannedSide | None = None


class PlannedLoan(Message):
    """A loan that would change; 0 means no loan."""

    lender: str
    borrower: str
    before_millislices: int
    after_millislices: int


class PlannedHarm(Message):
    """Something that the change would make worse.

    Attributes:
        kind: of harm, such as ``replica``: a borrowed replica that would be drained.
        tenant: "" for all together.
        about: the job, replica or service; "" for the tenant itself.
        amount_millislices: 0 where it is not a matter of slices.
        in_s: seconds until it comes; 0 is immediately.
    """

    kind: str
    tenant: str = ""
    about: str = ""
    amount_millislices: int = 0
    words: str
    in_s: int = 0


class QuotaPlanAnswer(Answer):
    """What the file would do now; nothing was written.

    Attributes:
        changes: what it would set, a line for each tenant that it names.
        tenants: those that it names or that change otherwise, and the tenants above them, in the
            order of the tree; ``unchanged`` is the number of the others.
        left_out: number of tenants, loans and harms beyond the most that an answer has.
        hidden: tenants that the file names and for which the calendar has other quotas now.
        ended_windows: ids of calendar windows that end since their tenants are removed.
        warnings: tenants that are elsewhere in Slurm, with the command that moves them.
        needs_overcommit: whether the quotas at the top would exceed the cluster by more than now;
            ``slicewise tenant-quota apply`` then needs ``--overcommit``.
    """

    changes: tuple[str, ...]
    tenants: tuple[PlannedTenant, ...]
    unchanged: int
    loans: tuple[PlannedLoan, ...]
    harms: tuple[PlannedHarm, ...]
    left_out: int = 0
    hidden: tuple[str, ...] = ()
    ended_windows: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    needs_overcommit: bool


class QuotaPlanRequest(
    Request, Asks[QuotaPlanAnswer], post="quota-plan", changes=False, asker="operators"
):
    """Root or SlurmUser: what would the file of quotas with this text do? It changes nothing.

    The text is that of a file for ``slicewise tenant-quota apply``.
    """

    text: str = Field(max_length=LONGEST_FILE)
