"""The daemon's socket, seen from a client: answers, refusals, silence."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cluster.daemon_client import DaemonClient
from cluster.errors import InvalidInputError, OutsideError, UnreachableError
from cluster.settings import DaemonSettings

Ask = Callable[[DaemonClient], Awaitable[object]]


@asynccontextmanager
async def daemon(path: Path, answer: bytes) -> AsyncIterator[list[bytes]]:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield asked


async def ask(tmp_path: Path, answer: bytes, call: Ask) -> tuple[object, bytes]:
    path = tmp_path / "user.sock"
    async with daemon(path, answer) as asked:
        return await call(DaemonClient(DaemonSettings(run_dir=tmp_path))), asked[0]


async def test_a_wish_names_its_slots_in_order(tmp_path: Path):
    answer, line = await ask(
        tmp_path, b'{"v":1,"released":[2]}\n', lambda c: c.wish(814, frozenset({2, 0}), "n", 0.5)
    )
    assert line == b'{"v":1,"op":"wish","array_job_id":814,"run":[0,2],"note":"n","urgency":0.5}\n'
    assert answer.released == (2,)  # type: ignore[attr-defined]


async def test_a_refusal_keeps_its_code_and_hint(tmp_path: Path):
    failure = b'{"v":1,"ok":false,"code":"SW-FORBIDDEN","message":"No.","hint":"Ask."}\n'
    with pytest.raises(InvalidInputError, match=r"No\. Ask\. \[SW-FORBIDDEN\]"):
        await ask(tmp_path, failure, lambda c: c.delete(814))


async def test_a_refused_check_is_an_error(tmp_path: Path):
    refusal = b'{"v":1,"action":"refuse","code":"SW-QUOTA-NONE","message":"No quota."}\n'
    with pytest.raises(InvalidInputError, match="SW-QUOTA-NONE"):
        await ask(tmp_path, refusal, lambda c: c.check("guest", ("#SLICEWISE name=a",)))


async def test_an_admitted_check_is_silent(tmp_path: Path):
    answer, _ = await ask(
        tmp_path, b'{"v":1,"action":"admit","hold":true}\n', lambda c: c.check("vision", ())
    )
    assert answer is None


@pytest.mark.parametrize("answer", [b"hello\n", b'{"v":2}\n', b'{"v":1,"services":3}\n'])
async def test_nonsense_is_no_view(tmp_path: Path, answer: bytes):
    with pytest.raises(OutsideError, match="SW-WIRE"):
        await ask(tmp_path, answer, lambda c: c.view())


async def test_a_daemon_that_hangs_up_or_is_not_there(tmp_path: Path):
    with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
        await ask(tmp_path, b"", lambda c: c.view())
    with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
        await DaemonClient(DaemonSettings(run_dir=tmp_path / "none")).view()


FAILURES = [
    (TimeoutError(), "no answer within 15 s"),
    (ConnectionRefusedError(111, "Connect call failed"), "nobody listens there"),
    (FileNotFoundError(2, "x"), "nobody listens there"),
    (socket.gaierror(socket.EAI_NONAME, "x"), "its host name can't be resolved"),
    (UnicodeError("label empty or too long"), "its host name can't be resolved"),
    (ValueError("Separator is not found"), "its answer is too long"),
    (OSError(113, "Connect call failed"), "No route to host"),
    (OSError("Multiple exceptions"), "it can't be reached"),
]


@pytest.mark.parametrize(("error", "words"), FAILURES)
async def test_why_nobody_answers_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
):
    async def fail(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(DaemonClient, "_send", fail)
    with pytest.raises(UnreachableError) as raised:
        await DaemonClient(DaemonSettings(run_dir=Path("/nowhere"))).status()
    place = "on /nowhere/user.sock"
    assert raised.value.refusal.message == (
        f"The slicewise daemon does not answer {place}: {words}."
    )


@pytest.mark.parametrize("name", ["x" * 65, "\udcff"])
async def test_a_name_that_no_request_can_hold_is_refused_before_it_is_sent(name: str):
    nowhere = DaemonClient(DaemonSettings(run_dir=Path("/nowhere")))
    for call in (nowhere.why, nowhere.explain, nowhere.balance):
        with pytest.raises(InvalidInputError, match="SW-WIRE"):
            await call(name)
