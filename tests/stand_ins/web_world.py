"""The page's server before a daemon's socket that answers each user with the user's own name.

Who logs in, and who may ask for whom, is decided by the real parts on both sides.
"""

import os
import pwd
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from free_ports import free_port
from pydantic import BaseModel

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.persons import GUEST_PREFIX
from slicewise.cluster.rpc.message import Request
from slicewise.cluster.rpc.overview_messages import OverviewAnswer, OverviewRequest, SlicesByState
from slicewise.cluster.rpc.web_messages import (
    WebGuestRequest,
    WebTokenRequest,
    WebUserAnswer,
    WebUserRequest,
)
from slicewise.cluster.runtime.user_names import user_name
from slicewise.cluster.settings.file import Settings, WebSettings
from slicewise.slurm_plugin.api.access import Caller, Principal
from slicewise.slurm_plugin.api.desk import Roles
from slicewise.slurm_plugin.api.places import UserLimits
from slicewise.slurm_plugin.api.routes import Routes
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens
from slicewise.slurm_plugin.api.user_socket import UserSocket
from slicewise.slurm_plugin.api.web_logins import WebLoginRequest, WebLogins
from slicewise.slurm_plugin.page.server import WebServer
from stand_ins.scripted import settings

NAMES: Mapping[str, int] = {
    "root": 0,
    "slurm": 64030,
    "slicewise": 500,
    "alice": 61001,
    "bob": 61002,
}
_SLICES = {f"{name}_millislices": 0 for name in ("used", "lent", "idle", "draining", "down")}


def known_users(patch: pytest.MonkeyPatch) -> None:
    """Let this host have these users."""
    by_name = {
        name: pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))
        for name, uid in NAMES.items()
    }
    own = pwd.struct_passwd(("slicewise-web", "x", os.geteuid(), 1, "", "/", "/bin/false"))
    by_uid = {one.pw_uid: one for one in (own, *by_name.values())}
    patch.setattr(pwd, "getpwnam", {**by_name, "slicewise-web": own}.__getitem__)
    patch.setattr(pwd, "getpwuid", by_uid.__getitem__)


@dataclass
class PageServer:
    """A page that is served.

    Attributes:
        asked: the users for whom the daemon was asked for an overview.
        guests: what the daemon was told of guests' logins.
    """

    address: str
    server: WebServer
    logins: WebLogins
    browser: aiohttp.ClientSession
    asked: list[str]
    guests: list[WebGuestRequest]

    async def get(self, path: str, **headers: str) -> tuple[int, str, Mapping[str, str]]:
        """Status, text and headers of an answer; no redirect is followed."""
        return await self.ask("GET", path, headers=headers)

    async def post(
        self, path: str, fields: Mapping[str, str], **headers: str
    ) -> tuple[int, str, Mapping[str, str]]:
        """The answer to a form that came from the page itself, unless the headers say otherwise."""
        sent = {"Origin": self.address, **headers}
        return await self.ask("POST", path, data=dict(fields), headers=sent)

    async def ask(
        self, method: str, path: str, **options: Any
    ) -> tuple[int, str, Mapping[str, str]]:
        """The answer to any request."""
        async with self.browser.request(
            method, self.address + path, allow_redirects=False, **options
        ) as answer:
            return answer.status, await answer.text(), answer.headers

    async def token(self, user: str) -> str:
        """A token that logs a user in once."""
        made = self.logins.handlers()[WebLoginRequest]
        answer: Any = await made(WebLoginRequest(), Principal(NAMES[user], user, None))
        return str(answer.url).rpartition("=")[2]

    async def log_in(self, user: str) -> None:
        """Log a user in by a token."""
        status, _, _ = await self.post("/login", {"token": await self.token(user)})
        assert status == 303


@asynccontextmanager
async def page_up(
    place: Path, slurm_jwt_key: Path | None = None, **web: object
) -> AsyncIterator[PageServer]:
    """Serve a page, with these settings of ``[web]`` and that key of ``[daemon]``."""
    listen = f"127.0.0.1:{free_port()}"
    own = WebSettings.model_validate({"listen": listen, **web})
    logins, asked = WebLogins(own, SlurmTokens(slurm_jwt_key)), list[str]()

    async def overview(_: Request, caller: Caller) -> BaseModel:
        asked.append(user_name(caller.uid))
        return OverviewAnswer(
            cluster=f"seen-by-{asked[-1]}",
            observed_s=1.0,
            complete=True,
            mode="enforce",
            slices=SlicesByState(capacity_millislices=0, **_SLICES),
            tenants=(),
            services=(),
            gpus=(),
            waiting=(),
            attention=(),
        )

    guests: list[WebGuestRequest] = []

    async def guest(request: WebGuestRequest, _: Caller) -> WebUserAnswer:
        guests.append(request)
        if not request.tenants:
            raise InvalidInputError(Code.FORBIDDEN, "No guest.")
        return WebUserAnswer(user=GUEST_PREFIX + request.name)

    who = Roles(frozenset({64030}), 500, os.geteuid(), frozenset(own.operators))
    routes = Routes(
        {
            OverviewRequest: overview,
            WebGuestRequest: guest,
            WebUserRequest: logins.user_of,
            WebTokenRequest: logins.user_by_slurm,
        },
        who.allows,
        who.acting,
    )
    socket = UserSocket(place / "user.sock", routes, UserLimits(64, 64))
    await socket.start()
    server = WebServer(_settings(place, own))
    await server.start()
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as browser:
        yield PageServer(f"http://{listen}", server, logins, browser, asked, guests)
    await server.stop()
    await socket.stop()


def _settings(place: Path, web: WebSettings) -> Settings:
    known = settings()
    daemon = known.daemon.model_copy(update={"run_dir": place})
    return known.model_copy(update={"daemon": daemon, "web": web})
