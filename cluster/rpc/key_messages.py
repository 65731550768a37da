"""Messages about API keys: which keys tenants have, and to which tenant's services a key admits."""

from pydantic import Field

from cluster.rpc.message import Answer, Asks, DoneAnswer, Message, Request


class KeyView(Message):
    """One API key of a tenant, without its secret.

    Attributes:
        key_id: public id, by which the key is revoked.
        created_s, revoked_s: Unix seconds; None if the key is not revoked.
    """

    key_id: str
    tenant: str
    name: str
    created_by: str
    created_s: float
    revoked_s: float | None = None


class KeyCreateRequest(Request, Asks[DoneAnswer], post="key_create"):
    """Adds a key to a tenant; for members of the tenant, root and SlurmUser.

    ``sha256`` is all that is kept of the key.
    """

    key_id: str = Field(pattern=r"^[0-9a-f]{12}$")
    tenant: str = Field(max_length=64)
    name: str = Field(max_length=63, pattern=r"^[A-Za-z0-9_.-]+$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class KeyRevokeRequest(Request, Asks[DoneAnswer], post="key_revoke"):
    """Revokes a key: no request with it is admitted from a few seconds after the answer."""

    key_id: str = Field(max_length=32)


class KeyOpenRequest(Request, Asks[DoneAnswer], post="key_open"):
    """Opens a tenant: its services need no key any more, until one is made again.

    For users who may make the tenant's keys, and only if every key of the tenant is revoked.
    """

    tenant: str = Field(max_length=64)


class KeysAnswer(Answer):
    """Keys, oldest first."""

    keys: tuple[KeyView, ...]


class KeyListRequest(Request, Asks[KeysAnswer], get="key_list"):
    """Asks for keys of the tenants that the user belongs to; of all for root and SlurmUser."""


class GrantsAnswer(Answer):
    """``tenants``: tenant by the key's SHA-256 in hexadecimal; revoked keys are left out.

    ``protected``: tenants that ever had a key and were not opened since, in order, because revoking
    the last key must not open their services to every client.
    """

    tenants: dict[str, str]
    protected: tuple[str, ...] = ()


class GrantsRequest(Request, Asks[GrantsAnswer], get="grants", asker="launcher"):
    """The launcher asks which keys admit to which tenant's services now."""
