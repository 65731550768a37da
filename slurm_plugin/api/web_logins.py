"""One-time tokens by which users whom the daemon knows log in on the web page."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.web_messages import (
    WebLoginAnswer,
    WebLoginRequest,
    WebTokenRequest,
    WebUserAnswer,
    WebUserRequest,
    WhoamiAnswer,
    WhoamiRequest,
)
from slicewise.cluster.settings.file import WebSettings
from slicewise.slurm_plugin.api.access import Caller, Principal, ReaderHandlers
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens
from slicewise.slurm_plugin.rules.common.bounded_tokens import BoundedTokens, token_key

_LASTS_S = 120
_PER_USER, _MOST = 4, 4096
"""Tokens that are known at a time; those made first are forgotten first."""


@dataclass(frozen=True)
class _Token:
    user: str
    until_s: float


class WebLogins:
    """Makes tokens and takes each once. Only their hashes are kept, in memory.

    The end of the daemon ends those that nobody has used yet.
    """

    def __init__(
        self,
        settings: WebSettings,
        slurm_tokens: SlurmTokens,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._slurm_tokens = slurm_tokens
        self._clock_s = clock_s
        self._tokens = BoundedTokens[_Token](_PER_USER, _MOST)

    def handlers(self) -> ReaderHandlers:
        """What gives users their tokens, and says who they are.

        For a token: InvalidInputError (SW-WEB-OFF).
        """
        return {WebLoginRequest: self._made, WhoamiRequest: whoami}

    async def _made(self, _: WebLoginRequest, principal: Principal) -> WebLoginAnswer:
        if not self._settings.listen:
            raise InvalidInputError(
                Code.WEB_OFF,
                "This site serves no web page.",
                "An operator can: web.listen in slicewise.toml, then slicewise-web.service",
            )
        token = secrets.token_urlsafe(32)
        now_s = self._clock_s()
        self._tokens.add(token_key(token), _Token(principal.user, now_s + _LASTS_S), now_s)
        return WebLoginAnswer(
            url=f"{self._settings.address}/login?token={token}",
            user=principal.user,
            expires_s=_LASTS_S,
        )

    async def user_of(self, request: WebUserRequest, _: Caller) -> WebUserAnswer:
        """Answer whose token it is, once. Raises InvalidInputError (SW-WEB-LOGIN)."""
        found = self._tokens.take(token_key(request.token), self._clock_s())
        if found is None:
            raise InvalidInputError(
                Code.WEB_LOGIN,
                "This login address was used already, or is too old.",
                f"Make another, which works once within {_LASTS_S} s: slicewise web login",
            )
        return WebUserAnswer(user=found.user)

    async def user_by_slurm(self, request: WebTokenRequest, _: Caller) -> WebUserAnswer:
        """Answer whose token of Slurm's it is. The web server never has the key.

        Raises InvalidInputError (SW-TOKEN), OutsideError (SW-TOKEN-KEY).
        """
        return WebUserAnswer(user=await self._slurm_tokens.user_of(request.token))


async def whoami(_: WhoamiRequest, principal: Principal) -> WhoamiAnswer:
    """Answer what the user is to the daemon."""
    return WhoamiAnswer(is_operator=principal.tenants is None)
