"""The user socket over TCP: who asks, who answers, and what a hostile network can't do."""

import asyncio
import base64
import json
import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from free_ports import free_port
from pydantic import BaseModel

from cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    Refusal,
    SlicewiseError,
    UnreachableError,
)
from cluster.rpc import remote_client
from cluster.rpc.client import DaemonClient
from cluster.rpc.messages import DoneAnswer, ViewAnswer, ViewRequest
from cluster.rpc.munge import Message
from cluster.rpc.munge_rpc import seal, unseal
from cluster.settings.file import DaemonSettings
from slurm_plugin.api import remote_socket
from slurm_plugin.api.remote_socket import RemoteSocket
from slurm_plugin.common.line_server import Peer

ME = os.getuid()
MY_NAME = pwd.getpwuid(ME).pw_name
VIEW = ViewAnswer(observed_s=1.0, complete=True, services=(), tenants=())


@dataclass
class ScriptedMunge:
    """munged as far as its rules go; ``uid`` is who encodes here."""

    uid: int = ME
    seen: set[bytes] = field(default_factory=set)
    failure: SlicewiseError | None = None

    def encode(self, payload: bytes, for_uid: int, ttl_s: int) -> bytes:
        said = [self.uid, for_uid, os.urandom(4).hex(), payload.decode("latin-1")]
        return b"MUNGE:" + base64.b64encode(json.dumps(said).encode()) + b":"

    def decode(self, credential: bytes) -> Message:
        if self.failure is not None:
            raise self.failure
        try:
            text = base64.b64decode(credential.removeprefix(b"MUNGE:").removesuffix(b":"))
            uid, for_uid, _, payload = json.loads(text)
        except ValueError:
            raise InvalidInputError("SW-MUNGE", "Invalid credential.") from None
        if for_uid != ME or credential in self.seen:
            raise InvalidInputError("SW-MUNGE", "Unauthorized or replayed.")
        self.seen.add(credential)
        return Message(payload.encode("latin-1"), uid)


@pytest.fixture
def munge(monkeypatch: pytest.MonkeyPatch) -> ScriptedMunge:
    scripted = ScriptedMunge()
    for module in (remote_socket, remote_client):
        monkeypatch.setattr(module, "Munge", lambda _socket: scripted)
    return scripted


@pytest.fixture
def own(tmp_path: Path) -> DaemonSettings:
    place = f"127.0.0.1:{free_port()}"
    return DaemonSettings(
        run_dir=tmp_path,
        slurm_user=MY_NAME,
        launcher_user=MY_NAME,
        listen=place,
        connect=place,
    )


@dataclass
class Daemon:
    settings: DaemonSettings
    answer_with: BaseModel = VIEW
    asked: list[tuple[str, Peer]] = field(default_factory=list)

    async def answer(self, line: str, peer: Peer) -> BaseModel:
        self.asked.append((line, peer))
        return self.answer_with


@pytest.fixture
async def daemon(own: DaemonSettings, munge: ScriptedMunge) -> AsyncIterator[Daemon]:
    daemon = Daemon(own)
    server = RemoteSocket(own, daemon.answer)
    await server.start()
    yield daemon
    await server.stop()


async def raw(daemon: Daemon, sent: bytes) -> bytes:
    host, _, port = daemon.settings.listen.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 23)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


def question(munge: ScriptedMunge, line: bytes = b'{"v":1,"op":"view"}') -> bytes:
    return b"".join(seal(munge, "question", "0" * 32, line, ME))  # type: ignore[arg-type]


async def test_the_daemon_learns_who_asks_from_munge_alone(daemon: Daemon, munge: ScriptedMunge):
    munge.uid = 61001
    await raw(daemon, question(munge))
    assert daemon.asked == [('{"v":1,"op":"view"}', Peer(0, 61001))]


async def test_an_answer_comes_back_whatever_its_length(daemon: Daemon):
    names = [f"{number:060}" for number in range(20_000)]
    daemon.answer_with = ViewAnswer.model_validate(
        {
            **VIEW.model_dump(),
            "tenants": [
                {"name": name, "nominal_millislices": 1, "used_millislices": 0} for name in names
            ],
        }
    )
    view = await DaemonClient(daemon.settings).view()
    assert [tenant.name for tenant in view.tenants] == names


async def test_the_answer_can_be_read_by_the_asker_alone(daemon: Daemon, munge: ScriptedMunge):
    munge.uid = 61001
    answer = await raw(daemon, question(munge))
    with pytest.raises(InvalidInputError, match="Unauthorized"):
        unseal(munge, "answer", answer)  # type: ignore[arg-type]


async def test_the_user_sockets_refusals_come_through(daemon: Daemon):
    daemon.answer_with = remote_socket.failure(InvalidInputError("SW-FORBIDDEN", "No.").refusal)
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        await DaemonClient(daemon.settings).view()


async def test_a_local_socket_goes_first(daemon: Daemon):
    daemon.settings.user_socket.touch()
    with pytest.raises(UnreachableError, match=r"on .*user\.sock"):
        await DaemonClient(daemon.settings).view()
    assert daemon.asked == []


async def test_a_second_time_a_question_is_refused(daemon: Daemon, munge: ScriptedMunge):
    once = question(munge)
    assert (await raw(daemon, once)).startswith(b"MUNGE:")
    assert json.loads(await raw(daemon, once))["code"] == "SW-MUNGE"
    assert len(daemon.asked) == 1


HOSTILE = [
    b"\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b'{"v":1,"op":"view"}\n',
    b"MUNGE:\n",
    b"MUNGE:AAAA:\n",
    b"MUNGE:" + b"\0" * 100 + b":\n",
    b"MUNGE:" + b"A" * 1_000_000 + b":\n",
    b"A" * 1_000_000,
]


@pytest.mark.parametrize("sent", HOSTILE)
async def test_what_is_no_credential_is_refused(daemon: Daemon, sent: bytes):
    assert json.loads(await raw(daemon, sent))["code"] == "SW-MUNGE"
    assert daemon.asked == []


async def test_a_credential_made_for_something_else_is_refused(
    daemon: Daemon, munge: ScriptedMunge
):
    others = munge.encode(b'{"v":1,"op":"view"}', ME, 60) + b"\n"
    answer = b"".join(seal(munge, "answer", "0" * 32, b'{"v":1,"op":"view"}', ME))  # type: ignore[arg-type]
    for sent in (others, answer):
        assert json.loads(await raw(daemon, sent))["code"] == "SW-WIRE"
    assert daemon.asked == []


async def test_a_message_is_no_longer_than_on_the_user_socket(daemon: Daemon, munge: ScriptedMunge):
    assert json.loads(await raw(daemon, question(munge, b"x" * 65_537)))["code"] == "SW-WIRE"
    assert (await raw(daemon, question(munge, b"x" * 65_536))).startswith(b"MUNGE:")


async def test_without_munged_it_says_so(daemon: Daemon, munge: ScriptedMunge):
    munge.failure = UnreachableError("SW-MUNGE", "munged does not answer.")
    assert json.loads(await raw(daemon, question(munge)))["message"] == "munged does not answer."


async def test_who_is_slow_is_dropped(daemon: Daemon, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote_socket, "_QUESTION_S", 0.1)
    assert await raw(daemon, b"MUNGE:AA") == b""


async def test_who_takes_no_answer_is_dropped(
    daemon: Daemon, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote_socket, "_SEND_S", 0.2)
    monkeypatch.setattr(remote_socket, "_CONNECTIONS_PER_ADDRESS", 1)
    daemon.answer_with = remote_socket.failure(Refusal("SW-X", "x" * 30_000_000))
    host, _, port = daemon.settings.listen.partition(":")
    _reader, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(question(munge))
    # It must have been given the long answer before others get another one.
    while not daemon.asked:  # noqa: ASYNC110 -- what is waited for sets no event
        await asyncio.sleep(0.01)
    daemon.answer_with = VIEW
    async with asyncio.timeout(20):
        while not (await raw(daemon, question(munge))).startswith(b"MUNGE:"):  # noqa: ASYNC110 -- no event
            await asyncio.sleep(0.1)
    writer.close()


async def test_one_address_does_not_take_every_connection(
    daemon: Daemon, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote_socket, "_CONNECTIONS_PER_ADDRESS", 2)
    host, _, port = daemon.settings.listen.partition(":")
    kept = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert json.loads(await raw(daemon, question(munge)))["code"] == "SW-BUSY"
    for _, writer in kept:
        writer.close()
    await asyncio.sleep(0.05)
    assert (await raw(daemon, question(munge))).startswith(b"MUNGE:")


Silent = list[asyncio.StreamWriter]


async def silent(daemon: Daemon, addresses: int, each: int) -> Silent:
    """Connections that say nothing, from so many addresses of this host."""
    host, _, port = daemon.settings.listen.partition(":")
    opened = [
        await asyncio.open_connection(host, int(port), local_addr=(f"127.0.0.{last}", 0))
        for last in range(2, 2 + addresses)
        for _ in range(each)
    ]
    await asyncio.sleep(0.05)
    return [writer for _, writer in opened]


def close(writers: Silent) -> None:
    for writer in writers:
        writer.close()


async def test_silent_connections_lock_nobody_out(daemon: Daemon, munge: ScriptedMunge):
    """300 from 20 addresses, and as many again as soon as they are cut off."""
    for _ in range(3):
        opened = await silent(daemon, 20, 15)
        assert (await raw(daemon, question(munge))).startswith(b"MUNGE:")
        close(opened)


async def test_who_is_refused_keeps_no_place(daemon: Daemon, munge: ScriptedMunge):
    """Nonsense from 20 addresses, whose connections stay open: nobody who has spoken is cut off."""
    for _ in range(3):
        opened = await silent(daemon, 20, 15)
        for writer in opened:
            writer.write(b"nonsense\n")
        await asyncio.sleep(0.1)
        assert (await raw(daemon, question(munge))).startswith(b"MUNGE:")
        close(opened)


async def test_silent_connections_from_the_launchers_host_do_not_lock_it_out(
    daemon: Daemon, munge: ScriptedMunge
):
    host, _, port = daemon.settings.listen.partition(":")
    assert (await raw(daemon, question(munge))).startswith(b"MUNGE:")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
    await asyncio.sleep(0.05)
    assert (await raw(daemon, question(munge))).startswith(b"MUNGE:")
    close([writer for _, writer in opened])


async def test_one_user_does_not_take_every_connection(
    daemon: Daemon, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    """He asks from many hosts, and takes no answer."""
    monkeypatch.setattr(remote_socket, "_CONNECTIONS_PER_UID", 2)
    daemon.answer_with = remote_socket.failure(Refusal("SW-X", "x" * 30_000_000))
    munge.uid = 61001
    opened = await silent(daemon, 2, 1)
    for writer in opened:
        writer.write(question(munge))
    while len(daemon.asked) < len(opened):  # noqa: ASYNC110 -- what is waited for sets no event
        await asyncio.sleep(0.01)
    daemon.answer_with = VIEW
    assert json.loads(await raw(daemon, question(munge)))["code"] == "SW-BUSY"
    munge.uid = 61002
    assert (await raw(daemon, question(munge))).startswith(b"MUNGE:")
    for writer in opened:
        writer.transport.abort()


async def test_one_user_does_not_take_all_places_of_his_host(daemon: Daemon, munge: ScriptedMunge):
    """He asks again and again, and takes no answer; others work on the same login node."""
    daemon.answer_with = remote_socket.failure(Refusal("SW-X", "x" * 30_000_000))
    munge.uid = 61001
    opened = await silent(daemon, 1, 16)
    for writer in opened:
        writer.write(question(munge))
    await asyncio.sleep(0.5)
    daemon.answer_with = VIEW
    munge.uid = 61002
    host, _, port = daemon.settings.listen.partition(":")
    reader, writer = await asyncio.open_connection(
        host, int(port), local_addr=("127.0.0.2", 0), limit=1 << 23
    )
    writer.write(question(munge))
    assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"MUNGE:")
    for one in (*opened, writer):
        one.transport.abort()


async def test_a_port_in_use_is_told(daemon: Daemon):
    second = RemoteSocket(daemon.settings, daemon.answer)
    with pytest.raises(SlicewiseError, match="SW-DAEMON-LISTEN"):
        await second.start()


# The client's side: somebody else listens at daemon.connect.


@asynccontextmanager
async def impostor(own: DaemonSettings, *answers: bytes) -> AsyncIterator[None]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"".join(answers))
        writer.close()

    host, _, port = own.connect[0].partition(":")
    async with await asyncio.start_server(serve, host, int(port)):
        yield


def sealed(
    munge: ScriptedMunge, nonce: str = "0" * 32, line: bytes = b'{"v":1,"ok":true}'
) -> bytes:
    return b"".join(seal(munge, "answer", nonce, line, ME))  # type: ignore[arg-type]


async def ask(own: DaemonSettings, monkeypatch: pytest.MonkeyPatch) -> DoneAnswer:
    monkeypatch.setattr(remote_client.secrets, "token_hex", lambda _: "0" * 32)
    return await DaemonClient(own)._ask(ViewRequest(), DoneAnswer)


async def test_an_answer_of_somebody_else_is_refused(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    async with impostor(own, sealed(munge)):
        assert (await ask(own, monkeypatch)).ok
    munge.uid = ME + 1
    async with impostor(own, sealed(munge)):
        with pytest.raises(OutsideError, match=f"Uid {ME + 1} answered"):
            await ask(own, monkeypatch)


@pytest.mark.parametrize("nonce", ["1" * 32, "f" * 32])
async def test_an_answer_to_another_question_is_refused(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch, nonce: str
):
    async with impostor(own, sealed(munge, nonce)):
        with pytest.raises(OutsideError, match="another request"):
            await ask(own, monkeypatch)


async def test_parts_in_another_order_or_left_out_are_no_answer(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    first, second = sealed(munge, line=b"x" * 300_000).splitlines(keepends=True)
    async with impostor(own, second, first):
        with pytest.raises(OutsideError, match="another request"):
            await ask(own, monkeypatch)
    async with impostor(own, first):
        with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
            await ask(own, monkeypatch)


async def test_an_own_question_does_not_pass_for_its_answer(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    async with impostor(own, question(munge)):
        with pytest.raises(OutsideError, match="no answer"):
            await ask(own, monkeypatch)


async def test_words_in_the_clear_are_shown_without_control_characters(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    hostile = b'{"v":1,"ok":false,"code":"X","message":"\\u001b[31mred","hint":"' + b"y" * 999
    async with impostor(own, hostile + b'"}\n'):
        with pytest.raises(InvalidInputError) as raised:
            await ask(own, monkeypatch)
    assert raised.value.refusal.code == "SW-MUNGE"
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("words", [b"220 smtp ready\n", b"\xff\xfe\n", b"x" * 2_000_000])
async def test_another_server_is_no_daemon(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch, words: bytes
):
    async with impostor(own, words):
        with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
            await ask(own, monkeypatch)


async def test_nobody_listens(own: DaemonSettings, munge: ScriptedMunge):
    with pytest.raises(UnreachableError, match=f"at {own.connect[0]}"):
        await DaemonClient(own).view()


async def test_a_host_without_slurm_user_can_not_ask(own: DaemonSettings, munge: ScriptedMunge):
    strange = own.model_copy(update={"slurm_user": "no-such-user"})
    with pytest.raises(InvalidInputError, match="SW-DAEMON-USER"):
        await DaemonClient(strange).view()
