"""What users ask the daemon about tokens: who used how many of which service, and when."""

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slicewise.cluster.language.persons import PERSON_PATTERN
from slicewise.cluster.rpc.message import (
    NO_CONTROLS,
    Asks,
    Cursor,
    Message,
    Request,
    TenantText,
    WholeAnswer,
)

UsageGroup = Literal["day", "month", "service", "tenant", "person", "key"]
"""What a line is about; a person or key is one of a tenant."""
LINE_FIELDS: Mapping[UsageGroup, tuple[str, ...]] = {
    "day": ("day",),
    "month": ("month",),
    "service": ("service",),
    "tenant": ("tenant",),
    "person": ("tenant", "person"),
    "key": ("tenant", "person", "key_id"),
}
"""The fields that a line is about."""
Seconds = Annotated[int, Field(ge=0, le=2**40)]
_Word = Annotated[str, Field(max_length=128, pattern=NO_CONTROLS)]


class TokenLine(Message):
    """A sum of requests, by the day in which they ended.

    Attributes:
        day, month: as 2026-11-29 and 2026-11, in the ledger's time zone. Of these, service,
            tenant, person and key_id those are "" that the line is not about.
        tenant: who paid: the tenant of the requests' keys.
        person, key_id: ``-`` for requests without a key, and for those of which the reader may
            see the tenant only.
        cached_prompt_tokens: a part of the prompt tokens.
        first_token_ms: mean milliseconds until the first token; None without any.
        millislice_s: what of the replicas' time was charged for it, of hours that are divided; of
            person and key ``-`` with idle time.
        millionths: what that and the requests cost, in millionths of the tariff's currency: of days
            with a tariff, and of tenants that the reader belongs to. None if there is nothing of
            that, or too much: more than 20,000 days, tenants and services.
        priced_tokens: tokens of the requests of which that is the cost.
        list_millionths: what the tokens would cost by list prices; None without one.
        listed_tokens: tokens that have a list price.
    """

    day: str = ""
    month: str = ""
    service: str = ""
    tenant: str = ""
    person: str = ""
    key_id: str = ""
    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    first_token_ms: float | None = None
    millislice_s: int = 0
    millionths: int | None = None
    priced_tokens: int = 0
    list_millionths: int | None = None
    listed_tokens: int = 0


class Unattributed(Message):
    """What the engines of a service counted and no request has: as of requests that were in flight
    when the gateway was killed.
    """

    service: str
    prompt_tokens: int
    output_tokens: int


class TokenUsageAnswer(WholeAnswer):
    """One page.

    Attributes:
        more: where the next page begins; None after the last page.
        unattributed: on the first page, of services that the reader owns; none where the request
            asks for a tenant, person or key.
        unattributed_left_out: how many more services have some: an answer tells of a thousand.
    """

    lines: tuple[TokenLine, ...]
    unattributed: tuple[Unattributed, ...] = ()
    unattributed_left_out: int = 0
    more: tuple[str, ...] | None = None


class TokenUsageRequest(Request, Asks[TokenUsageAnswer], get="token-usage", for_guests=True):
    """Asks for sums of requests and tokens of days from that of ``since_s`` up to ``until_s``.

    A user sees the user's own requests, and those to services of the user's tenants, of these
    without the names of others. Operators see all. ``after`` is ``more`` of an earlier answer.
    """

    by: UsageGroup = "service"
    tenant: TenantText | None = None
    person: _Word | None = None
    key_id: _Word | None = None
    service: _Word | None = None
    since_s: Seconds = 0
    until_s: Seconds | None = None
    after: Cursor[Annotated[tuple[_Word, ...], Field(max_length=3)]] | None = None

    @model_validator(mode="after")
    def _is_after_such_a_line(self) -> Self:
        if self.after is not None and len(self.after) != len(LINE_FIELDS[self.by]):
            raise ValueError("after: no page of such lines has ended there")
        return self


class ForgottenAnswer(WholeAnswer):
    """In how many records of requests a person was named, in some days.

    Attributes:
        more: the last of these days; None if there are no later ones.
    """

    records: int
    more: date | None = None


class ForgetPersonRequest(Request, Asks[ForgottenAnswer], post="person-forget", asker="operators"):
    """Puts ``-`` in the place of a person's name and keys wherever usage is kept, in one tenant or
    in all. Sums stay what they were. ``after`` is ``more`` of an earlier answer.
    """

    person: Annotated[str, Field(pattern=PERSON_PATTERN)]
    tenant: TenantText | None = None
    after: date | None = None
