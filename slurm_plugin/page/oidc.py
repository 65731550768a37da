"""Logins by an OpenID provider: the code flow with PKCE, state and nonce, by Authlib."""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError, SlicewiseError
from slicewise.cluster.settings.file import OidcSettings
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.page.proxy import secret_in

CALLBACK = "/login/oidc/callback"
_LASTS_S = 600.0
_MOST = 4096
"""Logins that have begun; those begun first are forgotten first."""
_AT_ONCE = 8
_PATIENCE_S = 10.0
_LEEWAY_S = 60
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
"""Signatures by the provider's own key: none that the client's secret could make."""
_MOST_WORDS, _LONGEST = 1000, 64
"""Of a claim that names tenants: it may name all groups of a person."""
_EMAIL, _EMAIL_IS_OWN = "email", "email_verified"
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True)
class _Begun:
    browser: str
    verifier: str
    nonce: str
    until_s: float


@dataclass(frozen=True)
class ProviderUser:
    """Whom the provider has let in: the name, and the tenants, that its claims say."""

    name: str
    tenants: tuple[str, ...]


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
        browser, state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(4))
        async with self._turn:
            provider = await self._asked_provider()
            made = await provider.create_authorization_url(
                self._callback, state=state, nonce=nonce, code_verifier=verifier
            )
        now_s = self._clock_s()
        self._begun = {
            key: begun_login
            for key, begun_login in self._begun.items()
            if begun_login.until_s > now_s
        }
        for key in list(self._begun)[: max(0, len(self._begun) - _MOST + 1)]:
            del self._begun[key]
        self._begun[state] = _Begun(browser, verifier, nonce, now_s + _LASTS_S)
        return str(made["url"]), browser

    async def end(self, query: Mapping[str, str], browser: str) -> "ProviderUser":
        """Whom the provider names, once for each login that this browser has begun.

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
        claim = self._settings.tenant_claim
        return ProviderUser(name, _tenants(claims.get(claim) if claim else ()))

    async def _claims(self, code: str, begun: _Begun) -> Mapping[str, Any]:
        """The claims of the id_token for a code; signature, iss, aud, exp and nonce are right."""
        own, provider = self._settings, await self._asked_provider()
        token = await provider.fetch_access_token(
            self._callback, code=code, code_verifier=begun.verifier
        )
        wanted = {"iss": own.issuer, "aud": own.client_id, "nonce": begun.nonce}
        options = {name: {"essential": True, "value": value} for name, value in wanted.items()}
        return dict(await provider.parse_id_token(token, begun.nonce, options, leeway=_LEEWAY_S))

    async def _asked_provider(self) -> Any:
        """Authlib's client of the provider, which has said where it is asked."""
        own = self._settings
        client = _client_class()(
            None,
            client_id=own.client_id,
            client_secret=self._secret,
            server_metadata_url=f"{own.issuer.removesuffix('/')}/.well-known/openid-configuration",
            client_kwargs={
                "scope": own.scope,
                "code_challenge_method": "S256",
                "timeout": _PATIENCE_S,
                "follow_redirects": False,
            },
        )
        try:
            known = await client.load_server_metadata()
        except Exception as error:  # noqa: BLE001 -- httpx2's, and what is no JSON
            raise _unbelieved(error) from None
        scheme = urlsplit(own.issuer).scheme
        is_safe = all(
            isinstance(known.get(name), str) and urlsplit(known[name]).scheme in {"https", scheme}
            for name in _ENDPOINTS
        )
        if known.get("issuer") != own.issuer or not is_safe:
            raise OutsideError(
                Code.WEB_OIDC,
                f"What {own.issuer} says of itself is of another issuer, or names no https"
                " addresses.",
                "Write web.oidc.issuer exactly as the provider's discovery document does.",
            )
        known["id_token_signing_alg_values_supported"] = list(_ALGORITHMS)
        return client


_AGAIN = "Begin again: Log in"


def _tenants(claimed: object) -> tuple[str, ...]:
    """The tenants in a claim, which is a word or a list of words; what can be none is left out."""
    words = claimed if isinstance(claimed, list | tuple) else (claimed,)
    names = {account_name(word) for word in words[:_MOST_WORDS] if isinstance(word, str)}
    return tuple(sorted(t for t in names if 0 < len(t) <= _LONGEST and t.isprintable()))


def _client_class() -> Any:
    """Authlib's client without a web framework."""
    from authlib.integrations.base_client.async_app import AsyncOAuth2Mixin  # noqa: PLC0415
    from authlib.integrations.base_client.async_openid import AsyncOpenIDMixin  # noqa: PLC0415
    from authlib.integrations.httpx_client import AsyncOAuth2Client  # noqa: PLC0415

    class Client(AsyncOAuth2Mixin, AsyncOpenIDMixin):  # type: ignore[misc]  # Authlib is untyped
        client_cls = AsyncOAuth2Client

    return Client


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
