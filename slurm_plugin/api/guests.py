"""Guests: people without an account of Slurm's, for whom the identity provider names tenants."""

import asyncio
from functools import partial

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.persons import GUEST_PREFIX
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.web_messages import GuestEndRequest, WebGuestRequest, WebUserAnswer
from slicewise.cluster.runtime.user_names import uid_of
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import OidcSettings
from slicewise.slurm_plugin.api.access import Caller, Principal
from slicewise.slurm_plugin.api.rate_limit import RateLimiter
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.ledger.guests import Claimed
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.services.key_rights import guests_now

_DAY_S = 86_400


class GuestLogins:
    """Which tenants each guest belongs to now; what logins have named is kept in memory, too."""

    def __init__(
        self, ledger: Ledger, settings: OidcSettings, leader: Leader, rates: RateLimiter
    ) -> None:
        self._ledger = ledger
        self._settings = settings
        self._leader = leader
        self._rates = rates
        self._claimed: Claimed = {}

    async def turn(self) -> None:
        """Read again what logins have named; raises what the ledger raises."""
        if self._settings.tenant_claim:
            self._claimed = await asyncio.to_thread(self._ledger.guests.claimed)

    def tenants(self) -> dict[str, frozenset[str]]:
        """The tenants of each guest now; without ``tenant_claim`` there are none."""
        own = self._settings
        oldest_s = wall_s() - own.tenant_claim_days * _DAY_S
        return dict(guests_now(self._claimed, oldest_s, own.claimed_tenants))

    async def claim(self, request: WebGuestRequest, _: Caller) -> WebUserAnswer:
        """Note what a login names, and answer as whom the page may ask.

        Raises InvalidInputError (SW-FORBIDDEN) for who belongs to no tenant by that, SW-RATE,
        UnreachableError (SW-DAEMON-STANDBY), and what the ledger raises.
        """
        self._leader.require()
        person = GUEST_PREFIX + request.name
        self._rates.take_of_page(person)
        is_user = await asyncio.to_thread(uid_of, person) is not None
        if self._settings.tenant_claim and not is_user:
            named = frozenset(request.tenants) & frozenset(self._settings.claimed_tenants)
            await asyncio.to_thread(self._ledger.guests.claim, person, named)
            await self.turn()
            if own := self.tenants().get(person):
                report("guest_let_in", user=person, tenants=sorted(own))
                return WebUserAnswer(user=person)
        raise InvalidInputError(
            Code.FORBIDDEN,
            f"{request.name!r} is no user of the cluster, and the identity provider names no tenant"
            " that such people may use here.",
            "An operator can: web.oidc.claimed_tenants in slicewise.toml",
        )

    async def end(self, request: GuestEndRequest, principal: Principal) -> DoneAnswer:
        """End a membership, or let the next login name it again; raises what the ledger raises."""
        self._leader.require()
        person, tenant = request.person, request.tenant
        if request.again:
            change = partial(self._ledger.guests.allow_membership, person, tenant)
        else:
            change = partial(self._ledger.guests.end_membership, person, tenant, principal.author)
        await asyncio.to_thread(change)
        await self.turn()
        report(
            "guest_ended", person=person, tenant=tenant, user=principal.author, again=request.again
        )
        return DoneAnswer()
