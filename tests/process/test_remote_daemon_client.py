"""Tests the user socket over TCP: identities on both sides, and a hostile network."""

import asyncio
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, cycle
from pathlib import Path

import pytest
from free_ports import free_port
from stand_ins.remote_daemon import (
    ME,
    VIEW,
    Daemon,
    ScriptedMunge,
    credential,
    scripted_munge,
    serving,
)
from waiting import PATIENCE_S

from slicewise.cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    UnreachableError,
)
from slicewise.cluster.rpc import client, remote_client
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.messages import DeleteRequest, ViewAnswer, ViewRequest
from slicewise.cluster.rpc.munge_rpc import seal
from slicewise.cluster.settings.file import DaemonSettings

MY_NAME = pwd.getpwuid(ME).pw_name


@pytest.fixture
def munge(monkeypatch: pytest.MonkeyPatch) -> ScriptedMunge:
    return scripted_munge(monkeypatch)


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


@pytest.fixture
async def daemon(own: DaemonSettings, munge: ScriptedMunge) -> AsyncIterator[Daemon]:
    async with serving(own) as daemon:
        yield daemon


async def test_an_answer_comes_back_whatever_its_length(daemon: Daemon):
    names = [f"{number:060}" for number in range(20_000)]
    daemon.answer_with = ViewAnswer.model_validate(
        {
            **VIEW.model_dump(),
            "tenants": [
                {
                    "name": name,
                    "nominal_millislices": 1,
                    "in_use_millislices": 0,
                    "own_in_use_millislices": 0,
                }
                for name in names
            ],
        }
    )
    view = await DaemonClient(daemon.settings).ask(ViewRequest())
    assert [tenant.name for tenant in view.tenants] == names


async def test_the_user_sockets_refusals_come_through(daemon: Daemon):
    daemon.answer_with = InvalidInputError("SW-FORBIDDEN", "No.")
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        await DaemonClient(daemon.settings).ask(ViewRequest())


async def test_a_local_socket_goes_first(daemon: Daemon):
    daemon.settings.user_socket.touch()
    with pytest.raises(UnreachableError, match=r"on .*user\.sock"):
        await DaemonClient(daemon.settings).ask(ViewRequest())
    assert daemon.asked == []


# The client's side: another process listens at daemon.connect.


@asynccontextmanager
async def impostor(
    own: DaemonSettings, *answers: bytes, status: str = "200 OK"
) -> AsyncIterator[None]:
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode() if status else b""

    async def serve(principal: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await principal.readuntil(b"\r\n\r\nMUNGE:")
        await principal.readline()
        writer.write(head + b"".join(answers))
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
    return await DaemonClient(own).ask(DeleteRequest(array_job_id=814))


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
        with pytest.raises(UnreachableError, match="SW-DAEMON-UNSURE"):
            await ask(own, monkeypatch)


async def test_an_own_question_does_not_pass_for_its_answer(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    async with impostor(own, credential(munge)):
        with pytest.raises(OutsideError, match="no answer"):
            await ask(own, monkeypatch)


async def test_words_in_the_clear_are_shown_without_control_characters(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    hostile = b'{"v":1,"ok":false,"code":"X","message":"\\u001b[31mred","hint":"' + b"y" * 999
    async with impostor(own, hostile + b'"}\n', status="400 Bad Request"):
        with pytest.raises(InvalidInputError) as raised:
            await ask(own, monkeypatch)
    assert raised.value.refusal.code == "SW-MUNGE"
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("words", [b"220 smtp ready\n", b"\xff\xfe\n", b"x" * 2_000_000])
async def test_another_server_is_no_daemon(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch, words: bytes
):
    for status in ("", "200 OK", "500 Oh"):
        async with impostor(own, words, status=status):
            with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
                await ask(own, monkeypatch)


async def test_a_drip_of_bytes_ends_at_the_deadline(
    own: DaemonSettings, munge: ScriptedMunge, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client, "DEADLINE_S", 0.5)

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for byte in chain(b"HTTP/1.1 200 OK\r\n", cycle(b"X: y\r\n")):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()

    host, _, port = own.connect[0].partition(":")
    async with await asyncio.start_server(serve, host, int(port)):
        with pytest.raises(UnreachableError, match=r"no answer within 0\.5 s"):
            await asyncio.wait_for(ask(own, monkeypatch), PATIENCE_S)


async def test_nobody_listens(own: DaemonSettings, munge: ScriptedMunge):
    with pytest.raises(UnreachableError, match=f"at {own.connect[0]}"):
        await DaemonClient(own).ask(ViewRequest())


async def test_a_host_without_slurm_user_can_not_ask(own: DaemonSettings, munge: ScriptedMunge):
    strange = own.model_copy(update={"slurm_user": "no-such-user"})
    with pytest.raises(InvalidInputError, match="SW-USER"):
        await DaemonClient(strange).ask(ViewRequest())
