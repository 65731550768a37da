"""Messages of who only reads: what may start, what was used, why a job waits, its priority."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from cluster.wire_message import Message

TenantText = Annotated[str, Field(max_length=64)]
"""A tenant as somebody has typed it."""
Number = Annotated[int, Field(ge=-(2**40), le=2**40)]
"""Job ids and Unix seconds."""
Record = dict[str, JsonValue]
"""Fields of one of the plug-in's values, which only its own programs read."""


class ExplainRequest(Message):
    """What may a tenant still start, and why not more? Its users, root and SlurmUser may ask."""

    v: Literal[1] = 1
    op: Literal["explain"] = "explain"
    tenant: TenantText


class ExplainAnswer(Message):
    """``explanation``: the fields of ``slicewise explain --json``."""

    v: Literal[1] = 1
    explanation: Record


class StatementPlace(Message):
    """Where a page of a statement ends: its last run, and up to when running ones are counted."""

    tenant: TenantText
    start_s: Number
    job_id: Number
    now_s: Number


class StatementRequest(Message):
    """What was used, run by run; of a tenant, or of all that the asker may read.

    ``after``: the next page of an answer before.
    """

    v: Literal[1] = 1
    op: Literal["statement"] = "statement"
    tenant: TenantText | None = None
    since_s: Number = 0
    after: StatementPlace | None = None


class StatementAnswer(Message):
    """One page. ``more``: ask again with it; None after the last page."""

    v: Literal[1] = 1
    now_s: int
    rows: tuple[Record, ...]
    more: StatementPlace | None = None


class BalanceRequest(Message):
    """Accounts as they stand; of a tenant, or of all that the asker may read."""

    v: Literal[1] = 1
    op: Literal["balance"] = "balance"
    tenant: TenantText | None = None


class BalanceAnswer(Message):
    """A line per tenant that ever had a run or a budget."""

    v: Literal[1] = 1
    balances: tuple[Record, ...]


class WhyRequest(Message):
    """Why does a job wait, or how does a tenant stand? Who may see the job or tenant may ask.

    ``about``: ``814``, ``814_3``, or a tenant's name.
    """

    v: Literal[1] = 1
    op: Literal["why"] = "why"
    about: str = Field(max_length=64)


class WhyRow(Message):
    """A line of a table: somebody's jobs, what they hold, until when.

    ``amount_millislices`` is None where it is not a matter of slices; ``ends_s`` are Unix seconds.
    """

    what: str
    gpus: str = ""
    amount_millislices: int | None = None
    ends_s: int | None = None
    note: str = ""


class WhyTable(Message):
    """Rows under a heading."""

    heading: str
    rows: tuple[WhyRow, ...]


class WhyAnswer(Message):
    """One screen about a job or a tenant.

    Attributes:
        about: the job or tenant.
        state: of a job; of an array with several records and of a tenant "".
        reason: Slurm's own word, "" if it has none.
        headline, sentences: in words, with numbers.
        start_s: when it starts, in Unix seconds, by ``start``; None without an estimate.
        start: what the estimate rests on, or why there is none; "" for what does not wait.
        hints: what can be done.
    """

    v: Literal[1] = 1
    about: str
    state: str = ""
    reason: str = ""
    headline: str
    sentences: tuple[str, ...] = ()
    tables: tuple[WhyTable, ...] = ()
    start_s: int | None = None
    start: str = ""
    hints: tuple[str, ...] = ()


class PriorityRequest(Message):
    """What is a waiting job's priority made of? Who may see the job may ask.

    ``job``: ``814``, or ``814_3``; of an array the record that is ahead of its others.
    """

    v: Literal[1] = 1
    op: Literal["priority"] = "priority"
    job: str = Field(max_length=64)


class PriorityTerm(Message):
    """A term of site_factor.

    Attributes:
        value: in 0..1.
        weight: against the other terms; None of the wait, which closes the gap that they leave.
        points: its part of site_factor; those of all terms add up to it.
    """

    name: Literal["class", "share", "urgency", "wait"]
    value: float
    weight: int | None = None
    points: int


class PriorityFactor(Message):
    """A factor of Slurm's own formula: its weight in slurm.conf, and what it adds now."""

    name: str
    weight: str
    points: int


class PriorityAnswer(Message):
    """One waiting job.

    Attributes:
        tasks: of an array's untouched rest how many it is, else 1.
        job_class: low, normal or high.
        site_factor: by the formula, now.
        site_factor_in_slurm, factors, priority: as Slurm has them; None and () if it shows none.
        max, quantum, wait_full_s: of the site's settings.
        full_s: Unix seconds from which it has the maximum.
        ahead: jobs and tasks that go before it, ``ahead_own`` of its own tenant.
        others_at_most: what Slurm's own factors, but for age, can add to another job.
    """

    v: Literal[1] = 1
    job: str
    tenant: str
    tasks: int
    job_class: str
    wait_s: int
    terms: tuple[PriorityTerm, ...]
    site_factor: int
    site_factor_in_slurm: int | None = None
    factors: tuple[PriorityFactor, ...]
    priority: int | None = None
    max: int
    quantum: int
    wait_full_s: int
    full_s: int
    ahead: int
    ahead_own: int
    others_at_most: int


ReadRequest = ExplainRequest | StatementRequest | BalanceRequest | WhyRequest | PriorityRequest
"""What ``slurm_plugin.reads`` answers."""
