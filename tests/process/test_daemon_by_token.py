"""Commands of hosts without munge: the daemon's https, known by tokens of Slurm."""

import asyncio
import logging
import os
import pwd
import ssl
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import jwt
import pytest
from free_ports import free_port
from pydantic import ValidationError
from stand_ins.http_peer import GET_VIEW, Peer, Response, posted
from stand_ins.remote_daemon import ME, VIEW, Daemon, serving

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.rpc import token_client
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.messages import REQUEST_LIMIT, DeleteRequest, ViewAnswer, ViewRequest
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.api.remote_socket import BOUNDS, LIMITS

MY_NAME = pwd.getpwuid(ME).pw_name
KEY = bytes(range(32))


def certificate(folder: Path, name: str = "IP:127.0.0.1") -> Path:
    """A self-signed certificate for that name, with its key."""
    file = folder / "daemon.pem"
    words = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 9"
    parts = (folder / "key", folder / "certificate")
    more = (
        "-subj",
        "/CN=daemon",
        "-addext",
        f"subjectAltName={name}",
        "-keyout",
        parts[0],
        "-out",
        parts[1],
    )
    subprocess.run((*words.split(), *more), check=True, capture_output=True)
    file.write_text("".join(part.read_text() for part in parts))
    return file


def signed(key: bytes = KEY, **claims: object) -> str:
    now_s = int(time.time())
    known = {"iat": now_s, "exp": now_s + 300, "sun": MY_NAME} | claims
    return jwt.encode({name: one for name, one in known.items() if one is not None}, key, "HS256")


@pytest.fixture
def own(tmp_path: Path) -> DaemonSettings:
    (tmp_path / "jwt_hs256.key").write_bytes(KEY)
    place = f"127.0.0.1:{free_port()}"
    return DaemonSettings(
        run_dir=tmp_path,
        slurm_user=MY_NAME,
        launcher_user=MY_NAME,
        listen=place,
        connect=place,
        certificate=certificate(tmp_path),
        certificate_authority=tmp_path / "certificate",
        slurm_jwt_key=tmp_path / "jwt_hs256.key",
    )


@pytest.fixture
async def daemon(own: DaemonSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Daemon]:
    monkeypatch.setenv("SLURM_JWT", signed())
    async with serving(own) as daemon:
        yield daemon


async def asked(daemon: Daemon) -> ViewAnswer:
    return await DaemonClient(daemon.settings).ask(ViewRequest())


async def connected(daemon: Daemon, local: str = "127.0.0.1") -> Peer:
    host, _, port = daemon.settings.listen.partition(":")
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    streams = await asyncio.open_connection(host, int(port), ssl=anybody, local_addr=(local, 0))
    return Peer(*streams)


def with_token(token: str, request: bytes = GET_VIEW) -> bytes:
    return request.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {token}\r\n\r\n".encode(), 1)


async def answer(daemon: Daemon, sent: bytes) -> Response:
    return await (await connected(daemon)).asks(sent)


async def test_the_token_says_who_asks(daemon: Daemon):
    assert await asked(daemon) == VIEW
    assert daemon.asked == [(ViewRequest(), ME)]
    root = await answer(daemon, with_token(signed(sun="root")))
    assert (root.status, root.request_id != "", daemon.asked[-1][1]) == (200, True, 0)


async def test_changes_and_refusals_come_through(daemon: Daemon):
    daemon.answer_with = InvalidInputError("SW-FORBIDDEN", "No.")
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        await DaemonClient(daemon.settings).ask(DeleteRequest(array_job_id=814))
    assert daemon.asked == [(DeleteRequest(array_job_id=814), ME)]


async def test_an_answer_comes_back_whatever_its_length(daemon: Daemon):
    one = {"nominal_millislices": 1, "in_use_millislices": 0, "own_in_use_millislices": 0}
    names = [f"{number:060}" for number in range(20_000)]
    tenants = [{"name": name, **one} for name in names]
    daemon.answer_with = ViewAnswer.model_validate({**VIEW.model_dump(), "tenants": tenants})
    assert [tenant.name for tenant in (await asked(daemon)).tenants] == names


DAY_S = 86_400
REFUSED = {
    "another key": signed(KEY[::-1]),
    "no algorithm": jwt.encode({"sun": "root", "iat": 1, "exp": 2**40}, None, "none"),
    "ended": signed(exp=1),
    "no end": signed(exp=None),
    "no beginning": signed(iat=None),
    "a beginning that is none": signed(iat="today"),
    "too long": signed(exp=int(time.time()) + 2 * DAY_S),
    "for ever": signed(exp=2**63 - 1),
    "not begun": signed(iat=int(time.time()) + 9 * DAY_S, exp=int(time.time()) + 10 * DAY_S),
    "a long end as text": signed(exp=str(2**40)),
    "nobody": signed(sun="no-such-user"),
    "a name that is none": signed(sun="ro\0ot"),
    "another claim": signed(sun=None, username="root"),
    "nothing": "",
    "long": "a" * 5000,
}


@pytest.mark.parametrize("why", REFUSED)
async def test_every_other_token_is_refused(
    daemon: Daemon, why: str, caplog: pytest.LogCaptureFixture
):
    token = REFUSED[why]
    refused = await answer(daemon, with_token(token))
    assert (refused.status, refused.said["code"]) == (401, "SW-TOKEN")
    assert daemon.asked == []
    assert caplog.text.count("credential_refused") == 1
    assert not token or token not in caplog.text


async def test_without_one_token_nothing_is_answered(daemon: Daemon):
    twice = with_token(signed(), with_token(signed()))
    other = GET_VIEW.replace(b"\r\n\r\n", b"\r\nAuthorization: Basic cm9vdDo=\r\n\r\n")
    for sent in (GET_VIEW, twice, other, b"rubbish\r\n\r\n"):
        refused = await answer(daemon, sent)
        assert refused.said["code"] == "SW-TOKEN"
    assert daemon.asked == []


async def test_what_is_too_long_is_refused(daemon: Daemon):
    body = posted("/v1/service-delete", b"x" * (REQUEST_LIMIT + 1))
    assert (await answer(daemon, with_token(signed(), body))).said["code"] == "SW-WIRE"
    many = b"GET /v1/view HTTP/1.1\r\n" + b"X: y\r\n" * 100_000
    assert (await answer(daemon, many)).said["code"] in {"SW-WIRE", "SW-TOKEN"}
    assert daemon.asked == []


# Who the daemon is


async def test_a_daemon_that_is_not_believed_gets_no_token(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[str] = []
    monkeypatch.setattr(token_client._tokens, "token", lambda _: sent.append("token") or "a.b.c")
    other = tmp_path / "other"
    other.mkdir()
    certificate(other)
    for authority, why in (
        (other / "certificate", "self-signed certificate"),
        (None, "self-signed certificate"),
    ):
        strange = daemon.settings.model_copy(update={"certificate_authority": authority})
        with pytest.raises(UnreachableError, match=f"not to be believed here .*{why}"):
            await DaemonClient(strange).ask(ViewRequest())
    assert daemon.asked == []
    for name, text in (("none", None), ("empty", ""), ("rubbish", "x")):
        file = tmp_path / name
        if text is not None:
            file.write_text(text)
        strange = daemon.settings.model_copy(update={"certificate_authority": file})
        with pytest.raises(SlicewiseError, match="SW-SETTINGS"):
            await DaemonClient(strange).ask(ViewRequest())


async def test_a_certificate_of_another_host_is_not_believed(
    own: DaemonSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_JWT", signed())
    certificate(tmp_path, "DNS:head.example.org")
    async with serving(own) as daemon:
        with pytest.raises(UnreachableError, match="mismatch"):
            await asked(daemon)


async def test_a_new_authority_holds_at_once(daemon: Daemon, tmp_path: Path):
    authority = tmp_path / "authority"
    strange = daemon.settings.model_copy(update={"certificate_authority": authority})
    own = tmp_path / "certificate"
    (other := tmp_path / "other").mkdir()
    certificate(other)
    authority.write_text((other / "certificate").read_text())
    with pytest.raises(UnreachableError, match="not to be believed"):
        await DaemonClient(strange).ask(ViewRequest())
    authority.write_text(own.read_text())
    assert await DaemonClient(strange).ask(ViewRequest()) == VIEW


@pytest.mark.parametrize("text", [None, "", "-----BEGIN CERTIFICATE-----\nx\n"])
async def test_a_daemon_without_its_certificate_says_so(own: DaemonSettings, text: str | None):
    assert own.certificate is not None
    own.certificate.unlink()
    if text is not None:
        own.certificate.write_text(text)
    with pytest.raises(SlicewiseError, match=r"daemon\.certificate: .*SW-SETTINGS"):
        async with serving(own):
            pass


def test_a_certificate_needs_the_key_of_tokens():
    with pytest.raises(ValidationError, match="slurm_jwt_key"):
        DaemonSettings(certificate=Path("/x.pem"))


# A hostile network


async def silent(daemon: Daemon, addresses: int, each: int) -> list[Peer]:
    """Connections that begin no handshake, from so many addresses of this host."""
    host, _, port = daemon.settings.listen.partition(":")
    return [
        Peer(*await asyncio.open_connection(host, int(port), local_addr=(f"127.0.0.{last}", 0)))
        for last in range(2, 2 + addresses)
        for _ in range(each)
    ]


async def test_silent_connections_lock_nobody_out(daemon: Daemon):
    """300 from 20 addresses without a handshake, and as many again."""
    for _ in range(3):
        opened = await silent(daemon, 20, 15)
        assert await asked(daemon) == VIEW
        for peer in opened:
            peer.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"])
async def test_who_makes_no_handshake_is_dropped(own: DaemonSettings, said: bytes):
    async with serving(own, limits=replace(LIMITS, question_s=0.3)) as daemon:
        (peer,) = await silent(daemon, 1, 1)
        peer.say(said)
        # What is no TLS may get an alert.
        assert b"HTTP" not in await asyncio.wait_for(peer._all(), 30)


async def test_who_asks_slowly_behind_a_handshake_is_dropped(own: DaemonSettings):
    async with serving(own, limits=replace(LIMITS, question_s=1.0)) as daemon:
        peer = await connected(daemon)
        peer.say(b"GET /v1/vi")
        assert await peer.reads() is None


async def test_more_than_a_host_may_have_are_cut_off(own: DaemonSettings):
    bounds = replace(BOUNDS, per_host=2, grace_s=60.0)
    limits = replace(LIMITS, question_s=60.0)
    async with serving(own, bounds, limits) as daemon:
        kept = await silent(daemon, 1, 2)
        (third,) = await silent(daemon, 1, 1)
        assert await asyncio.wait_for(third._all(), 30) == b""
        for peer in kept:
            peer.close()

        async def is_answered() -> bool:
            try:
                peer = await connected(daemon, "127.0.0.2")
            except OSError:
                return False
            return (await peer.asks(with_token(signed()))).status == 200

        async with asyncio.timeout(60):
            while not await is_answered():  # noqa: ASYNC110 -- no event
                await asyncio.sleep(0.05)


async def test_who_goes_in_the_middle_leaves_nothing(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    for peer in await silent(daemon, 4, 4):
        peer.say(b"\x16\x03\x01")
        peer.close()
    for _ in range(4):
        peer = await connected(daemon)
        peer.say(with_token(signed()))
        peer.close()
    assert await asked(daemon) == VIEW
    assert caplog.records == []


# The command's own token


def scontrol(folder: Path, script: str) -> None:
    program = folder / "bin" / "scontrol"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs of Slurm's, which come first; and no token as yet."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(token_client, "_tokens", token_client._OwnTokens())
    return tmp_path


@pytest.mark.parametrize("variable", [None, "daemon"])
async def test_scontrol_makes_one_token_for_many_questions(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
):
    if variable is None:
        monkeypatch.delenv("SLURM_JWT")
    else:
        monkeypatch.setenv("SLURM_JWT", variable)
    scontrol(path, f'echo "$@ $SLURM_JWT" >> {path}/asked; echo SLURM_JWT={signed()}')
    for _ in range(3):
        assert await asked(daemon) == VIEW
    assert (path / "asked").read_text() == "token lifespan=300 \n"


async def test_a_token_that_is_refused_is_not_used_again(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLURM_JWT")
    scontrol(path, f"echo SLURM_JWT={signed(KEY[::-1])}")
    with pytest.raises(InvalidInputError, match="SW-TOKEN"):
        await asked(daemon)
    scontrol(path, f"echo SLURM_JWT={signed()}")
    assert await asked(daemon) == VIEW


async def test_a_token_is_renewed_before_its_end(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLURM_JWT")
    monkeypatch.setattr(token_client, "_LIFESPAN_S", 0)
    scontrol(path, f"echo x >> {path}/asked; echo SLURM_JWT={signed()}")
    for _ in range(2):
        await asked(daemon)
    assert (path / "asked").read_text() == "x\nx\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'scontrol: error: \033[31mAccess denied' >&2; exit 1", r"Access denied"),
        ("echo SLURM_JWT=x", "made none"),
        ("echo 'SLURM_JWT=a.b.c\r\nX: y'", "made none"),
    ],
)
async def test_who_gets_no_token_is_told_why(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
):
    monkeypatch.delenv("SLURM_JWT")
    scontrol(path, script)
    with pytest.raises(InvalidInputError, match=f"{why}.*SW-TOKEN") as raised:
        await asked(daemon)
    assert "\033" not in str(raised.value)
    assert "a.b.c" not in str(raised.value)


async def test_a_host_without_slurm_and_token_says_so(
    daemon: Daemon, path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLURM_JWT")
    monkeypatch.setenv("PATH", str(path))
    with pytest.raises(InvalidInputError, match="scontrol can't be run"):
        await asked(daemon)


async def test_the_place_is_free_again_after_each_answer(own: DaemonSettings):
    async with serving(own, replace(BOUNDS, per_host=1)) as daemon:
        for _ in range(20):

            async def answered() -> bool:
                try:
                    return (await answer(daemon, with_token(signed()))).status == 200
                except OSError:
                    return False

            async with asyncio.timeout(60):
                while not await answered():  # noqa: ASYNC110 -- no event
                    await asyncio.sleep(0.02)
        assert len(daemon.asked) == 20
