"""Tests the user socket: limits, malformed input, and which users may see and do what."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from builders.service_views import a_service, a_tenant_view
from log_lines import lines
from pydantic import BaseModel
from stand_ins.http_peer import GET_VIEW, Response, connected, posted
from stand_ins.network import BoundSocket

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.message import DoneAnswer, Request
from slicewise.cluster.rpc.messages import (
    REQUEST_LIMIT,
    DeleteRequest,
    ServiceView,
    TenantView,
    ViewAnswer,
    ViewRequest,
)
from slicewise.cluster.rpc.read_messages import WhyRequest
from slicewise.slurm_plugin.api import places, user_socket
from slicewise.slurm_plugin.api.access import Caller
from slicewise.slurm_plugin.api.desk import Roles, visible_to
from slicewise.slurm_plugin.api.http_server import HttpLimits
from slicewise.slurm_plugin.api.places import UserLimits
from slicewise.slurm_plugin.api.routes import Handlers, Routes
from slicewise.slurm_plugin.api.user_socket import UserSocket, user_limits
from slicewise.slurm_plugin.common.log import report

pytestmark = pytest.mark.usefixtures("clock")

USERS = UserLimits(connections=3, connections_per_uid=3)
LIMITS = HttpLimits(question_s=0.3, answer_s=0.3, body_bytes=65_536, refused=8)
PATIENT = replace(LIMITS, question_s=60.0, answer_s=60.0)
LONG = 1_000_000
DONE = {"v": 1, "ok": True}


class UidAnswer(BaseModel):
    uid: int


async def done(_request: Request, _caller: Caller) -> BaseModel:
    return DoneAnswer()


async def why(request: WhyRequest, caller: Caller) -> BaseModel:
    if request.about == "order":
        report("ordered", service="vision/chat")
    if request.about == "refuse":
        raise InvalidInputError("SW-X", "no", "hint")
    if request.about == "crash":
        raise RuntimeError("inner affairs")
    if request.about == "long":
        raise InvalidInputError("SW-X", "x" * LONG)
    return UidAnswer(uid=caller.uid)


HANDLERS: Handlers = {ViewRequest: done, DeleteRequest: done, WhyRequest: why}


def get_why(about: str) -> bytes:
    return f"GET /v1/why?about={about} HTTP/1.1\r\nHost: h\r\n\r\n".encode()


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_socket, "bound", BoundSocket)


@asynccontextmanager
async def serving(
    place: Path,
    users: UserLimits = USERS,
    limits: HttpLimits = PATIENT,
    handlers: Handlers = HANDLERS,
) -> AsyncIterator[Path]:
    server = UserSocket(place, Routes(handlers, lambda _asker, _uid: True), users, limits)
    await server.start()
    yield place
    await server.stop()


@pytest.fixture
async def path(tmp_path: Path) -> AsyncIterator[Path]:
    async with serving(tmp_path / "s.sock") as place:
        yield place


@pytest.fixture
async def hasty(tmp_path: Path) -> AsyncIterator[Path]:
    """Drops a peer that says or takes nothing for a moment."""
    async with serving(tmp_path / "hasty.sock", limits=LIMITS) as place:
        yield place


async def ask(path: Path, sent: bytes = GET_VIEW) -> Response:
    return await (await connected(path)).asks(sent)


async def busy(path: Path) -> bool:
    return "code" in (await ask(path)).said


def uids_of(monkeypatch: pytest.MonkeyPatch, *uids: int) -> None:
    """Who connects, one after the other."""
    named = iter(uids)
    monkeypatch.setattr(places, "peer_uid", lambda _wire: next(named))


async def test_one_connection_takes_one_request(path: Path) -> None:
    for _ in range(5):
        peer = await connected(path)
        assert (await peer.asks(GET_VIEW * 2)).said == DONE


async def test_the_kernel_says_who_asks(path: Path) -> None:
    assert (await ask(path, get_why("me"))).said == {"uid": os.getuid()}


@pytest.mark.parametrize(
    "header", [b"Upgrade: websocket\r\nConnection: Upgrade", b"Expect: 100-continue", b"X: \xff"]
)
async def test_headers_change_nothing(path: Path, header: bytes) -> None:
    sent = posted("/v1/service-delete", b'{"array_job_id":814}').replace(
        b"Host: h", b"Host: h\r\n" + header
    )
    peer = await connected(path)
    response = await peer.asks(sent)
    assert (response.status, response.said) == (200, DONE)


async def test_a_get_and_a_post_each_carry_their_fields(path: Path) -> None:
    for sent in (GET_VIEW, posted("/v1/service-delete", b'{"array_job_id":814}')):
        response = await ask(path, sent)
        assert (response.status, response.said) == (200, DONE)


TO_DELETE = b"POST /v1/service-delete HTTP/1.1\r\nHost: h\r\n"
MALFORMED = [
    b"",
    b"rubbish",
    b"[]",
    b"null",
    b'{"array_job_id":"one"}',
    b'{"array_job_id":1,"extra":1}',
    b"\xff\xfe{}",
    b'{"array_job_id":"' + b"x" * 60_000 + b'"}',
    b"[" * 60_000,
    b"1e999999",
]
NOWHERE = [
    b"GET /v1/drop HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v2/view HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v1/view?extra=1 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v1/why?about=" + b"x" * 97 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v1/why?" + b"about=x&" * 40 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v1/" + b"x" * 8000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    posted("/v1/view", b"{}"),
    b"CONNECT v1:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    TO_DELETE + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
]
NO_HTTP = [
    b"rubbish\n",
    b'{"v":1,"op":"view"}\n',
    b"\x16\x03\x01\x00\xee\n",
    b"GET /v1/view HTTP/9.9\r\nHost: h\r\n\r\n",
    b"GET /v1/view HTTP/1.1\r\nHost: h\r\nno header\r\n\r\n",
    b"GET /v1/view HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    b"GET /v1/view?" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    TO_DELETE + b"Content-Length: -1\r\n\r\n{}",
    TO_DELETE + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
    TO_DELETE + b"Transfer-Encoding: chunked\r\n\r\nrubbish\r\n",
]


@pytest.mark.parametrize(
    "sent", [*(posted("/v1/service-delete", one) for one in MALFORMED), *NOWHERE]
)
async def test_malformed_requests_get_an_answer(path: Path, sent: bytes) -> None:
    response = await ask(path, sent)
    assert (response.status, response.said["ok"], response.said["code"]) == (400, False, "SW-WIRE")
    assert len(response.body) < 1000
    assert (await ask(path)).said == DONE


@pytest.mark.parametrize(
    "sent", [posted("/v1/of-a-newer-version", b"{}"), posted("/v1/service-delete", b'{"newer":1}')]
)
async def test_who_asks_what_no_one_reads_here_is_told_to_use_one_version(
    path: Path, sent: bytes
) -> None:
    response = await ask(path, sent)
    assert response.said["code"] == "SW-WIRE"
    assert "Use one version of Slicewise" in response.said["hint"]


@pytest.mark.parametrize("sent", NO_HTTP)
async def test_what_is_no_http_is_refused_in_json_and_fills_no_log(
    path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    response = await ask(path, sent)
    assert (response.status, response.said["ok"], response.said["code"]) == (400, False, "SW-WIRE")
    assert caplog.text == ""
    assert (await ask(path)).said == DONE


LONG_BODY = b'{"array_job_id":1' + b" " * 65_536 + b"}"


@pytest.mark.parametrize(
    "sent",
    [
        posted("/v1/service-delete", LONG_BODY),
        posted("/v1/service-delete", b" " * 1_000_000),
        posted("/v1/service-delete", LONG_BODY)[:-1],
        TO_DELETE + b"Transfer-Encoding: chunked\r\n\r\n"
        b"1000\r\n" + b" " * 4096 + (b"\r\n1000\r\n" + b" " * 4096) * 30,
        b"GET /v1/view HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 100_000,
        GET_VIEW * 50_000,
    ],
    ids=["a body", "a long one", "without end", "in chunks", "headers", "requests"],
)
async def test_too_much_is_refused(path: Path, sent: bytes) -> None:
    peer = await connected(path)
    response = await peer.asks(sent)
    if response.status != 200:
        assert response.status in {400, 413}
        assert response.said["code"] == "SW-WIRE"
    else:
        # Of many requests the first one is answered, and no other.
        assert (sent[:12], response.said) == (GET_VIEW[:12], DONE)
    assert (await ask(path)).said == DONE


async def test_the_longest_body_is_taken(path: Path) -> None:
    body = b'{"array_job_id":1' + b" " * (65_536 - 18) + b"}"
    assert (await ask(path, posted("/v1/service-delete", body))).said == DONE
    response = await ask(path, posted("/v1/service-delete", body + b" "))
    assert (response.status, response.said["code"]) == (413, "SW-WIRE")
    assert "65536 bytes" in response.said["message"]


async def test_each_question_has_an_id_that_its_answer_and_its_events_carry(path: Path) -> None:
    with lines() as caught:
        answers = [await ask(path, get_why(about)) for about in ("order", "order", "refuse")]
    ids = [one.request_id for one in answers]
    assert "" not in ids
    assert len(set(ids)) == 3
    assert [one["request_id"] for one in caught.events("ordered")] == ids[:2]


async def test_a_refusal_names_code_and_hint(path: Path) -> None:
    response = await ask(path, get_why("refuse"))
    assert response.said == {"v": 1, "ok": False, "code": "SW-X", "message": "no", "hint": "hint"}
    assert response.status == 422


async def test_a_failure_inside_tells_nothing_and_ends_nothing(path: Path) -> None:
    with lines() as caught:
        response = await ask(path, get_why("crash"))
    assert (response.status, response.said["code"]) == (500, "SW-INTERNAL")
    assert b"inner" not in response.body
    (logged,) = caught.events("request_failed")
    assert f"request_id={logged['request_id']}." in response.said["hint"]
    assert logged["request_id"] == response.request_id != ""
    assert (await ask(path)).said == DONE


async def test_a_peer_that_goes_in_the_middle_ends_nothing_and_fills_no_log(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for sent in (b"", b"GET", posted("/v1/service-delete", b"{}")[:-1], GET_VIEW):
        peer = await connected(path)
        peer.say(sent)
        await asyncio.sleep(0.02)
        peer.close()
    await asyncio.sleep(0.05)
    assert caplog.text == ""
    assert (await ask(path)).said == DONE


async def test_too_many_connections_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path / "s.sock", limits=PATIENT) as path:
        kept = [await connected(path) for _ in range(3)]
        # Before it has asked: the daemon reads nothing of it.
        response = await (await connected(path)).reads()
        assert response is not None
        assert (response.status, response.said["code"]) == (503, "SW-BUSY")
        for peer in kept:
            assert (await peer.asks(GET_VIEW)).said == DONE


async def test_who_is_told_that_there_is_no_room_takes_none_of_it(tmp_path: Path) -> None:
    """Nor more than so many file descriptors, each for a moment."""
    async with serving(tmp_path / "s.sock", limits=replace(PATIENT, refused=4)) as path:
        kept = [await connected(path) for _ in range(3)]
        waiting = [await connected(path) for _ in range(10)]
        told = [await peer.reads() for peer in waiting]
        assert sum(one is not None and one.said["code"] == "SW-BUSY" for one in told) == 4
        assert sum(one is None for one in told) == 6
        kept[0].close()
        await asyncio.sleep(0.05)
        assert not await busy(path)


async def test_nobody_else_takes_the_reserved_connections(tmp_path: Path) -> None:
    me = os.getuid()
    for reserved_for, taken in ((frozenset({me}), 3), (frozenset({me + 1}), 2)):
        users = replace(USERS, reserved=1, reserved_for=reserved_for)
        async with serving(tmp_path / str(taken), users, PATIENT) as path:
            opened = [await connected(path) for _ in range(4)]
            await asyncio.sleep(0.05)
            said = [(await peer.asks(GET_VIEW)).said for peer in reversed(opened)]
            assert ["code" in one for one in reversed(said)] == [n >= taken for n in range(4)]


@pytest.mark.parametrize("first", ["nothing", "a part of a question", "an answer not taken"])
async def test_few_users_do_not_keep_all_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Six users with 32 each had all of the user socket, for as long as they were silent."""
    uids_of(monkeypatch, 1, 1, 2, 2, 3, 1, 1)
    users = UserLimits(connections=4, connections_per_uid=2)
    async with serving(tmp_path / "s.sock", users, PATIENT) as path:
        kept = [await connected(path) for _ in range(4)]
        for peer in kept:
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            if first == "a part of a question":
                peer.say(posted("/v1/service-delete", b"{}")[:-1])
            elif first == "an answer not taken":
                peer.say(get_why("long"))
        await asyncio.sleep(0.1)
        third = await connected(path)
        # A user with as many connections as any other cuts no user off.
        _, refused = [await connected(path) for _ in range(2)]
        response = await refused.reads()
        assert response is not None
        assert response.said["code"] == "SW-BUSY"
        assert (await third.asks(GET_VIEW)).said == DONE


async def test_the_launchers_idle_connections_make_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids_of(monkeypatch, 7, 7, 1, 2)
    users = UserLimits(3, 3, reserved=2, reserved_for=frozenset({7}))
    async with serving(tmp_path / "s.sock", users, PATIENT) as path:
        kept = [await connected(path) for _ in range(4)]
        await asyncio.sleep(0.05)
        for peer in (*kept[:2], kept[3]):
            assert (await peer.asks(GET_VIEW)).said == DONE
        assert await kept[2].reads() is None


async def test_silent_connections_of_many_uids_lock_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may have namespaces (newuidmap) has thousands of uids, each with its connections."""
    uids_of(monkeypatch, *range(100_000, 100_100))
    users = UserLimits(connections=12, connections_per_uid=4, reserved=2)
    async with serving(tmp_path / "s.sock", users, PATIENT) as path:
        silent = [await connected(path) for _ in range(30)]
        others = [await connected(path) for _ in range(3)]
        assert [(await one.asks(GET_VIEW)).said for one in others] == [DONE] * 3
        # The longest silent went, and with each connection one of them at most.
        assert await silent[0].reads() is None
        assert (await silent[-1].asks(GET_VIEW)).said == DONE


class Slow:
    """A handler that works until it may finish."""

    def __init__(self) -> None:
        self.working, self.finish = asyncio.Event(), asyncio.Event()
        self.answered = 0

    async def __call__(self, _request: Request, _uid: int) -> BaseModel:
        self.working.set()
        await self.finish.wait()
        self.answered += 1
        return DoneAnswer()


async def test_who_is_answered_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids_of(monkeypatch, 1000, 1001)
    slow = Slow()
    users = replace(USERS, connections=1)
    # However long the daemon takes, that is not the peer's matter.
    limits = replace(LIMITS, question_s=0.1, answer_s=0.1)
    async with serving(tmp_path / "s.sock", users, limits, {ViewRequest: slow}) as path:
        first = await connected(path)
        first.say(GET_VIEW)
        await slow.working.wait()
        assert await busy(path)
        await asyncio.sleep(0.3)
        slow.finish.set()
        response = await first.reads()
        assert response is not None
        assert response.said == DONE


async def test_who_asks_and_goes_keeps_the_place_while_the_daemon_works(tmp_path: Path) -> None:
    """Else one user could have any number of questions worked on."""
    slow = Slow()
    users = replace(USERS, connections_per_uid=1)
    async with serving(tmp_path / "s.sock", users, PATIENT, {ViewRequest: slow}) as path:
        first = await connected(path)
        first.say(GET_VIEW)
        await slow.working.wait()
        first.close()
        for _ in range(5):
            assert await busy(path)
        slow.finish.set()
        while await busy(path):  # noqa: ASYNC110 -- what is waited for sets no event
            await asyncio.sleep(0.01)
    assert slow.answered == 2


async def test_what_follows_a_question_is_thrown_away(tmp_path: Path) -> None:
    """Also much of it, while the daemon works."""
    slow = Slow()
    async with serving(tmp_path / "s.sock", handlers={ViewRequest: slow}) as path:
        peer = await connected(path)
        peer.say(GET_VIEW)
        await slow.working.wait()
        peer.say(b"x" * 500_000)
        await asyncio.sleep(0.1)
        slow.finish.set()
        response = await peer.reads()
        assert response is not None
        assert response.said == DONE


async def test_who_goes_in_the_middle_of_a_question_leaves_refusals_to_others(path: Path) -> None:
    for _ in range(2 * LIMITS.refused):
        peer = await connected(path)
        peer.say(TO_DELETE + b"Content-Length: 10\r\n\r\n")
        await asyncio.sleep(0.005)
        peer.close()
    # The last of them may still have their places.
    while (code := (await ask(path, b"rubbish\r\n\r\n")).said["code"]) == "SW-BUSY":  # noqa: ASYNC110 -- no event
        await asyncio.sleep(0.05)
    assert code == "SW-WIRE"


async def test_a_peer_may_close_its_half_while_the_daemon_works(tmp_path: Path) -> None:
    slow = Slow()
    async with serving(tmp_path / "s.sock", handlers={ViewRequest: slow}) as path:
        peer = await connected(path)
        peer.say(GET_VIEW)
        await slow.working.wait()
        peer.writer.write_eof()
        await asyncio.sleep(0.1)
        slow.finish.set()
        response = await peer.reads()
        assert response is not None
        assert response.said == DONE


async def test_many_questions_leave_the_program_its_turns(tmp_path: Path) -> None:
    """Else each step of a look at Slurm waits until all connections of a user are answered."""
    turn, answered_in = 0, []

    async def work(_request: Request, _uid: int) -> BaseModel:
        answered_in.append(turn)
        return DoneAnswer()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    users = UserLimits(connections=100, connections_per_uid=100)
    async with serving(tmp_path / "s.sock", users, PATIENT, {ViewRequest: work}) as path:
        counting = asyncio.create_task(count_turns())
        peers = [await connected(path) for _ in range(100)]
        for peer in peers:
            peer.say(GET_VIEW)
        for peer in peers:
            response = await peer.reads()
            assert response is not None
            assert response.said == DONE
        counting.cancel()
    assert len(answered_in) == 100
    assert len(set(answered_in)) == 100


def test_a_user_can_not_lock_out_launcher_root_and_slurm_user() -> None:
    users = user_limits(Roles(frozenset({0, 64030}), 61000))
    assert users.reserved_for == {0, 64030, 61000}
    assert 0 < users.reserved < users.connections
    assert user_socket.LIMITS.body_bytes == REQUEST_LIMIT


@pytest.mark.parametrize(
    "said", [b"", b"GET /v1/view HTTP/1.1\r\n", posted("/v1/service-delete", b"{}")[:-1]]
)
async def test_a_sleeping_peer_is_dropped(hasty: Path, said: bytes) -> None:
    peer = await connected(hasty)
    peer.say(said)
    assert await asyncio.wait_for(peer.reads(), 5) is None


async def test_a_peer_that_says_little_by_little_is_dropped(hasty: Path) -> None:
    peer = await connected(hasty)
    began_s = asyncio.get_running_loop().time()
    sent = 0
    while not peer.writer.transport.is_closing() and sent < 100:
        peer.say(b"X-A: b\r\n" if sent else b"GET /v1/view HTTP/1.1\r\n")
        sent += 1
        await asyncio.sleep(0.05)
    assert asyncio.get_running_loop().time() - began_s < 2


async def test_the_end_of_the_daemon_ends_what_it_does(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def slow(_request: Request, _uid: int) -> BaseModel:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return DoneAnswer()

    async with serving(tmp_path / "s.sock", handlers={ViewRequest: slow}) as path:
        peers = [await connected(path) for _ in range(2)]
        peers[0].say(GET_VIEW)
        await asyncio.sleep(0.05)
    assert ended.is_set()
    assert [await peer.reads() for peer in peers] == [None, None]


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "s.sock"
    place.write_text("left behind")
    async with serving(place):
        assert (await ask(place)).said == DONE
        assert place.stat().st_mode & 0o777 == 0o666
    assert not place.exists()


def test_who_sees_all() -> None:
    roles = Roles(frozenset({0, 64030}), 61000)
    assert [roles.sees_all(uid) for uid in (0, 64030, 61000, 61001)] == [True, True, True, False]
    assert not Roles(frozenset({0}), None).sees_all(61000)


def test_others_see_their_own_tenants_only() -> None:
    def service(tenant: str, user: str) -> ServiceView:
        return a_service(
            array_job_id=1,
            tenant=tenant,
            name="s",
            user=user,
            submit_s=0,
            profile="",
            cost_millislices=0,
        )

    def tenant(name: str) -> TenantView:
        return a_tenant_view(name=name, nominal_millislices=1)

    mine, colleagues, strangers = (
        service("vision", "alice"),
        service("vision", "dave"),
        service("nlp", "bob"),
    )
    view = ViewAnswer(
        observed_s=1.0,
        complete=True,
        services=(mine, colleagues, strangers),
        tenants=(tenant("vision"), tenant("nlp")),
    )
    seen = visible_to(view, "alice", frozenset({"vision"}))
    assert seen.services == (mine, colleagues)
    assert seen.tenants == (tenant("vision"),)
    assert visible_to(view, "bob", frozenset()).services == (strangers,)


@pytest.mark.parametrize("says_more", [True, False])
async def test_who_takes_no_answer_keeps_no_connection(hasty: Path, says_more: bool) -> None:
    """Else one user could take all of the daemon's file descriptors."""
    peer = await connected(hasty)
    transport = peer.reader._transport  # type: ignore[attr-defined]
    transport.pause_reading()
    peer.say(get_why("long"))
    if not says_more:
        await asyncio.sleep(0.1)
        peer.writer.write_eof()
    await asyncio.sleep(2 * LIMITS.answer_s + 1.0)
    # What had arrived; the rest went with the connection.
    transport.resume_reading()
    assert len(await peer.reader.read()) < LONG
