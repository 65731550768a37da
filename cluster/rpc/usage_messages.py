"""Messages about tokens: what requests used, what engines counted, and what gateways may give out.

The launcher sends them. What a client or an engine has a say in is checked record by record, so
that one bad record is refused by itself; the others of its batch are booked.
"""

from typing import Annotated, Literal

from pydantic import Field

from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.rpc.message import Answer, Asks, DoneAnswer, Message, Request

MOST_RECORDS = 300
"""Most records of one batch: with the longest names they fit into a request's body."""
MOST_RUNS = 400
"""Most runs of one message of engine counters, or hours of runs of pools."""
MOST_SUBJECTS = 800
"""Most subjects of one request for allowances."""

Boot = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")]
"""A process of a gateway, by a name that no other process ever has."""

Outcome = Literal["whole", "cut", "failed"]
"""whole: the client got the answer's end. cut: client, gateway or replica went before it. failed:
the server answered with an error."""


class UsageRecord(Message):
    """What one request used.

    The wire takes any text and any number here: the daemon refuses a record with a name or an
    amount that can't be, and books the others.

    Attributes:
        number: from 0, in the order of admission; with the batch's ``boot`` it is the record's
            name for ever, given before any work is done.
        payer: the tenant of the request's key; without a key the service's owner.
        person, key_id: ``-`` without a key.
        service: OWNER/NAME.
        array_job_id, index, run_start_s: the replica's run; None if no replica had the request.
        start_ms, end_ms: Unix milliseconds of its admission and its end.
        prompt_tokens, cached_prompt_tokens, output_tokens: as the engine counted them; the cached
            ones are a part of the prompt's.
        first_token_ms: milliseconds from its admission to the first token; None without one.
    """

    number: int
    payer: str
    person: str = NOBODY
    key_id: str = NOBODY
    service: str
    array_job_id: int | None = None
    index: int | None = None
    run_start_s: int | None = None
    start_ms: int
    end_ms: int
    prompt_tokens: int
    cached_prompt_tokens: int = 0
    output_tokens: int
    first_token_ms: int | None = None
    outcome: Outcome = "whole"


TokenLimitName = Literal["", "tokens_per_minute", "tokens_per_month", "token_budget"]
"""Which limit of tokens it is; "" if there is none."""


class RefusedRecord(Message):
    """A record that is not booked, and never will be; ``why`` says it for people."""

    number: int
    why: str


class UsagePostAnswer(Answer):
    """What became of a batch: all of it is on disk.

    Attributes:
        booked: records that are new.
        known: records that were booked before: nothing changed for them.
        refused: records that can't be; sending them again changes nothing.
    """

    booked: int
    known: int
    refused: tuple[RefusedRecord, ...] = ()


class UsagePostRequest(Request, Asks[UsagePostAnswer], post="usage", asker="launcher"):
    """The launcher: what requests used. Only the daemon that leads answers.

    The answer comes once all is on disk. Without an answer, or after one with an error, the same
    batch is sent again: a record is booked once for its ``boot`` and ``number``, however often
    and in whatever order or company it comes.

    Attributes:
        boot: the gateway's process that numbered the records.
    """

    boot: Boot
    records: tuple[UsageRecord, ...] = Field(max_length=MOST_RECORDS)


class EngineCounters(Message):
    """What a replica's engine has counted since it started.

    What its run's records don't have of it is unattributed: shown, and nobody's.

    Attributes:
        array_job_id, index, run_start_s: the replica's run.
        service: OWNER/NAME.
        counts_cached: whether its prompts count with what a cache had. If not, what the run's
            records have of that is added.
        seen_s: when the engine said so; not when it is told, which may be after its end.
    """

    array_job_id: int = Field(ge=0, lt=2**32)
    index: int = Field(ge=0, lt=2**32)
    run_start_s: int = Field(ge=0, lt=2**40)
    service: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}/[a-z0-9][a-z0-9-]{0,62}$")
    prompt_tokens: int = Field(ge=0, lt=2**53)
    output_tokens: int = Field(ge=0, lt=2**53)
    counts_cached: bool = True
    seen_s: float = Field(ge=0, lt=2**40)


class EngineCountersRequest(Request, Asks[DoneAnswer], post="engine-counters", asker="launcher"):
    """The launcher: what engines have counted, as seen last. Of each run the largest is kept."""

    runs: tuple[EngineCounters, ...] = Field(max_length=MOST_RUNS)


class PoolUse(Message):
    """How much of an hour of a replica another service of its pool has used.

    Attributes:
        array_job_id, index, run_start_s: the replica's run.
        service: whose requests they were, as OWNER/NAME.
        hour_s: when the hour begins, in Unix seconds.
        used_ms: milliseconds of the hour. A moment in which requests of several services were in
            flight is theirs by their number.
    """

    array_job_id: int = Field(ge=0, lt=2**32)
    index: int = Field(ge=0, lt=2**32)
    run_start_s: int = Field(ge=0, lt=2**40)
    service: str = Field(pattern=r"^[A-Za-z0-9_.@+-]{1,64}/[a-z0-9][a-z0-9-]{0,62}$")
    hour_s: int = Field(ge=0, lt=2**40, multiple_of=3600)
    used_ms: int = Field(ge=0, le=3_600_000)


class PoolUsesRequest(Request, Asks[DoneAnswer], post="pool-uses", asker="launcher"):
    """The launcher: how much of their hours replicas of pools have worked for other services.

    Without an answer the same is sent again: of what one launcher says of an hour the largest
    counts.

    Attributes:
        seen_by: the launcher's process, by a name that no other process ever has.
        uses: all of each hour that this process has seen.
    """

    seen_by: Boot
    uses: tuple[PoolUse, ...] = Field(max_length=MOST_RUNS)


class AllowanceSubject(Message):
    """Whose limit of tokens it is: a tenant's, a person's in a tenant, or a key's.

    Attributes:
        tenant: always named.
        person: "" if the limit is not a person's.
        key_id: "" if the limit is not a key's.
    """

    tenant: str = Field(max_length=64)
    person: str = Field("", max_length=128)
    key_id: str = Field("", max_length=32)


class WantedAllowance(AllowanceSubject):
    """What a gateway wants to hold for a subject.

    Attributes:
        tokens: what its requests in flight hold, and what is not posted yet, and what it would
            give out next.
    """

    tokens: int = Field(ge=0, lt=2**53)


class TokenAllowance(AllowanceSubject):
    """What a gateway may hold for a subject: set aside in the ledger until it expires.

    Attributes:
        tokens: at most so many may be in flight, or ended and not posted, at any moment until the
            allowance expires. In place of what the gateway was allowed before.
        is_exact: whether a request without an allowance is refused; if not, it is let through.
        limit: the limit, or budget, that leaves least.
        payer: whose budget it is, if it is one.
        used_up_until: the date until which nobody has any of it, "" if no date is known; None
            while something is left.
        retry_s: seconds until more may be left; 0 while there is some.
    """

    tokens: int
    is_exact: bool
    limit: TokenLimitName = ""
    payer: str = Field("", max_length=64)
    used_up_until: str | None = Field(None, pattern=r"^(\d{4}-\d\d-\d\d)?$")
    retry_s: int = 0


class AllowancesAnswer(Answer):
    """Allowances of every subject that has a limit of tokens, of others none.

    Attributes:
        expires_s: seconds from the question on: an allowance that is older is none.
    """

    allowances: tuple[TokenAllowance, ...]
    expires_s: float


class AllowancesRequest(Request, Asks[AllowancesAnswer], post="allowances", asker="launcher"):
    """The launcher: what a gateway wants to hold from now on. Only the daemon that leads answers.

    Ask it after the batch of ``boot`` was answered: what is posted is no longer held. What is not
    asked for again is given back by its expiry; a subject that is not named gets a share of
    what is left, so that its first request need not wait.
    """

    boot: Boot
    wanted: tuple[WantedAllowance, ...] = Field((), max_length=MOST_SUBJECTS)
