"""Tests the daemon's socket from the client's side: answers, refusals, silence."""

import asyncio
import re
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from pydantic import ValidationError

from slicewise.cluster.language.errors import InvalidInputError, OutsideError, UnreachableError
from slicewise.cluster.rpc import client
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.exchange import UnsentError
from slicewise.cluster.rpc.key_messages import GrantsAnswer, GrantsRequest, KeyGrant
from slicewise.cluster.rpc.message import Answered, Asks
from slicewise.cluster.rpc.messages import (
    CheckRequest,
    DeleteRequest,
    DesiredSlotsRequest,
    ServiceReportRequest,
    StatusRequest,
    SubmitAnswer,
    ViewRequest,
)
from slicewise.cluster.rpc.read_messages import WhyRequest
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.common.explain_requests import HeadroomRequest
from slicewise.slurm_plugin.common.ledger_requests import (
    BalanceRequest,
    BudgetsRequest,
    StatementCursor,
    StatementRequest,
)


@dataclass
class Heard:
    """What a daemon that always gives one answer was asked."""

    place: str = ""
    body: bytes = b""


@asynccontextmanager
async def daemon(path: Path, answer: bytes, status: str = "200 OK") -> AsyncIterator[Heard]:
    heard = Heard()
    head = f"HTTP/1.1 {status}\r\nConnection: close\r\n\r\n".encode() if status else b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readuntil(b"\r\n\r\n")).decode()
        heard.place = asked.partition(" HTTP/1.1\r\n")[0]
        length = re.search(r"Content-Length: (\d+)", asked)
        heard.body = await reader.readexactly(int(length[1])) if length else b""
        writer.write(head + answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        yield heard


async def ask(
    tmp_path: Path, answer: bytes, request: Asks[Answered], status: str = "200 OK"
) -> tuple[Answered, Heard]:
    async with daemon(tmp_path / "user.sock", answer, status) as heard:
        return await DaemonClient(DaemonSettings(run_dir=tmp_path)).ask(request), heard


WISH = DesiredSlotsRequest(
    array_job_id=814, slots=(0, 2), note="n", urgency=0.5, replaces_version=1
)


async def test_a_post_has_its_fields_in_its_body(tmp_path: Path):
    answer, heard = await ask(tmp_path, b'{"v":1,"released":[2]}', WISH)
    assert heard.place == "POST /v1/desired-slots"
    fields = b'"array_job_id":814,"slots":[0,2],"note":"n","urgency":0.5'
    assert heard.body == b"{" + fields + b',"avoid_nodes":[],"replaces_version":1}'
    assert answer.released == (2,)


async def test_a_get_has_its_fields_in_its_query(tmp_path: Path):
    after = StatementCursor(tenant="a&b", start_s=1, job_id=2, now_s=3)
    request = StatementRequest(tenant="vision", after=after)
    answer, heard = await ask(tmp_path, b'{"v":1,"now_s":1,"rows":[]}', request)
    method, _, target = heard.place.partition(" ")
    assert (method, target.partition("?")[0], heard.body) == ("GET", "/v1/statement", b"")
    read = StatementRequest.model_validate(dict(parse_qsl(target.partition("?")[2])))
    assert (read, answer.rows) == (request, ())


async def test_a_refusal_keeps_its_code_and_hint(tmp_path: Path):
    failure = b'{"v":1,"ok":false,"code":"SW-FORBIDDEN","message":"No.","hint":"Ask."}'
    with pytest.raises(InvalidInputError, match=r"No\. Ask\. \[SW-FORBIDDEN\]"):
        await ask(tmp_path, failure, DeleteRequest(array_job_id=814), "403 Forbidden")


async def test_keys_of_an_answer_that_are_not_known_are_ignored(tmp_path: Path):
    """The daemon may be newer, at any depth of its answer."""
    tenant = (
        b'{"name":"vision","nominal_millislices":1,"in_use_millislices":2,'
        b'"own_in_use_millislices":3,"new":{"er":4}}'
    )
    view = b'{"v":1,"observed_s":1,"complete":true,"services":[],"tenants":[%b],"more":5}' % tenant
    answer, _ = await ask(tmp_path, view, ViewRequest())
    assert [(one.name, one.own_in_use_millislices) for one in answer.tenants] == [("vision", 3)]
    taken, _ = await ask(tmp_path, b'{"v":1,"released":[2],"code":"a","message":"b"}', WISH)
    assert taken.released == (2,)
    admitted = SubmitAnswer(action="admit", code="a").model_dump_json().encode()
    check = CheckRequest(tenant="vision", directives=())
    read, _ = await ask(tmp_path, admitted[:-1] + b',"new":1}', check)
    assert read.action == "admit"


def test_keys_of_a_request_that_are_not_known_are_refused_at_any_depth():
    report = (
        '{"tenant":"vision","name":"bert","in_flight":0,"queued":0,"held":0,"rate_per_s":0,'
        '"desired_replicas":1,"reason":""%s}'
    )
    news = '{"services":[%s]}'
    ServiceReportRequest.model_validate_json(news % report % "")
    with pytest.raises(ValidationError, match="new"):
        ServiceReportRequest.model_validate_json(news % report % ',"new":1')


async def test_a_failure_of_a_newer_daemon_keeps_its_code(tmp_path: Path):
    failure = b'{"v":1,"ok":false,"code":"SW-FORBIDDEN","message":"No.","hint":"","new":1}'
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        await ask(tmp_path, failure, WISH, "403 Forbidden")


async def test_the_keys_of_a_large_site_are_read(tmp_path: Path):
    grant = KeyGrant(opens="language-models", key_id="a" * 12, person="alice")
    grants = GrantsAnswer(keys={f"{key:064x}": grant for key in range(50_000)})
    answer, _ = await ask(tmp_path, grants.model_dump_json().encode(), GrantsRequest())
    assert answer == grants


NONSENSE = [b"hello\n", b'{"v":2}\n', b'{"v":1,"services":3}\n', b'{"v":1,"ok":true}']


@pytest.mark.parametrize("answer", NONSENSE)
async def test_nonsense_is_no_view(tmp_path: Path, answer: bytes):
    with pytest.raises(OutsideError, match="SW-WIRE"):
        await ask(tmp_path, answer, ViewRequest())


@pytest.mark.parametrize(
    "words",
    [
        b"hello\n",
        b'{"v":1,"ok":false,"code":"SW-WIRE","message":"No such message."}\n',
        b"HTTP/1.1 rubbish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"x" * 2_000_000,
    ],
)
async def test_a_daemon_of_an_older_version_is_named_as_the_reason(tmp_path: Path, words: bytes):
    with pytest.raises(OutsideError, match="same version"):
        await ask(tmp_path, words, ViewRequest(), status="")


async def test_an_answer_without_end_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client, "ANSWER_LIMIT", 1000)
    with pytest.raises(UnreachableError, match="its answer is too long"):
        await ask(tmp_path, b"x" * 10_000, ViewRequest())


async def test_a_daemon_that_hangs_up_or_is_not_there(tmp_path: Path):
    with pytest.raises(UnreachableError, match="without an answer"):
        await ask(tmp_path, b"", ViewRequest(), status="")
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"
    with pytest.raises(UnreachableError, match="without an answer"):
        await ask(tmp_path, half, ViewRequest(), status="")
    with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
        DaemonClient(DaemonSettings(run_dir=tmp_path / "none")).call(ViewRequest())


async def test_who_is_busy_is_heard_though_he_reads_nothing(tmp_path: Path):
    """The daemon may have answered and closed before the request is sent."""
    path = tmp_path / "user.sock"
    failure = b'{"v":1,"ok":false,"code":"SW-BUSY","message":"Too many.","hint":""}'

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 503 No\r\nContent-Length: %d\r\n\r\n" % len(failure) + failure)
        writer.close()

    async with await asyncio.start_unix_server(serve, path):
        for _ in range(20):
            with pytest.raises(InvalidInputError, match="SW-BUSY"):
                await DaemonClient(DaemonSettings(run_dir=tmp_path)).ask(
                    ServiceReportRequest(services=())
                )


FAILURES = [
    (TimeoutError(), "no answer within 15 s"),
    (ConnectionRefusedError(111, "Connect call failed"), "nothing listens there"),
    (FileNotFoundError(2, "x"), "nothing listens there"),
    (socket.gaierror(socket.EAI_NONAME, "x"), "its host name can't be resolved"),
    (UnicodeError("label empty or too long"), "its host name can't be resolved"),
    (ValueError("too long"), "its answer is too long"),
    (OSError(113, "Connect call failed"), "No route to host"),
    (OSError("Multiple exceptions"), "it can't be reached"),
]


@pytest.mark.parametrize(("error", "words"), FAILURES)
def test_why_nobody_answers_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
):
    def fail(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(DaemonClient, "_send", fail)
    with pytest.raises(UnreachableError) as raised:
        DaemonClient(DaemonSettings(run_dir=Path("/nowhere"))).call(StatusRequest())
    place = "on /nowhere/user.sock"
    assert raised.value.refusal.message == (
        f"The slicewise daemon does not answer {place}: {words}."
    )


async def test_a_daemon_that_hangs_is_left_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(client, "DEADLINE_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "user.sock"))
        listener.listen()
        with pytest.raises(UnreachableError, match=r"no answer within 0\.2 s"):
            DaemonClient(DaemonSettings(run_dir=tmp_path)).call(StatusRequest())


@pytest.mark.parametrize("name", ["x" * 97, "\udcff"])
def test_a_name_that_no_request_can_hold_is_refused_before_it_is_sent(name: str):
    for kind, field in (
        (WhyRequest, "about"),
        (HeadroomRequest, "tenant"),
        (BalanceRequest, "tenant"),
        (BudgetsRequest, "tenant"),
        (StatementRequest, "tenant"),
    ):
        with pytest.raises(InvalidInputError, match=rf"{field}: .*SW-VALUE"):
            kind.of(**{field: name})


def test_a_huge_word_is_not_repeated():
    with pytest.raises(InvalidInputError, match=r"\(5,000 characters\).* at most") as caught:
        WhyRequest.of(about="x" * 5000)
    assert len(str(caught.value)) < 200


# Of a pair


STANDBY = '{"v":1,"ok":false,"code":"SW-DAEMON-STANDBY","message":"No.","hint":""}'
DONE = '{"v":1,"ok":true}'


class Pair:
    """What each daemon answers ("" is one that is down, "mute" hears and is silent)."""

    def __init__(self, run_dir: Path, **answers: str) -> None:
        self.answers = answers
        self.asked: list[str] = []
        addresses = [f"{name}:6830" for name in answers if name != "here"]
        settings = DaemonSettings.model_validate({"run_dir": run_dir, "connect": addresses})
        self.client = DaemonClient(settings)
        self.client._send = self._send  # type: ignore[method-assign]

    def _send(self, place: str, _request: object) -> bytes:
        name = place.removesuffix(":6830") or "here"
        self.asked.append(name)
        if self.answers[name] == "mute":
            raise TimeoutError
        if not self.answers[name]:
            raise UnsentError from ConnectionRefusedError()
        return self.answers[name].encode()

    def delete(self) -> list[str]:
        """Who was asked on the way."""
        self.asked.clear()
        self.client.call(DeleteRequest(array_job_id=814))
        return list(self.asked)


def with_socket(tmp_path: Path) -> Path:
    (tmp_path / "user.sock").touch()
    return tmp_path


def test_who_stands_by_sends_on_to_the_other_who_is_asked_first_from_then_on(tmp_path: Path):
    pair = Pair(with_socket(tmp_path), here=STANDBY, ctl1=STANDBY, ctl2=DONE)
    assert pair.delete() == ["here", "ctl1", "ctl2"]
    assert pair.delete() == ["ctl2"]
    pair.answers |= {"here": DONE, "ctl2": ""}
    assert pair.delete() == ["ctl2", "here"]
    assert pair.delete() == ["here"]


def test_a_refusal_is_the_answer_whoever_else_there_is(tmp_path: Path):
    no = '{"v":1,"ok":false,"code":"SW-FORBIDDEN","message":"No.","hint":""}'
    pair = Pair(with_socket(tmp_path), here=no, ctl1=DONE)
    with pytest.raises(InvalidInputError, match="SW-FORBIDDEN"):
        pair.delete()
    assert pair.asked == ["here"]


def test_if_none_will_the_last_says_why(tmp_path: Path):
    pair = Pair(tmp_path, ctl1=STANDBY, ctl2="")
    with pytest.raises(UnreachableError, match=r"at ctl2:6830: nothing listens.*SW-DAEMON-DOWN"):
        pair.delete()
    assert pair.asked == ["ctl1", "ctl2"]


def test_a_change_that_one_has_heard_and_the_other_refuses_may_have_been_made(tmp_path: Path):
    pair = Pair(tmp_path, ctl1="mute", ctl2=STANDBY)
    with pytest.raises(UnreachableError, match=r"look before you repeat it.*SW-DAEMON-UNSURE"):
        pair.delete()
    assert pair.asked == ["ctl1", "ctl2"]
    pair.answers |= {"ctl2": DONE}
    assert pair.delete() == ["ctl1", "ctl2"]


def test_a_refusal_after_a_lost_answer_does_not_say_that_nothing_was_changed(tmp_path: Path):
    made = '{"v":1,"ok":false,"code":"SW-KEY-TWICE","message":"There is one.","hint":"Revoke it."}'
    pair = Pair(tmp_path, ctl1="mute", ctl2=made)
    with pytest.raises(UnreachableError) as raised:
        pair.delete()
    refusal = raised.value.refusal
    assert refusal.code == "SW-DAEMON-UNSURE"
    assert "There is one. [SW-KEY-TWICE]" in refusal.message
    assert "look before you repeat it" in refusal.hint
    assert pair.asked == ["ctl1", "ctl2"]
    with pytest.raises(UnreachableError, match=r"SW-WIRE.*SW-DAEMON-UNSURE"):
        Pair(tmp_path, ctl1="mute", ctl2="rubbish").delete()


async def test_a_change_that_was_never_sent_was_not_made(tmp_path: Path):
    with pytest.raises(UnreachableError, match=r"nothing listens there.*SW-DAEMON-DOWN"):
        DaemonClient(DaemonSettings(run_dir=tmp_path)).call(DeleteRequest(array_job_id=1))
    for what, code in ((DeleteRequest(array_job_id=1), "UNSURE"), (StatusRequest(), "DOWN")):
        with pytest.raises(UnreachableError, match=f"SW-DAEMON-{code}"):
            await ask(tmp_path, b"", what, status="")


def test_this_hosts_own_address_is_not_asked_beside_its_socket(tmp_path: Path):
    run_dir = with_socket(tmp_path)
    pair = Pair(run_dir, here="", ctl1=DONE)
    own = DaemonSettings(run_dir=run_dir, listen="ctl1:6830", connect=("ctl1:6830",))
    pair.client._settings = own
    with pytest.raises(UnreachableError, match="SW-DAEMON-DOWN"):
        pair.delete()
    assert pair.asked == ["here"]


def test_one_address_or_a_list_of_them(tmp_path: Path):
    for value, places in (("", ()), ("a:1", ("a:1",)), (["a:1", "b:2"], ("a:1", "b:2"))):
        assert DaemonSettings.model_validate({"connect": value}).connect == places


def test_a_program_ends_without_waiting_for_a_daemon_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hangs, has_ended = threading.Event(), threading.Event()

    def call(_client: DaemonClient, _request: object) -> None:
        hangs.wait(60)
        has_ended.set()

    monkeypatch.setattr(DaemonClient, "call", call)

    async def gives_up() -> None:
        async with asyncio.timeout(0.1):
            await DaemonClient(DaemonSettings(run_dir=tmp_path)).ask(StatusRequest())

    with pytest.raises(TimeoutError):
        asyncio.run(gives_up())
    assert not has_ended.is_set()
    hangs.set()
