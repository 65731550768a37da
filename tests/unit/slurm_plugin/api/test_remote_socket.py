"""Tests the user socket over TCP: identities on both sides, and a hostile network."""

import asyncio
import pwd
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from stand_ins.http_peer import GET_VIEW, Peer, Response, connected_tcp, posted
from stand_ins.remote_daemon import (
    ME,
    VIEW,
    Daemon,
    ScriptedMunge,
    question,
    scripted_munge,
    serving,
)

from slicewise.cluster.language.errors import (
    InvalidInputError,
    SlicewiseError,
    UnreachableError,
)
from slicewise.cluster.rpc.messages import REQUEST_LIMIT, DeleteRequest, ViewRequest
from slicewise.cluster.rpc.munge_rpc import SEALED_PATH, seal, unseal
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.api import remote_socket
from slicewise.slurm_plugin.api.desk import roles
from slicewise.slurm_plugin.api.remote_socket import BOUNDS, LIMITS, RemoteSocket
from slicewise.slurm_plugin.api.routes import Routes
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens

pytestmark = pytest.mark.usefixtures("clock")

MY_NAME = pwd.getpwuid(ME).pw_name


@pytest.fixture
def munge(monkeypatch: pytest.MonkeyPatch) -> ScriptedMunge:
    return scripted_munge(monkeypatch)


@pytest.fixture
def own(tmp_path: Path) -> DaemonSettings:
    place = "127.0.0.1:7443"
    return DaemonSettings(
        run_dir=tmp_path,
        slurm_user=MY_NAME,
        launcher_user=MY_NAME,
        listen=place,
        connect=place,
    )


@pytest.fixture
async def daemon(own: DaemonSettings, munge: ScriptedMunge) -> AsyncIterator[Daemon]:
    async with serving(own) as daemon:
        yield daemon


async def raw(daemon: Daemon, sent: bytes) -> Response:
    return await (await connected_tcp(daemon.settings.listen)).asks(sent)


async def code(daemon: Daemon, sent: bytes) -> str:
    response = await raw(daemon, sent)
    assert response.status != 200
    return str(response.said["code"])


async def is_answered(daemon: Daemon, munge: ScriptedMunge) -> bool:
    response = await raw(daemon, question(munge))
    return response.status == 200 and response.body.startswith(b"MUNGE:")


async def test_the_daemon_learns_who_asks_from_munge_alone(daemon: Daemon, munge: ScriptedMunge):
    munge.uid = 61001
    await raw(daemon, question(munge))
    assert daemon.asked == [(ViewRequest(), 61001)]


async def test_a_request_s_place_and_body_are_in_the_credential_alone(
    daemon: Daemon, munge: ScriptedMunge
):
    await raw(daemon, question(munge, b'POST /v1/service-delete\n{"array_job_id":814}'))
    assert daemon.asked == [(DeleteRequest(array_job_id=814), ME)]


async def test_the_answer_can_be_read_by_the_asker_alone(daemon: Daemon, munge: ScriptedMunge):
    munge.uid = 61001
    response = await raw(daemon, question(munge))
    with pytest.raises(InvalidInputError, match="Unauthorized"):
        unseal(munge, "answer", response.body)  # type: ignore[arg-type]


async def test_a_second_time_a_question_is_refused(daemon: Daemon, munge: ScriptedMunge):
    once = question(munge)
    assert (await raw(daemon, once)).status == 200
    assert await code(daemon, once) == "SW-MUNGE"
    assert len(daemon.asked) == 1


NO_CREDENTIAL = [
    b"",
    b"\n",
    b'{"array_job_id":814}\n',
    b"MUNGE:\n",
    b"MUNGE:AAAA:\n",
    b"MUNGE:AAAA:",
    b"MUNGE:" + b"\0" * 100 + b":\n",
    b"MUNGE:" + b"A" * 100_000 + b":\n",
    b"A" * 100_000,
]
HOSTILE = [
    *(posted(SEALED_PATH, body) for body in NO_CREDENTIAL),
    b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    GET_VIEW,
    posted("/v1/view", b"MUNGE:AAAA:\n"),
    b"rubbish\n",
    b'{"v":1,"op":"view"}\n',
    b"MUNGE:AAAA:\n",
    b"\x16\x03\x01\x00\xee\n",
]
TOO_LONG = [
    posted(SEALED_PATH, b"MUNGE:" + b"A" * 1_000_000 + b":\n"),
    posted(SEALED_PATH, b"A" * 131_073),
    b"A" * 1_000_000,
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
]


@pytest.mark.parametrize("sent", HOSTILE)
async def test_what_is_no_credential_is_refused(daemon: Daemon, munge: ScriptedMunge, sent: bytes):
    # What does not look like one is not shown to munged.
    head, _, body = sent.partition(b"\r\n\r\n")
    looks_so = body[:6] == b"MUNGE:" and body[-1:] == b"\n" and b"\0" not in body
    looks_so = looks_so and SEALED_PATH.encode() in head
    munge.failure = None if looks_so else AssertionError("munged was asked")  # type: ignore[assignment]
    assert await code(daemon, sent) == "SW-MUNGE"
    assert daemon.asked == []


@pytest.mark.parametrize("sent", TOO_LONG)
async def test_what_is_too_long_is_refused(daemon: Daemon, sent: bytes):
    assert await code(daemon, sent) in {"SW-WIRE", "SW-MUNGE"}
    assert daemon.asked == []


@pytest.mark.parametrize("hostile", [HOSTILE, [b'{"v":1,"op":"view"}\n'] * 3])
async def test_what_is_refused_is_logged_once_in_a_while(
    daemon: Daemon, caplog: pytest.LogCaptureFixture, hostile: list[bytes]
):
    for sent in hostile:
        await raw(daemon, sent)
    assert caplog.text.count("credential_refused") == 1
    assert len(caplog.records) == 1


async def test_a_credential_made_for_something_else_is_refused(
    daemon: Daemon, munge: ScriptedMunge
):
    others = munge.encode(b"GET /v1/view\n", ME, 60) + b"\n"
    answer = b"".join(seal(munge, "answer", "0" * 32, b"GET /v1/view\n", ME))  # type: ignore[arg-type]
    for sent in (others, answer):
        assert await code(daemon, posted(SEALED_PATH, sent)) == "SW-WIRE"
    assert daemon.asked == []


async def test_a_message_is_no_longer_than_on_the_user_socket(daemon: Daemon, munge: ScriptedMunge):
    place = b"POST /v1/service-delete\n"
    assert await code(daemon, question(munge, place + b"x" * (REQUEST_LIMIT + 1))) == "SW-WIRE"
    assert (await raw(daemon, question(munge, place + b"x" * REQUEST_LIMIT))).status == 200


async def test_without_munged_it_says_so(daemon: Daemon, munge: ScriptedMunge):
    munge.failure = UnreachableError("SW-MUNGE", "munged does not answer.")
    response = await raw(daemon, question(munge))
    assert (response.status, response.said["message"]) == (503, "munged does not answer.")


@pytest.mark.parametrize("said", [b"", b"POST /v1/sea", posted(SEALED_PATH, b"MUNGE:AA")[:-1]])
async def test_who_is_slow_is_dropped(own: DaemonSettings, munge: ScriptedMunge, said: bytes):
    async with serving(own, limits=replace(LIMITS, question_s=0.1)) as daemon:
        peer = await connected_tcp(daemon.settings.listen)
        peer.say(said)
        assert await asyncio.wait_for(peer.reads(), 2) is None


LONG = InvalidInputError("SW-X", "x" * 30_000_000)


async def unread(daemon: Daemon, sent: bytes, local: str = "127.0.0.1") -> Peer:
    """Who asks, and reads no answer."""
    peer = await connected_tcp(daemon.settings.listen, local)
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    peer.say(sent)
    return peer


async def test_who_takes_no_answer_is_dropped(own: DaemonSettings, munge: ScriptedMunge):
    bounds, limits = replace(BOUNDS, per_host=1), replace(LIMITS, answer_s=0.2)
    async with serving(own, bounds, limits) as daemon:
        daemon.answer_with = LONG
        peer = await unread(daemon, question(munge))
        # It must have been given the long answer before others get another one.
        while not daemon.asked:  # noqa: ASYNC110 -- what is waited for sets no event
            await asyncio.sleep(0.01)
        daemon.answer_with = VIEW
        async with asyncio.timeout(20):
            while not await is_answered(daemon, munge):  # noqa: ASYNC110 -- no event
                await asyncio.sleep(0.1)
        peer.close()


async def test_one_address_does_not_take_every_connection(
    own: DaemonSettings, munge: ScriptedMunge
):
    async with serving(own, replace(BOUNDS, per_host=2)) as daemon:
        kept = [await connected_tcp(daemon.settings.listen) for _ in range(2)]
        await asyncio.sleep(0.05)
        response = await raw(daemon, question(munge))
        assert (response.status, response.said["code"]) == (503, "SW-BUSY")
        close(kept)
        await asyncio.sleep(0.05)
        assert await is_answered(daemon, munge)


async def silent(daemon: Daemon, addresses: int, each: int) -> list[Peer]:
    """Connections that say nothing, from so many addresses of this host."""
    opened = [
        await connected_tcp(daemon.settings.listen, f"127.0.0.{last}")
        for last in range(2, 2 + addresses)
        for _ in range(each)
    ]
    await asyncio.sleep(0.05)
    return opened


def close(peers: list[Peer]) -> None:
    for peer in peers:
        peer.close()


async def test_silent_connections_lock_nobody_out(daemon: Daemon, munge: ScriptedMunge):
    """300 from 20 addresses, and as many again as soon as they are cut off."""
    for _ in range(3):
        opened = await silent(daemon, 20, 15)
        assert await is_answered(daemon, munge)
        close(opened)


@pytest.mark.parametrize("sent", [b"nonsense\n", posted(SEALED_PATH, b"nonsense")])
async def test_who_is_refused_keeps_no_place(daemon: Daemon, munge: ScriptedMunge, sent: bytes):
    """Nonsense from 20 addresses, whose connections stay open: clients that have asked stay."""
    for _ in range(3):
        opened = await silent(daemon, 20, 15)
        for peer in opened:
            peer.say(sent)
        await asyncio.sleep(0.1)
        assert await is_answered(daemon, munge)
        close(opened)


async def test_silent_connections_from_the_launchers_host_do_not_lock_it_out(
    daemon: Daemon, munge: ScriptedMunge
):
    assert await is_answered(daemon, munge)
    opened = [await connected_tcp(daemon.settings.listen) for _ in range(100)]
    await asyncio.sleep(0.05)
    assert await is_answered(daemon, munge)
    close(opened)


async def test_one_user_does_not_take_every_connection(
    daemon: Daemon, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    """He asks from many hosts, and takes no answer."""
    monkeypatch.setattr(remote_socket, "_CONNECTIONS_PER_UID", 2)
    daemon.answer_with = LONG
    munge.uid = 61001
    opened = [await unread(daemon, question(munge), f"127.0.0.{last}") for last in (2, 3)]
    while len(daemon.asked) < len(opened):  # noqa: ASYNC110 -- what is waited for sets no event
        await asyncio.sleep(0.01)
    daemon.answer_with = VIEW
    assert await code(daemon, question(munge)) == "SW-BUSY"
    munge.uid = 61002
    assert await is_answered(daemon, munge)
    close(opened)


async def test_one_user_does_not_take_all_places_of_his_host(daemon: Daemon, munge: ScriptedMunge):
    """He asks again and again, and takes no answer; others work on the same login node."""
    daemon.answer_with = LONG
    munge.uid = 61001
    opened = [await unread(daemon, question(munge), "127.0.0.2") for _ in range(16)]
    await asyncio.sleep(0.5)
    daemon.answer_with = VIEW
    munge.uid = 61002
    another = await connected_tcp(daemon.settings.listen, "127.0.0.2")
    answered = await another.asks(question(munge))
    assert answered.body.startswith(b"MUNGE:")
    assert answered.request_id
    close([*opened, another])


async def test_a_port_in_use_is_told(daemon: Daemon):
    routes, who = Routes({}, lambda _, __: True), roles(daemon.settings)
    second = RemoteSocket(daemon.settings, routes, who, SlurmTokens(None))
    with pytest.raises(SlicewiseError, match="SW-SETTINGS"):
        await second.start()
