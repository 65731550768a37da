"""Serves the page: who may see it, which page an address is, and headers by the book.

HTTP comes by ``api/http_server.py``, one request per connection: slow and silent peers are bounded
there. Of what is changed there are only the viewer's own keys: no quota, no job, no service.
"""

import asyncio
import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from zoneinfo import ZoneInfo

from aiohttp import web
from jinja2 import Environment

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, Refusal, SlicewiseError
from slicewise.cluster.language.persons import is_guest
from slicewise.cluster.rpc.key_messages import KeyMadeAnswer
from slicewise.cluster.rpc.message import Answer, Request
from slicewise.cluster.rpc.new_key import new_key, new_key_id
from slicewise.cluster.rpc.web_messages import (
    MOST_CLAIMED,
    WebGuestRequest,
    WhoamiAnswer,
    WhoamiRequest,
)
from slicewise.cluster.runtime.systemd import passed_listener
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings, host_and_port
from slicewise.slurm_plugin.api.http_server import (
    SERVER,
    Connection,
    HttpLimits,
    HttpServer,
    Question,
)
from slicewise.slurm_plugin.api.places import Guests
from slicewise.slurm_plugin.api.routes import status_of
from slicewise.slurm_plugin.common.ledger_requests import StatementAnswer
from slicewise.slurm_plugin.common.log import report, report_failure
from slicewise.slurm_plugin.common.tariff_requests import ChargesRequest
from slicewise.slurm_plugin.common.usage_requests import TokenLine, TokenUsageAnswer
from slicewise.slurm_plugin.page.assets import Asset, load_assets
from slicewise.slurm_plugin.page.daemon_reads import DaemonReads, SummedCharges
from slicewise.slurm_plugin.page.key_forms import KeyForm
from slicewise.slurm_plugin.page.live import FeedKey, Feeds
from slicewise.slurm_plugin.page.oidc import CALLBACK, OidcLogins, ProviderUser
from slicewise.slurm_plugin.page.pages import GUESTS_PAGE, PAGES, Page, PagePlace
from slicewise.slurm_plugin.page.proxy import Proxy
from slicewise.slurm_plugin.page.render import TimeWords, environment
from slicewise.slurm_plugin.page.sessions import LASTS_S, Session, Sessions
from slicewise.slurm_plugin.page.site_users import SiteUsers
from slicewise.slurm_plugin.rules.accounting.invoice import (
    INVOICE_FIELDS,
    INVOICE_GROUPS,
    InvoiceGroup,
    invoice_rows,
)
from slicewise.slurm_plugin.rules.accounting.run_csv import csv_text, runs_csv
from slicewise.slurm_plugin.rules.accounting.statement import part
from slicewise.slurm_plugin.rules.common.connection_places import ConnectionLimits
from slicewise.slurm_plugin.rules.pages.statement import Month, month_of
from slicewise.slurm_plugin.rules.services.rate_limit import (
    RateLimit,
    RateUse,
    after_change,
    wait_s,
)

LIMITS = HttpLimits(question_s=10.0, answer_s=60.0, body_bytes=128 * 1024, refused=128)
"""A body holds a file of quotas as a form sends it, most signs of it in three bytes."""
PLACES = ConnectionLimits(connections=2560, per_host=2048, per_prefix=2304, grace_s=0.5)
"""A proxy is one host, and a live page keeps its connection."""
_LOGINS = RateLimit(at_once=20, every_s=6.0)
_REQUESTS = RateLimit(at_once=240, every_s=0.05)
"""Of one address that isn't logged in, and of one user."""
_REMEMBERED = 10_000
_FIELDS = 32
_BESIDE_S = 2.0
"""Seconds that a page waits for what is not the first of its questions."""
_CSV_PAGES = 500
"""Pages of a statement in one file, a million runs."""
_COOKIE, _ZONE_COOKIE, _OIDC_COOKIE = "slicewise", "slicewise-zone", "slicewise-oidc"
_OIDC_S = 600
_BEARER = "bearer "
_OWN_SITE = "same-origin"
_LONGEST_ZONE = 64
_HEARTBEAT_S = 15.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # An address may hold a token of a login. Not "no-referrer": forms would have no origin then.
    "Referrer-Policy": "same-origin",
    "Server": SERVER,
    "X-Content-Type-Options": "nosniff",
}
_YEAR_S = 31_536_000


@dataclass(frozen=True)
class Visit:
    """A request by a browser.

    Attributes:
        method: GET for HEAD, too: that is a GET of whose answer only the head is sent.
        path: as it was sent, percent-encoded.
        session: that of the cookie; None without one.
        visitor: the host that the request is counted for.
        zone: the browser's time zone, or the site's.
    """

    method: str
    path: str
    query: Mapping[str, str]
    session: Session | None
    visitor: str
    zone: str
    request: web.BaseRequest
    body: bytes

    @property
    def wants_head(self) -> bool:
        """Whether only the head of the answer is wanted."""
        return self.request.method == "HEAD"


class WebServer:
    """The page's server."""

    def __init__(self, settings: Settings) -> None:
        own = settings.web
        self._settings = own
        self._site_zone = settings.ledger.time_zone
        self._site = settings.cluster.name
        self._address = urlsplit(own.address)
        self._is_secure = self._address.scheme == "https"
        self._prefix = "__Host-" if self._is_secure else ""
        self._cookie = self._prefix + _COOKIE
        places = (
            (self._address.scheme, self._address.netloc),
            ("http", own.listen),
            # As a tunnel's users may write it.
            ("http", f"localhost:{own.listen.rpartition(':')[2]}"),
        )
        self._hosts = {_host(*place) for place in places}
        self._origins = {f"{scheme}://{_host(scheme, netloc)}" for scheme, netloc in places}
        self._reads = DaemonReads(settings.daemon)
        self._proxy = Proxy(own)
        self._users = SiteUsers(settings)
        self._oidc = OidcLogins(own.oidc, own.address) if own.oidc.issuer else None
        self._to_strangers = {
            ("GET", "/login"): self._login_page,
            ("POST", "/login"): self._log_in,
            ("GET", "/login/oidc"): self._to_provider,
            ("GET", CALLBACK): self._from_provider,
        }
        self._sessions = Sessions(LASTS_S)
        self._feeds = Feeds()
        assets = load_assets()
        self._assets: Mapping[str, Asset] = {asset.path: asset for asset in assets.values()}
        self._templates: Environment = environment(assets)
        self._used: OrderedDict[tuple[RateLimit, str], RateUse] = OrderedDict()
        self._server = HttpServer(Guests(PLACES), self._reply, LIMITS, lambda _: _NO_QUESTION)

    async def start(self) -> None:
        """Listen; SlicewiseError (SW-SETTINGS) if that is impossible."""
        listener, place = passed_listener(), host_and_port(self._settings.listen)
        try:
            if listener is None:
                await self._server.start_tcp(*place)
                return
            wanted = await asyncio.get_running_loop().getaddrinfo(*place)
            if listener.getsockname() in [address for *_, address in wanted]:
                await self._server.start_held(listener)
                return
        except OSError as error:
            raise SlicewiseError(
                Code.SETTINGS,
                f"web.listen: {self._settings.listen}: {error.strerror or error}.",
                "Name a loopback address and a free port: 127.0.0.1:8690",
            ) from None
        raise SlicewiseError(
            Code.SETTINGS,
            f"web.listen is {self._settings.listen}, and slicewise-web.socket has another address.",
            "Make them the same: systemctl edit slicewise-web.socket (docs/how-to/web.md)",
        )

    async def stop(self) -> None:
        """Stop listening, and end every connection and live page."""
        await self._feeds.stop()
        await self._server.stop()

    # Requests

    async def _reply(self, question: Question) -> web.StreamResponse:
        request, connection = question.request, question.connection
        try:
            visit = self._visit(question)
            if visit.method == "GET" and visit.path.startswith("/live/"):
                return await self._live(visit, connection)
            response: web.StreamResponse = await self._answered(visit, connection)
        except Exception as error:  # noqa: BLE001 -- one bad request must not end the server
            response = self._failed(error, request)
        connection.answers()
        self._harden(response)
        return response

    def _visit(self, question: Question) -> Visit:
        request = question.request
        if _host(self._address.scheme, request.host) not in self._hosts:
            raise InvalidInputError(
                Code.WEB_HOST,
                "This server has another name than the browser asks for.",
                f"Use {self._settings.address}; behind a proxy: web.url in slicewise.toml",
            )
        path, _, query = request.raw_path.partition("?")
        try:
            words = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_FIELDS))
        except ValueError:
            raise InvalidInputError(Code.WIRE, f"A query may have {_FIELDS} fields.") from None
        cookie = request.cookies.get(self._cookie, "")
        return Visit(
            method="GET" if request.method == "HEAD" else request.method,
            path=path,
            query=words,
            session=self._sessions.find(cookie) if cookie else None,
            visitor=self._proxy.visitor(request.headers, question.connection.address),
            zone=_zone(request.cookies.get(_ZONE_COOKIE, ""), self._site_zone),
            request=request,
            body=question.body,
        )

    async def _answered(self, visit: Visit, connection: Connection) -> web.StreamResponse:
        if visit.method not in ("GET", "POST"):
            raise InvalidInputError(Code.WIRE, f"Nothing is done here by {visit.method[:16]!r}.")
        if visit.method == "POST":
            self._require_own_origin(visit.request)
        elif (asset := self._assets.get(visit.path)) is not None:
            return _asset(asset)
        if (answered := self._to_strangers.get((visit.method, visit.path))) is not None:
            return await answered(visit)
        session = await self._require_login(visit, connection)
        return await self._for_user(visit, session, connection)

    async def _for_user(
        self, visit: Visit, session: Session, connection: Connection
    ) -> web.StreamResponse:
        if visit.method == "POST":
            return await self._posted(visit, session)
        if visit.path == "/":
            return _see_other(_first_page(session.user))
        if visit.path.endswith(".csv"):
            return await self._table(visit, session, connection)
        return await self._page(visit, session)

    async def _posted(self, visit: Visit, session: Session) -> web.Response:
        if visit.path == "/logout":
            self._require_own_form(visit, session)
            return self._log_out(session)
        return await self._form_page(visit, session)

    async def _require_login(self, visit: Visit, connection: Connection) -> Session:
        session = await self._session_of(visit, connection)
        if session is None:
            self._count(_REQUESTS, visit.visitor)
            raise InvalidInputError(
                Code.WEB_LOGIN,
                "You are not logged in.",
                "In a shell of the cluster: slicewise web login",
            )
        self._count(_REQUESTS, session.user)
        return session

    async def _session_of(self, visit: Visit, connection: Connection) -> Session | None:
        """Who visits: by a token of Slurm's, by the word of a proxy, or by the cookie."""
        headers = visit.request.headers
        authorization = headers.get("Authorization", "")
        if authorization[: len(_BEARER)].lower() == _BEARER:
            self._count(_REQUESTS, visit.visitor)
            if visit.method != "GET" or not visit.path.endswith(".json"):
                raise InvalidInputError(
                    Code.TOKEN, "A token of Slurm's opens the page's JSON only.", "PATH.json"
                )
            user = await self._reads.user_by_slurm(authorization[len(_BEARER) :].strip())
            return self._sessions.passing(user)
        if (named := self._proxy.named(headers, connection.address)) is not None:
            return self._sessions.vouched(await self._users.find(named))
        return visit.session

    def _count(self, rate: RateLimit, who: str) -> None:
        """Count a request; InvalidInputError (SW-RATE) if it comes too early."""
        now_s = time.monotonic()
        known = self._used.get((rate, who), RateUse())
        if wait_s(known, rate, now_s):
            raise InvalidInputError(Code.RATE, "Too many requests.", "Wait a little.")
        self._used[rate, who] = after_change(known, rate, now_s)
        self._used.move_to_end((rate, who))
        while len(self._used) > _REMEMBERED:
            self._used.popitem(last=False)

    def _require_own_origin(self, request: web.BaseRequest) -> None:
        """Refuse a form that another site sent: InvalidInputError (SW-FORBIDDEN).

        A browser says where it came from in one header or in both; ``same-site`` is another host.
        """
        is_own = request.headers.get("Origin", "").lower() in self._origins
        if not is_own or request.headers.get("Sec-Fetch-Site", _OWN_SITE) != _OWN_SITE:
            raise InvalidInputError(Code.FORBIDDEN, "This form came from another site.")

    # Login

    async def _login_page(self, visit: Visit) -> web.Response:
        self._count(_REQUESTS, visit.visitor)
        return self._html(
            "login",
            visit,
            token=visit.query.get("token", ""),
            user=visit.session.user if visit.session else "",
            provider=self._oidc.provider if self._oidc else "",
        )

    async def _log_in(self, visit: Visit) -> web.Response:
        self._count(_LOGINS, visit.visitor)
        user = await self._reads.user_of(_form(visit).get("token", ""))
        return self._logged_in(visit, user, "token")

    async def _to_provider(self, visit: Visit) -> web.Response:
        self._count(_LOGINS, visit.visitor)
        address, browser = await self._require_oidc().begin()
        response = _see_other(address)
        self._set_cookie(response, _OIDC_COOKIE, browser, _OIDC_S)
        return response

    async def _from_provider(self, visit: Visit) -> web.Response:
        self._count(_LOGINS, visit.visitor)
        browser = visit.request.cookies.get(self._prefix + _OIDC_COOKIE, "")
        named = await self._require_oidc().end(visit.query, browser)
        response = self._logged_in(visit, await self._user_of(named), "oidc")
        response.del_cookie(self._prefix + _OIDC_COOKIE, secure=self._is_secure)
        return response

    async def _user_of(self, named: ProviderUser) -> str:
        """A user of this host, or a guest of tenants that the provider names."""
        try:
            return await self._users.find(named.name)
        except InvalidInputError:
            own = self._settings.oidc
            if not own.tenant_claim or await self._users.has(named.name):
                raise
            allowed = tuple(t for t in named.tenants if t in own.claimed_tenants)[:MOST_CLAIMED]
            return await self._reads.guest(WebGuestRequest.of(name=named.name, tenants=allowed))

    def _require_oidc(self) -> OidcLogins:
        if self._oidc is None:
            raise _no_page()
        return self._oidc

    def _logged_in(self, visit: Visit, user: str, by: str) -> web.Response:
        """Begin a session in place of the one that the browser had."""
        if visit.session is not None:
            self._sessions.end(visit.session)
        cookie, _ = self._sessions.begin(user)
        report("web_login", user=user, by=by, visitor=visit.visitor)
        response = _see_other(_first_page(user))
        self._set_cookie(response, _COOKIE, cookie, int(self._sessions.lasts_s))
        return response

    def _set_cookie(self, response: web.Response, name: str, value: str, lasts_s: int) -> None:
        response.set_cookie(
            *(self._prefix + name, value),
            max_age=lasts_s,
            httponly=True,
            samesite="Lax",
            secure=self._is_secure,
        )

    def _log_out(self, session: Session) -> web.Response:
        self._sessions.end(session)
        response = _see_other("/login")
        response.del_cookie(self._cookie, secure=self._is_secure)
        return response

    def _require_own_form(self, visit: Visit, session: Session) -> None:
        given = _form(visit).get("form_token", "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, session.form_token.encode()):
            raise InvalidInputError(
                Code.FORBIDDEN, "This form is of another session.", "Reload it."
            )

    # Pages

    async def _page(self, visit: Visit, session: Session) -> web.Response:
        page, place = self._found(visit, session, ".json")
        answers = await self._asked(page, place, session.user)
        return await self._shown(page, place, visit, session, answers)

    async def _asked(self, page: Page, place: PagePlace, user: str) -> "Answers | SlicewiseError":
        """The answers to what a page asks; the refusal, if there is no page without it."""
        try:
            return await self._answers(page.asks(place), user)
        except SlicewiseError as error:
            return error

    async def _form_page(self, visit: Visit, session: Session) -> web.Response:
        """Do or answer what a page's form asks; what is refused stands beside the form."""
        page, place = self._found(visit, session)
        if page.form_asks is None and page.change is None:
            raise _no_page()
        self._require_own_form(visit, session)
        beside: dict[str, Answer | Refusal] = {}
        made = ""
        try:
            if page.form_asks is not None:
                beside |= await self._answers(page.form_asks(_form(visit)), session.user)
            if page.change is not None:
                key = new_key(_form(visit).get("new_key_id", ""))
                form = KeyForm(_form(visit), key, place.now_s, place.site_zone)
                beside["changed"] = await self._reads.change(session.user, page.change(form))
                made = key.key if isinstance(beside["changed"], KeyMadeAnswer) else ""
        except SlicewiseError as error:
            beside["refused"] = error.refusal
        answers = {**await self._answers(page.asks(place), session.user), **beside}
        return await self._shown(page, place, visit, session, answers, made_key=made)

    async def _shown(
        self,
        page: Page,
        place: PagePlace,
        visit: Visit,
        session: Session,
        answers: "Answers | SlicewiseError",
        *,
        made_key: str = "",
    ) -> web.Response:
        if visit.path.endswith(".json"):
            if isinstance(answers, SlicewiseError):
                raise answers
            return web.Response(
                text=json.dumps({name: _plain(answer) for name, answer in answers.items()}),
                content_type="application/json",
            )
        main = self._main(page, place, visit, session, answers, made_key=made_key)
        response = self._html(
            "page",
            visit,
            session=session,
            page=page,
            place=place,
            main=main,
            is_operator=await self._is_operator(session.user),
            is_guest=is_guest(session.user),
        )
        if isinstance(answers, SlicewiseError):
            response.set_status(_status(answers))
        return response

    async def _table(
        self, visit: Visit, session: Session, connection: Connection
    ) -> web.StreamResponse:
        """Send a month's lines as CSV, page by page as the daemon gives them."""
        page, place = self._found(visit, session, ".csv")
        if page.csv_asks is None:
            raise _no_page()
        month = month_of(place.chosen("month"), place.now_s, self._site_zone)
        asked, name = page.csv_asks(place), f"{page.template}-{month.name}.csv"
        headers = {
            "Content-Type": "text/csv; charset=utf-8",
            "Content-Disposition": f'attachment; filename="{name}"',
        }
        if isinstance(asked, ChargesRequest):
            text = _invoice_csv(await self._reads.whole(session.user, asked), place, month)
            return web.Response(text=text, headers=headers)
        pages = self._reads.pages(session.user, asked, _CSV_PAGES)
        found = await anext(pages)
        response = web.StreamResponse(headers=headers)
        response.force_close()
        self._harden(response)
        if visit.wants_head:
            await pages.aclose()
            return response
        await response.prepare(visit.request)
        try:
            await _send(response, _lines_csv(found, month, header=True))
            async for answer in pages:
                found = answer
                await _send(response, _lines_csv(answer, month, header=False))
            if getattr(found, "more", None) is not None:
                # There are more lines than one file has.
                connection.drop()
        except (ConnectionError, TimeoutError, SlicewiseError):
            # Without an end the browser knows that the file is not whole.
            connection.drop()
        finally:
            await pages.aclose()
        return response

    async def _is_operator(self, user: str) -> bool:
        """Whether the daemon answers the user what it answers operators; no, if it is down."""
        try:
            whoami_answer = await self._reads.ask(user, WhoamiRequest())
        except SlicewiseError:
            return False
        return isinstance(whoami_answer, WhoamiAnswer) and whoami_answer.is_operator

    def _found(self, visit: Visit, session: Session, suffix: str = "") -> tuple[Page, PagePlace]:
        path = visit.path.removeprefix("/live").removesuffix(suffix)
        for page in PAGES:
            if (words := page.match(path)) is not None:
                decoded = {name: unquote(word) for name, word in words.items()}
                if "tenant" in decoded:
                    decoded["tenant"] = account_name(decoded["tenant"])
                now_s, zone = wall_s(), self._site_zone
                return page, PagePlace(path, decoded, visit.query, now_s, zone, session.user)
        raise _no_page()

    async def _answers(self, asks: Mapping[str, Request], user: str) -> "Answers":
        whole = self._reads.whole
        first, *rest = [asyncio.create_task(whole(user, request)) for request in asks.values()]
        await asyncio.wait({first})
        if rest and first.exception() is None:
            # What stands beside it must not keep it back.
            await asyncio.wait(rest, timeout=_BESIDE_S)
        for task in rest:
            task.cancel()
        found = await asyncio.gather(first, *rest, return_exceptions=True)
        answers: dict[str, Answer | Refusal] = {}
        for name, answer in zip(asks, found, strict=True):
            if isinstance(answer, asyncio.CancelledError):
                answers[name] = _LATE
            elif isinstance(answer, SlicewiseError) and answers:
                answers[name] = answer.refusal
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers[name] = answer
        return answers

    def _main(
        self,
        page: Page,
        place: PagePlace,
        visit: Visit,
        session: Session,
        answers: "Answers | SlicewiseError",
        *,
        made_key: str = "",
    ) -> str:
        if isinstance(answers, SlicewiseError):
            template = self._templates.get_template("refusal.html.j2")
            return template.render(refusal=answers.refusal, page=page)
        template = self._templates.get_template(f"{page.template}.html.j2")
        return template.render(
            **answers,
            page=page,
            place=place,
            user=session.user,
            times=TimeWords(visit.zone, place.now_s),
            now_s=place.now_s,
            form=_form(visit) if visit.method == "POST" else {},
            form_token=session.form_token,
            changes_keys=self._settings.change_keys,
            is_guest=is_guest(session.user),
            made_key=made_key,
            new_key_id=new_key_id(),
        )

    def _html(self, template: str, visit: Visit, /, **values: Any) -> web.Response:
        text = self._templates.get_template(f"{template}.html.j2").render(
            site=self._site,
            pages=PAGES,
            zone=visit.zone,
            target=visit.request.raw_path,
            json_target=_json_target(visit.request.raw_path),
            **values,
        )
        return web.Response(text=text, content_type="text/html")

    def _failed(self, error: Exception, request: web.BaseRequest) -> web.Response:
        if isinstance(error, SlicewiseError):
            refusal, status = error.refusal, _status(error)
        else:
            report_failure("request_failed", error, kind=type(error).__name__)
            refusal, status = _FAILED, HTTPStatus.INTERNAL_SERVER_ERROR
        path = request.raw_path.partition("?")[0]
        if path.endswith(".json"):
            return web.json_response(_plain(refusal), status=status)
        text = self._templates.get_template("failure.html.j2").render(
            site=self._site, refusal=refusal, is_login=refusal.code == Code.WEB_LOGIN
        )
        return web.Response(text=text, status=status, content_type="text/html")

    # Live

    async def _live(self, visit: Visit, connection: Connection) -> web.StreamResponse:
        session = await self._require_login(visit, connection)
        page, place = self._found(visit, session)
        if not page.is_live:
            raise _no_page()
        key = FeedKey(session.user, visit.request.raw_path, visit.zone)

        async def make() -> str:
            now = replace(place, now_s=wall_s())
            try:
                answers = await self._asked(page, now, session.user)
                return self._main(page, now, visit, session, answers)
            except Exception as error:  # noqa: BLE001 -- one bad answer must not end the stream
                report_failure("request_failed", error, kind=type(error).__name__)
                template = self._templates.get_template("refusal.html.j2")
                return template.render(refusal=_FAILED, page=page)

        self._feeds.require_room(session.user)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.force_close()
        self._harden(response)
        if visit.wants_head:
            connection.answers()
            return response
        stream = self._feeds.follow(key, make)
        following = asyncio.ensure_future(anext(stream))
        gone = asyncio.ensure_future(connection.gone.wait())
        connection.streams()
        try:
            await response.prepare(visit.request)
            while self._sessions.is_open(session):
                waits = {following, gone}
                await asyncio.wait(waits, timeout=_HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if gone.done() or not self._sessions.is_open(session):
                    break
                is_new = following.done()
                text = _event(following.result()) if is_new else b": \n\n"
                async with asyncio.timeout(LIMITS.answer_s):
                    await response.write(text)
                if is_new:
                    following = asyncio.ensure_future(anext(stream))
        except (ConnectionError, TimeoutError, SlicewiseError):
            connection.drop()
        finally:
            gone.cancel()
            following.cancel()
            await asyncio.gather(following, gone, return_exceptions=True)
            await stream.aclose()
        return response

    def _harden(self, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)
        response.headers.setdefault("Cache-Control", "no-store")
        if self._is_secure:
            response.headers["Strict-Transport-Security"] = f"max-age={_YEAR_S}"


_LATE = Refusal(Code.TIMEOUT, "The ledger is slow: this did not come in time.", "Reload.")
_NO_QUESTION = Refusal(Code.WIRE, "This is no HTTP request.", "Ask with a browser.")
_FAILED = Refusal(Code.INTERNAL, "The web server failed; its log says how.")


def _status(error: SlicewiseError) -> HTTPStatus:
    code = error.refusal.code
    # The daemon's refusals all come as errors of input, also where it is not the input's fault.
    return _STATUS.get(code) or status_of(error)


_STATUS = {
    **dict.fromkeys(
        (
            *(Code.BUSY, Code.DAEMON_STANDBY, Code.SLURM_DOWN),
            *(Code.DATABASE_DOWN, Code.DATABASE_BUSY, Code.DATABASE_RIGHTS, Code.DATABASE_FAILED),
            Code.DATABASE_CONNECTIONS,
        ),
        HTTPStatus.SERVICE_UNAVAILABLE,
    ),
    Code.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
    Code.WEB_LOGIN: HTTPStatus.UNAUTHORIZED,
    Code.TOKEN: HTTPStatus.UNAUTHORIZED,
    Code.WEB_PROXY: HTTPStatus.FORBIDDEN,
    Code.WEB_OIDC: HTTPStatus.BAD_GATEWAY,
    Code.WEB_HOST: HTTPStatus.MISDIRECTED_REQUEST,
}


Answers = Mapping[str, Answer | Refusal]
"""Answers and refusals by the names that a page's template uses."""


def _no_page() -> InvalidInputError:
    return InvalidInputError(Code.NAME_UNKNOWN, "There is no such page.", "Begin at /")


def _json_target(target: str) -> str:
    path, mark, query = target.partition("?")
    return f"{path}.json{mark}{query}"


def _form(visit: Visit) -> Mapping[str, str]:
    try:
        fields = parse_qsl(
            visit.body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS
        )
    except ValueError:
        raise InvalidInputError(Code.WIRE, f"A form may have {_FIELDS} fields.") from None
    return dict(fields)


def _zone(wanted: str, otherwise: str) -> str:
    """The browser's time zone, if there is such a one."""
    if 0 < len(wanted) <= _LONGEST_ZONE:
        try:
            return ZoneInfo(unquote(wanted)).key
        except (KeyError, ValueError, OSError):
            pass
    return otherwise


def _host(scheme: str, host: str) -> str:
    """A Host header as browsers write it: in small letters, without the scheme's own port."""
    return host.lower().removesuffix(":443" if scheme == "https" else ":80")


def _plain(answer: Answer | Refusal) -> Any:
    if isinstance(answer, Refusal):
        return {"code": answer.code, "message": answer.message, "hint": answer.hint}
    return answer.model_dump(mode="json")


def _asset(asset: Asset) -> web.Response:
    return web.Response(
        body=asset.body,
        content_type=asset.content_type,
        headers={"Cache-Control": f"public, max-age={_YEAR_S}, immutable"},
    )


def _first_page(user: str) -> str:
    return GUESTS_PAGE if is_guest(user) else "/cluster"


def _see_other(path: str) -> web.Response:
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": path})


def _event(html: str) -> bytes:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"{lines}\n".encode()


def _invoice_csv(answer: Answer, place: PagePlace, month: Month) -> str:
    """The sums that ``slicewise ledger invoice --csv`` has: they are known when all is read."""
    assert isinstance(answer, SummedCharges)  # noqa: S101 -- it was asked for
    if answer.more is not None:
        raise InvalidInputError(
            Code.VALUE,
            "There are more runs than the page adds up.",
            f"slicewise ledger invoice --month {month.name} --csv, or give a tenant.",
        )
    chosen = place.chosen("by")
    by: InvoiceGroup = next(filter(chosen.__eq__, INVOICE_GROUPS), "service")
    sums = answer.invoice.sums[by]
    rows = invoice_rows(sums, answer.invoice.payables, month.name, answer.currency)
    return csv_text(rows, INVOICE_FIELDS)


def _lines_csv(answer: Answer, month: Month, *, header: bool) -> str:
    match answer:
        case StatementAnswer():
            rows = part(answer.rows, month.start_s, month.end_s)
            return runs_csv(rows, answer.now_s, header=header)
        case TokenUsageAnswer():
            lines = (line.model_dump() for line in answer.lines)
            return csv_text(lines, TokenLine.model_fields, header=header)
    raise TypeError(type(answer))


async def _send(response: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(LIMITS.answer_s):
        await response.write(text.encode())
