"""Messages about API keys: which keys tenants have, and to which tenant's services a key admits."""

from typing import Self

from pydantic import Field

from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.rpc.limit_messages import SubjectLimits
from slicewise.cluster.rpc.message import (
    NO_CONTROLS,
    Answer,
    Asks,
    DoneAnswer,
    Message,
    Request,
    TenantText,
)

_LATEST_S = 253_402_300_799
"""The end of the year 9999: the last second that a calendar shows."""


class KeyView(Message):
    """One API key of a tenant, without its secret.

    Attributes:
        key_id: public id, by which the key is revoked.
        service: the only service of the tenant that the key opens; "" if it opens all.
        created_s, revoked_s, expires_s: Unix seconds; None if the key is not revoked, or never
            expires.
        used_s: Unix seconds at which the key last let a request in, to within a minute or two; None
            if it was never seen.
        created_by: who made it.
        person: whose it is; ``-`` of keys that a marketplace's agent made.
        is_blocked: whether it lets nothing in for now.
        has_left: whether its person is in Slurm no user of the tenant's account any more, and no
            operator: it lets nothing in. False until Slurm's accounts were seen.
    """

    key_id: str
    tenant: str
    name: str
    created_by: str
    created_s: float
    revoked_s: float | None = None
    service: str = ""
    expires_s: float | None = None
    used_s: float | None = None
    person: str = ""
    is_blocked: bool = False
    has_left: bool = False

    def is_valid(self, now_s: float) -> bool:
        """Whether the key lets requests in, unless it is blocked or its person has left."""
        return self.revoked_s is None and (self.expires_s is None or now_s < self.expires_s)


class KeyMadeAnswer(DoneAnswer):
    """The key is there, and belongs to that person."""

    person: str


class KeyCreateRequest(
    Request, Asks[KeyMadeAnswer], post="key-create", on_page=True, for_guests=True
):
    """Adds a key to a tenant; for members of the tenant, root and SlurmUser.

    ``sha256`` is all that is kept of the key. Sent twice, the key is added once.

    Attributes:
        service: the only service that the key opens, of the tenant NAME, of those that others share
            with it OWNER/NAME; "": all. It need not exist yet.
        expires_s: Unix seconds from which the key lets no request in.
        person: a member of the tenant whose the key is; only operators name others than
            themselves. "": who asks.
        may_be_first: whether the tenant's services may begin to want keys by it.
    """

    key_id: str = Field(pattern=r"^[0-9a-f]{12}$")
    tenant: TenantText
    name: str = Field(max_length=63, pattern=r"^[A-Za-z0-9_.-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    service: str = Field(
        "", max_length=96, pattern=r"^(([a-z0-9_][a-z0-9_.-]*/)?[a-z0-9][a-z0-9-]*)?$"
    )
    expires_s: int | None = Field(None, gt=0, le=_LATEST_S)
    person: str = Field("", max_length=128, pattern=NO_CONTROLS)
    may_be_first: bool = True


class KeyRevokeRequest(Request, Asks[DoneAnswer], post="key-revoke", on_page=True, for_guests=True):
    """Revokes a key: no request with it is admitted from a few seconds after the answer.

    For the key's person, managers of its tenant, root and SlurmUser.
    """

    key_id: str = Field(max_length=32, pattern=NO_CONTROLS)


class KeyOpenRequest(Request, Asks[DoneAnswer], post="key-open"):
    """Opens a tenant: its services need no key any more, until one is made again.

    For users who may make the tenant's keys, and only if every key of the tenant is revoked.
    """

    tenant: TenantText


class KeyRequireRequest(Request, Asks[DoneAnswer], post="key-require"):
    """Lets a tenant's services want keys from a moment on, and none before: clients get keys first.

    For users who may make the tenant's keys. Only operators make it later once keys are wanted or
    a moment was set.

    Attributes:
        from_s: Unix seconds.
    """

    tenant: TenantText
    from_s: int = Field(gt=0, le=_LATEST_S)


class KeysAnswer(Answer):
    """Keys, oldest first.

    Attributes:
        tenants: those of which the user may make keys.
        unprotected: the user's tenants whose services need no key now, unless the gateway requires
            one of everyone.
        wanted_from_s: those of them that will, with the Unix seconds from which.
        valid: how many keys let requests in for each of the user's tenants, also those of others.
    """

    keys: tuple[KeyView, ...]
    tenants: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    wanted_from_s: dict[str, float] = Field(default_factory=dict)
    valid: dict[str, int] = Field(default_factory=dict)


class KeyListRequest(Request, Asks[KeysAnswer], get="keys", for_guests=True):
    """Asks for the user's own keys and those of tenants that the user manages; for all keys if root
    or SlurmUser asks.
    """


class KeyGrant(Message):
    """What one key opens, and whose it is.

    Attributes:
        opens: TENANT, or for a key of one service TENANT/NAME, or TENANT/OWNER/NAME of another's.
        person: whose key it is; ``NOBODY`` for a name that can be no person's, or a marketplace's.
        expires_s: Unix seconds from which it lets no request in; None: never.
    """

    opens: str
    key_id: str
    person: str = NOBODY
    expires_s: float | None = None


class GrantsAnswer(Answer):
    """What keys open; left out are revoked and expired ones, and those of who has left.

    Attributes:
        keys: by the key's SHA-256 in hexadecimal.
        wanted_from_s: tenants whose services want keys, with the Unix seconds from which they do.
        protected: those of them that do by now, in order.
        limits: of each tenant, person and key that has any.
        has_token_budgets: whether any tenant has a budget of tokens.
        models: what names of models mean for each tenant: entries of the gateway's map, as in
            ``slicewise.cluster.language.model_names``.
    """

    keys: dict[str, KeyGrant] = Field(default_factory=dict)
    wanted_from_s: dict[str, float] = Field(default_factory=dict)
    protected: tuple[str, ...] = ()
    limits: tuple[SubjectLimits, ...] = ()
    has_token_budgets: bool = False
    models: dict[str, str] = Field(default_factory=dict)

    @property
    def limits_tokens(self) -> bool:
        """Whether anybody has a limit or a budget of tokens."""
        return self.has_token_budgets or any(
            subject.limits.limits_tokens for subject in self.limits
        )

    def at(self, now_s: float) -> Self:
        """Return the answer as it is at that moment: keys expire, and are wanted from then on."""
        keys = {
            sha256: key
            for sha256, key in self.keys.items()
            if key.expires_s is None or now_s < key.expires_s
        }
        protected = tuple(
            sorted(tenant for tenant, from_s in self.wanted_from_s.items() if from_s <= now_s)
        )
        return self.model_copy(update={"keys": keys, "protected": protected})


class GrantsRequest(Request, Asks[GrantsAnswer], get="key-grants", asker="launcher"):
    """The launcher asks which keys admit to which services now."""


MOST_USES = 500
"""Most keys of one report; a body has a limit."""


class KeyUsesRequest(Request, Asks[DoneAnswer], post="key-uses", asker="launcher"):
    """The launcher: when keys last let a request in.

    ``used_s`` has Unix seconds by the key's SHA-256; unknown keys are ignored, and an earlier time
    than the known one is.
    """

    used_s: dict[str, float] = Field(max_length=MOST_USES)
