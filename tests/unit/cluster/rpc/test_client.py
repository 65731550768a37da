"""The daemon's socket, seen from a client: answers, refusals, silence."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cluster.language.errors import InvalidInputError, OutsideError, UnreachableError
from cluster.rpc.client import DaemonClient
from cluster.rpc.key_messages import GrantsAnswer
from cluster.rpc.messages import SubmitAnswer
from cluster.settings.file import DaemonSettings

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


async def test_the_keys_of_a_large_site_are_read(tmp_path: Path):
    grants = GrantsAnswer(tenants={f"{key:064x}": "language-models" for key in range(50_000)})
    line = grants.model_dump_json().encode() + b"\n"
    answer, _ = await ask(tmp_path, line, lambda client: client.grants())
    assert answer == grants


async def test_a_refused_check_is_an_error(tmp_path: Path):
    refusal = b'{"v":1,"action":"refuse","code":"SW-QUOTA-NONE","message":"No quota."}\n'
    with pytest.raises(InvalidInputError, match="SW-QUOTA-NONE"):
        await ask(tmp_path, refusal, lambda c: c.check("guest", ("#SLICEWISE name=a",)))


async def test_an_admitted_check_says_what_it_would_get(tmp_path: Path):
    answer, _ = await ask(
        tmp_path, b'{"v":1,"action":"admit","gres":"gpu:1g:1"}\n', lambda c: c.check("vision", ())
    )
    assert answer == SubmitAnswer(action="admit", gres="gpu:1g:1")


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
    (ConnectionRefusedError(111, "Connect call failed"), "nothing listens there"),
    (FileNotFoundError(2, "x"), "nothing listens there"),
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


# Of a pair


STANDBY = '{"v":1,"ok":false,"code":"SW-DAEMON-STANDBY","message":"No.","hint":""}'
DONE = '{"v":1,"ok":true}'


class Pair:
    """What each daemon answers ("" is one that is down), and who was asked."""

    def __init__(self, run_dir: Path, **answers: str) -> None:
        self.answers = answers
        self.asked: list[str] = []
        addresses = [f"{name}:6830" for name in answers if name != "here"]
        settings = DaemonSettings.model_validate({"run_dir": run_dir, "connect": addresses})
        self.client = DaemonClient(settings)
        self.client._send = self._send  # type: ignore[method-assign]

    async def _send(self, place: str, line: bytes) -> bytes:
        name = place.removesuffix(":6830") or "here"
        self.asked.append(name)
        if not self.answers[name]:
            raise ConnectionRefusedError
        return self.answers[name].encode()

    async def delete(self) -> list[str]:
        """Who was asked on the way."""
        self.asked.clear()
        await self.client.delete(814)
        return list(self.asked)


def with_socket(tmp_path: Path) -> Path:
    (tmp_path / "user.sock").touch()
    return tmp_path


async def test_who_stands_by_sends_on_to_the_other_who_is_asked_first_from_then_on(tmp_path: Path):
    pair = Pair(with_socket(tmp_path), here=STANDBY, ctl1=STANDBY, ctl2=DONE)
    assert await pair.delete() == ["here", "ctl1", "ctl2"]
    assert await pair.delete() == ["ctl2"]
    pair.answers |= {"here": DONE, "ctl2": ""}
    assert await pair.delete() == ["ctl2", "here"]
    assert await pair.delete() == ["here"]


async def test_a_refusal_is_the_answer_whoever_else_there_is(tmp_path: Path):
    no = '{"v":1,"ok":false,"code":"SW-FORBIDDEN","message":"No.","hint":""}'
    pair = Pair(with_socket(tmp_path), here=no, ctl1=DONE)
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        await pair.delete()
    assert pair.asked == ["here"]


async def test_if_none_will_the_last_says_why(tmp_path: Path):
    pair = Pair(tmp_path, ctl1=STANDBY, ctl2="")
    with pytest.raises(UnreachableError, match=r"at ctl2:6830: nothing listens.*SW-DAEMON-DOWN"):
        await pair.delete()
    assert pair.asked == ["ctl1", "ctl2"]


async def test_this_hosts_own_address_is_not_asked_beside_its_socket(tmp_path: Path):
    run_dir = with_socket(tmp_path)
    pair = Pair(run_dir, here="", ctl1=DONE)
    own = DaemonSettings(run_dir=run_dir, listen="ctl1:6830", connect=("ctl1:6830",))
    pair.client._settings = own
    with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
        await pair.delete()
    assert pair.asked == ["here"]


def test_one_address_or_a_list_of_them(tmp_path: Path):
    for value, places in (("", ()), ("a:1", ("a:1",)), (["a:1", "b:2"], ("a:1", "b:2"))):
        assert DaemonSettings.model_validate({"connect": value}).connect == places
