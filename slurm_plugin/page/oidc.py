"""Logins by an OpenID provider: the code flow with PKCE, state and nonce, by Authlib."""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from slicewise.cluster.settings.file import OidcSettings
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.page.proxy import secret_in

if TYPE_CHECKING:
    from authlib.integrations.httpx_client import AsyncOAuth2Client

CALLBACK = "/login/oidc/callback"
_LASTS_S = 600.0
_MOST = 4096
"""Logins that have begun; those begun first are forgotten first."""
_AT_ONCE = 8
_PATIENCE_S = 10.0
_LEEWAY_S = 60
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by the provider's own key: none that the client's secret could make."""
_EMAIL, _EMAIL_IS_OWN = "email", "email_verified"
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True)
class _Begun:
    browser: str
    verifier: str
    nonce: str
    until_s: float


class OidcLogins:
    """Leads browsers to the provider, and reads what they come back with.

    Raises SlicewiseError: SW-PROGRAM without Authlib, SW-SETTINGS if the secret can't be read.
    """

    def __init__(
        self,
        settings: OidcSettings,
        address: str,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        assert settings.client_secret_file is not None  # noqa: S101 -- the settings see to it
        _require_authlib()
        self._settings = settings
        self._callback = address + CALLBACK
        secret = secret_in(settings.client_secret_file, "web.oidc.client_secret_file")
        self._secret = secret.decode("utf-8", "replace")
        self._clock_s = clock_s
        self._begun: dict[str, _Begun] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)

    @property
    def provider(self) -> str:
        """The provider's host."""
        return urlsplit(self._settings.issuer).netloc

    async def begin(self) -> tuple[str, str]:
        """Begin a login: the provider's address to go to, and a cookie for the browser.

        Raises OutsideError (SW-WEB-OIDC) if the provider can't be asked.
        """
        from authlib.common.security import generate_token  # noqa: PLC0415 -- an extra

        browser, state, nonce = (secrets.token_urlsafe(32) for _ in range(3))
        verifier: str = generate_token(64)
        async with self._turn, self._client() as client:
            known = await self._metadata(client)
            url, _ = client.create_authorization_url(
                known["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
            )
        now_s = self._clock_s()
        self._begun = {key: one for key, one in self._begun.items() if one.until_s > now_s}
        for key in list(self._begun)[: max(0, len(self._begun) - _MOST + 1)]:
            del self._begun[key]
        self._begun[state] = _Begun(browser, verifier, nonce, now_s + _LASTS_S)
        return str(url), browser

    async def end(self, query: Mapping[str, str], browser: str) -> str:
        """The name that the provider says, once for each login that this browser has begun.

        Raises InvalidInputError (SW-WEB-LOGIN) for a login that the browser has not begun or the
        provider refused, OutsideError (SW-WEB-OIDC) if the provider's answer is not to be believed.
        """
        begun = self._begun.pop(query.get("state", ""), None)
        is_own = begun is not None and hmac.compare_digest(begun.browser.encode(), _bytes(browser))
        if begun is None or not is_own or begun.until_s < self._clock_s():
            raise InvalidInputError(
                Code.WEB_LOGIN, "This browser has begun no such login, or too long ago.", _AGAIN
            )
        if query.get("iss", self._settings.issuer) != self._settings.issuer or "code" not in query:
            raise InvalidInputError(Code.WEB_LOGIN, "The provider has not let you in.", _AGAIN)
        async with self._turn:
            try:
                claims = await self._claims(query["code"], begun)
            except SlicewiseError:
                raise
            except Exception as error:  # noqa: BLE001 -- Authlib's, httpx2's, joserfc's own
                raise _unbelieved(error) from None
        name = claims.get(self._settings.claim)
        if self._settings.claim == _EMAIL and claims.get(_EMAIL_IS_OWN) is not True:
            # Many providers let people write any address, and say whether it was tried.
            raise OutsideError(
                Code.WEB_OIDC,
                "The provider does not say that this e-mail address is the visitor's.",
                "It must say email_verified; or take another claim in web.oidc.claim",
            )
        if not isinstance(name, str) or not name:
            raise OutsideError(
                Code.WEB_OIDC,
                f"The provider's id_token has no claim {self._settings.claim!r}.",
                "See web.oidc.claim and web.oidc.scope in slicewise.toml",
            )
        return name

    async def _claims(self, code: str, begun: _Begun) -> Mapping[str, Any]:
        """The claims of the id_token for a code; signature, iss, aud, exp and nonce are right."""
        from authlib.oidc.core import CodeIDToken  # noqa: PLC0415
        from joserfc import jwt  # noqa: PLC0415
        from joserfc.jwk import KeySet  # noqa: PLC0415

        own = self._settings
        async with self._client() as client:
            known = await self._metadata(client)
            token = await client.fetch_token(
                known["token_endpoint"], code=code, code_verifier=begun.verifier
            )
            keys = KeySet.import_key_set(await _json(client, known["jwks_uri"]))
        read = jwt.decode(token["id_token"], keys, algorithms=list(_ALGORITHMS))
        claims = CodeIDToken(
            read.claims,
            read.header,
            options={
                "iss": {"essential": True, "value": own.issuer},
                "aud": {"essential": True, "value": own.client_id},
                "nonce": {"essential": True, "value": begun.nonce},
            },
            params={
                "nonce": begun.nonce,
                "client_id": own.client_id,
                "access_token": token.get("access_token"),
            },
        )
        claims.validate(leeway=_LEEWAY_S)
        return dict(claims)

    async def _metadata(self, client: "AsyncOAuth2Client") -> Mapping[str, str]:
        issuer = self._settings.issuer
        try:
            known = await _json(
                client, f"{issuer.removesuffix('/')}/.well-known/openid-configuration"
            )
        except Exception as error:  # noqa: BLE001 -- httpx2's, and what is no JSON
            raise _unbelieved(error) from None
        places = {name: known.get(name) for name in _ENDPOINTS}
        scheme = urlsplit(issuer).scheme
        is_safe = all(
            isinstance(place, str) and urlsplit(place).scheme in {"https", scheme}
            for place in places.values()
        )
        if known.get("issuer") != issuer or not is_safe:
            raise OutsideError(
                Code.WEB_OIDC,
                f"What {issuer} says of itself is of another issuer, or names no https addresses.",
                "Write web.oidc.issuer exactly as the provider's discovery document does.",
            )
        return places

    def _client(self) -> "AsyncOAuth2Client":
        from authlib.integrations.httpx_client import AsyncOAuth2Client  # noqa: PLC0415

        return AsyncOAuth2Client(
            self._settings.client_id,
            self._secret,
            scope=self._settings.scope,
            redirect_uri=self._callback,
            code_challenge_method="S256",
            timeout=_PATIENCE_S,
            follow_redirects=False,
        )


_AGAIN = "Begin again: Log in"


async def _json(client: "AsyncOAuth2Client", url: str) -> Any:
    answer = await client.request("GET", url, withhold_token=True)
    answer.raise_for_status()
    return answer.json()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _unbelieved(error: Exception) -> OutsideError:
    """The log has the kind alone: the error's text may hold what the provider gave."""
    report_failure("web_provider_failed", OutsideError(Code.WEB_OIDC, type(error).__name__))
    return OutsideError(
        Code.WEB_OIDC,
        "The OpenID provider can't be asked, or its answer is not to be believed.",
        "The web server's log says more: web_provider_failed",
    )


def _require_authlib() -> None:
    try:
        import authlib  # noqa: F401, PLC0415 -- an extra
        import httpx2  # noqa: F401, PLC0415
    except ImportError:
        raise SlicewiseError(
            Code.PROGRAM,
            "web.oidc needs Authlib and httpx2, which are not installed.",
            "Install the extra: pip install 'slicewise[web]'",
        ) from None
