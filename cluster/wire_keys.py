"""Messages about API keys: whose there are, and which let whom in at the gateway."""

from typing import Literal

from pydantic import Field

from cluster.wire_message import Message


class KeyView(Message):
    """One API key of a tenant, without its secret.

    Attributes:
        key_id: by which it is revoked; public.
        created_s, revoked_s: Unix seconds.
    """

    key_id: str
    tenant: str
    name: str
    created_by: str
    created_s: float
    revoked_s: float | None = None


class KeyCreateRequest(Message):
    """A member of the tenant, root or SlurmUser: one more key; ``sha256`` is all that is kept."""

    v: Literal[1] = 1
    op: Literal["key_create"] = "key_create"
    key_id: str = Field(pattern=r"^[0-9a-f]{12}$")
    tenant: str = Field(max_length=64)
    name: str = Field(max_length=63, pattern=r"^[A-Za-z0-9_.-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class KeyListRequest(Message):
    """Keys of the tenants that the asking user belongs to; all for root and SlurmUser."""

    v: Literal[1] = 1
    op: Literal["key_list"] = "key_list"


class KeyRevokeRequest(Message):
    """No request with that key is let in any more, from a few seconds after the answer."""

    v: Literal[1] = 1
    op: Literal["key_revoke"] = "key_revoke"
    key_id: str = Field(max_length=32)


class KeyOpenRequest(Message):
    """Who may make a tenant's keys: its services want none any more, until one is made again.

    Only a tenant of which every key is revoked.
    """

    v: Literal[1] = 1
    op: Literal["key_open"] = "key_open"
    tenant: str = Field(max_length=64)


class KeysAnswer(Message):
    """Keys, oldest first."""

    v: Literal[1] = 1
    keys: tuple[KeyView, ...]


class GrantsRequest(Message):
    """The launcher: which keys let whom in now?"""

    v: Literal[1] = 1
    op: Literal["grants"] = "grants"


class GrantsAnswer(Message):
    """``tenants``: tenant by the key's SHA-256 in hexadecimal; revoked ones are left out.

    ``protected``: tenants that ever had a key and were not opened since, in order: to revoke the
    last one must not open their services to everybody.
    """

    v: Literal[1] = 1
    tenants: dict[str, str]
    protected: tuple[str, ...] = ()
