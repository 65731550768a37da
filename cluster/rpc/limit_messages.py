"""Messages about limits on requests: of a tenant, of a person in it, of one key."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from slicewise.cluster.language.persons import PERSON_PATTERN
from slicewise.cluster.rpc.message import (
    NO_CONTROLS,
    Answer,
    Asks,
    DoneAnswer,
    Message,
    Request,
    TenantText,
)
from slicewise.cluster.rpc.usage_messages import AllowanceSubject

_MOST_REQUESTS = 1_000_000
_MOST_MODELS = 100

ModelText = Annotated[str, Field(pattern=r"^[a-z0-9_.-]{1,64}/[a-z0-9][a-z0-9-]{0,62}$")]
"""A service, as OWNER/NAME."""
Requests = Annotated[int, Field(ge=0, le=_MOST_REQUESTS)]
Tokens = Annotated[int, Field(ge=0, lt=2**53)]


class RequestLimits(Message):
    """Limits on requests; None: unlimited, 0: none is let in.

    Attributes:
        concurrent: requests in flight and waiting, taken together.
        requests_per_minute: of those that were let in, in any sixty seconds.
        tokens_per_minute, tokens_per_month: prompt and output tokens together.
        models: the only services that may be asked, as OWNER/NAME.
        is_exact: whether a request is refused while no tokens could be set aside for it, as when
            the ledger can't be asked; if not, it is let in.
    """

    concurrent: Requests | None = None
    requests_per_minute: Requests | None = None
    tokens_per_minute: Tokens | None = None
    tokens_per_month: Tokens | None = None
    models: Annotated[tuple[ModelText, ...], Field(max_length=_MOST_MODELS)] | None = None
    is_exact: bool = False

    @property
    def limits_tokens(self) -> bool:
        """Whether there is a limit of tokens."""
        return self.tokens_per_minute is not None or self.tokens_per_month is not None


class SubjectLimits(AllowanceSubject):
    """The limits that hold of a tenant, of a person in it, or of one of its keys."""

    limits: RequestLimits


LimitRank = Literal["person", "manager", "operator"]
"""Who has set limits, the lowest first. What each has set holds together; a higher one's change is
in the place of what lower ones have set of the same."""


LimitName = Literal[
    "concurrent",
    "requests_per_minute",
    "tokens_per_minute",
    "tokens_per_month",
    "models",
]


class LimitChangeRequest(
    Request, Asks[DoneAnswer], post="limit-change", on_page=True, for_guests=True
):
    """Changes limits of a tenant, of a person in it, or of a key; what is not named stays.

    Operators limit everyone, managers the tenants that they manage with persons and keys in them,
    persons their keys, on the page these alone. Nobody loosens what a higher one has set.

    Attributes:
        tenant: left out for a key.
        person: "" for the whole tenant.
        key_id: "" for a tenant or a person.
        limits: the limits that are set; those that are None stay.
        is_exact: None: stays.
        lifted: limits that are no more.
    """

    tenant: TenantText | None = None
    person: str = Field("", pattern=rf"^$|{PERSON_PATTERN}")
    key_id: str = Field("", max_length=32, pattern=NO_CONTROLS)
    limits: RequestLimits = RequestLimits()
    is_exact: bool | None = None
    lifted: frozenset[LimitName] = frozenset()

    @property
    def named(self) -> frozenset[LimitName]:
        """The limits that are set or lifted."""
        given = self.limits.model_dump(exclude={"is_exact"}, exclude_none=True)
        return self.lifted | frozenset(name for name in get_args(LimitName) if name in given)

    @property
    def sets(self) -> bool:
        """Whether anything is limited, beside what is lifted."""
        return bool(self.is_exact) or self.limits != RequestLimits()

    def changed(self, before: RequestLimits) -> RequestLimits:
        """The limits after the change."""
        given = self.limits.model_dump(exclude={"is_exact"}, exclude_none=True)
        lifted = dict.fromkeys(self.lifted)
        exact = {} if self.is_exact is None else {"is_exact": self.is_exact}
        return RequestLimits(**(before.model_dump() | lifted | given | exact))


class LimitsAnswer(Answer):
    """Limits, by tenant, person and key."""

    limits: tuple[SubjectLimits, ...]


class LimitsRequest(Request, Asks[LimitsAnswer], get="limits", for_guests=True):
    """Asks for limits of the user's tenants, of the user in them and of the user's keys; of tenants
    that the user manages also of others; of all for root and SlurmUser.
    """
