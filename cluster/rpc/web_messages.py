"""Messages of the web page's logins: the daemon, which knows who asks it, vouches for a user."""

from typing import Annotated

from pydantic import Field

from slicewise.cluster.language.persons import CLAIM_PATTERN, PERSON_PATTERN
from slicewise.cluster.rpc.message import Answer, Asks, DoneAnswer, Request, TenantText

MOST_CLAIMED = 64
"""Most tenants that a login may name."""
LoginToken = Annotated[str, Field(min_length=1, max_length=4096)]


class WebLoginAnswer(Answer):
    """A way into the page, once.

    Attributes:
        url: address that logs the user in who asked; whoever has it can use it.
        user: whom it logs in.
        expires_s: seconds for which it works.
    """

    url: str
    user: str
    expires_s: int


class WebLoginRequest(
    Request, Asks[WebLoginAnswer], post="web-login", changes=False, asker="everybody"
):
    """Asks for an address that logs the asking user in on the web page.

    It changes nothing that lasts: the daemon remembers the token for a short time.
    """


class WebUserAnswer(Answer):
    """The user whose token it was."""

    user: str


class WebUserRequest(Request, Asks[WebUserAnswer], post="web-user", changes=False, asker="web"):
    """Asks whose one-time token this is; it is used up thereby."""

    token: LoginToken


class WebTokenRequest(Request, Asks[WebUserAnswer], post="web-token", changes=False, asker="web"):
    """Asks whose token of Slurm's this is, as ``scontrol token`` makes them."""

    token: LoginToken


class WebGuestRequest(Request, Asks[WebUserAnswer], post="web-guest", asker="web"):
    """Says that the identity provider has let somebody in who has no account of Slurm's, and which
    tenants it names for that person; asks as whom the page may ask from now on.

    What it does not name any more ends. Refused if no tenant is left that ``web.oidc`` allows.

    Attributes:
        name: as the provider's claim says it.
    """

    name: Annotated[str, Field(pattern=CLAIM_PATTERN)]
    tenants: Annotated[tuple[TenantText, ...], Field(max_length=MOST_CLAIMED)] = ()


class GuestEndRequest(Request, Asks[DoneAnswer], post="guest-end", asker="operators"):
    """Ends a guest's membership of a tenant, whatever the identity provider says, or lets the guest
    be one again from the next login on.
    """

    person: Annotated[str, Field(pattern=PERSON_PATTERN)]
    tenant: TenantText
    again: bool = False


class WhoamiAnswer(Answer):
    """Who asks.

    ``is_operator``: whether the user is root or SlurmUser, or is answered as they are.
    """

    is_operator: bool


class WhoamiRequest(Request, Asks[WhoamiAnswer], get="whoami", for_guests=True):
    """Asks what the asking user is to the daemon: a page shows operators more."""
