"""The sockets: limits, malformed input, who may see and do what."""

import asyncio
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cluster.language.errors import InvalidInputError
from cluster.rpc.messages import (
    LINE_LIMIT,
    DoneAnswer,
    ServiceView,
    TenantView,
    ViewAnswer,
    ViewRequest,
)
from slurm_plugin.api.user_socket import Roles, limits, visible_to
from slurm_plugin.common import line_server
from slurm_plugin.common.line_server import Limits, LineServer, Peer

LIMITS = Limits(connections=3, connections_per_uid=3, idle_s=60.0, line_bytes=200_000)
SOON_S = 0.3
LONG = 1_000_000


async def answer(line: str, peer: Peer) -> BaseModel:
    if line.startswith("refuse"):
        raise InvalidInputError("SW-X", "no", "hint")
    if line.startswith("crash"):
        raise RuntimeError("inner affairs")
    if line.startswith("long"):
        raise InvalidInputError("SW-X", "x" * LONG)
    if line.startswith("whoami"):
        return BaseModel.model_construct(None, uid=peer.uid)
    ViewRequest.model_validate_json(line)
    return DoneAnswer()


@pytest.fixture
async def path(tmp_path: Path) -> Any:
    place = tmp_path / "s.sock"
    server = LineServer(place, 0o600, answer, LIMITS)
    await server.start()
    yield place
    await server.stop()


@pytest.fixture
async def hasty(tmp_path: Path) -> Any:
    """Drops who does nothing for ``SOON_S``."""
    place = tmp_path / "hasty.sock"
    server = LineServer(place, 0o600, answer, replace(LIMITS, idle_s=SOON_S))
    await server.start()
    yield place
    await server.stop()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, line: bytes) -> dict[str, Any]:
        self.writer.write(line + b"\n")
        reply = await asyncio.wait_for(self.reader.readline(), 5)
        return dict(json.loads(reply))


async def connect(path: Path) -> Client:
    return Client(*await asyncio.open_unix_connection(str(path), limit=LINE_LIMIT))


async def test_one_connection_takes_many_lines(path: Path) -> None:
    client = await connect(path)
    for _ in range(3):
        assert await client.ask(b'{"v":1,"op":"view"}') == {"v": 1, "ok": True}


MALFORMED = [
    b"",
    b"rubbish",
    b"[]",
    b"null",
    b'{"v":"one"}',
    b'{"v":2,"op":"view"}',
    b'{"v":1,"op":"drop"}',
    b'{"v":1,"op":"view","extra":1}',
    b"\xff\xfe{}",
    b'{"v":1,"op":"' + b"x" * 100_000 + b'"}',
    b"[" * 100_000,
    b"1e999999",
]


@pytest.mark.parametrize("line", MALFORMED)
async def test_malformed_lines_get_an_answer(path: Path, line: bytes) -> None:
    client = await connect(path)
    reply = await client.ask(line)
    assert (reply["ok"], reply["code"]) == (False, "SW-WIRE")
    assert len(json.dumps(reply)) < 1000
    assert (await client.ask(b'{"v":1,"op":"view"}'))["ok"]


async def test_a_line_without_end_is_refused(path: Path) -> None:
    client = await connect(path)
    client.writer.write(b"x" * 200_001)
    reply = json.loads(await asyncio.wait_for(client.reader.readline(), 5))
    assert (reply["code"], "200000 bytes" in reply["message"]) == ("SW-WIRE", True)


async def test_a_refusal_names_code_and_hint(path: Path) -> None:
    reply = await (await connect(path)).ask(b"refuse")
    assert reply == {"v": 1, "ok": False, "code": "SW-X", "message": "no", "hint": "hint"}


async def test_a_failure_inside_tells_nothing_and_ends_nothing(path: Path) -> None:
    client = await connect(path)
    reply = await client.ask(b"crash")
    assert reply["code"] == "SW-INTERNAL"
    assert "inner" not in json.dumps(reply)
    assert (await client.ask(b'{"v":1,"op":"view"}'))["ok"]


async def test_too_many_connections_are_told(path: Path) -> None:
    kept = [await connect(path) for _ in range(3)]
    for client in kept:
        await client.ask(b'{"v":1,"op":"view"}')
    reply = await asyncio.wait_for((await connect(path)).reader.readline(), 5)
    assert json.loads(reply)["code"] == "SW-BUSY"


async def busy(path: Path) -> bool:
    return "code" in await (await connect(path)).ask(b'{"v":1,"op":"view"}')


async def test_nobody_else_takes_the_reserved_connections(tmp_path: Path) -> None:
    me = os.getuid()
    for reserved_for, taken in ((frozenset({me}), 3), (frozenset({me + 1}), 2)):
        limits = replace(LIMITS, reserved=1, reserved_for=reserved_for)
        place = tmp_path / str(taken)
        server = LineServer(place, 0o600, answer, limits)
        await server.start()
        assert [await busy(place) for _ in range(4)] == [number >= taken for number in range(4)]
        await server.stop()


@pytest.mark.parametrize("first", ["nothing", "a question", "an answer that is not taken"])
async def test_few_users_do_not_keep_all_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Six users with 32 each had all of the user socket, for as long as they were silent."""
    uids = iter((1, 1, 2, 2, 3, 1, 1))
    monkeypatch.setattr(
        "slurm_plugin.common.line_server.peer_of", lambda transport: Peer(0, next(uids))
    )
    limits = replace(LIMITS, connections=4, connections_per_uid=2, idle_s=5.0)
    server = LineServer(tmp_path / "s.sock", 0o600, answer, limits)
    await server.start()
    kept = [await connect(tmp_path / "s.sock") for _ in range(4)]
    for client in kept:
        if first == "a question":
            await client.ask(b'{"v":1,"op":"view"}')
        elif first != "nothing":
            client.writer.write(b"long\n" * 20)
    await asyncio.sleep(0.1)
    third = await connect(tmp_path / "s.sock")
    assert (await third.ask(b'{"v":1,"op":"view"}'))["ok"]
    # Who has as many as anybody else cuts nobody off.
    _, refused = [await connect(tmp_path / "s.sock") for _ in range(2)]
    reply = await asyncio.wait_for(refused.reader.readline(), 5)
    assert json.loads(reply)["code"] == "SW-BUSY"
    assert (await third.ask(b'{"v":1,"op":"view"}'))["ok"]
    await server.stop()


async def test_the_launchers_idle_connections_make_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = iter((7, 7, 1, 2))
    monkeypatch.setattr(
        "slurm_plugin.common.line_server.peer_of", lambda transport: Peer(0, next(uids))
    )
    limits = Limits(3, 3, idle_s=5.0, line_bytes=100, reserved=2, reserved_for=frozenset({7}))
    server = LineServer(tmp_path / "s.sock", 0o600, answer, limits)
    await server.start()
    kept = [await connect(tmp_path / "s.sock") for _ in range(4)]
    await asyncio.sleep(0.05)
    for client in (*kept[:2], kept[3]):
        assert (await client.ask(b'{"v":1,"op":"view"}'))["ok"]
    assert await asyncio.wait_for(kept[2].reader.read(), 5) == b""
    await server.stop()


async def test_silent_connections_of_many_uids_lock_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may have namespaces (newuidmap) has thousands of uids, each with its connections."""
    uids = iter(range(100_000, 200_000))
    monkeypatch.setattr(line_server, "peer_of", lambda _: Peer(1, next(uids)))
    limits = Limits(connections=12, connections_per_uid=4, idle_s=60, line_bytes=1000, reserved=2)
    place = tmp_path / "s.sock"
    server = LineServer(place, 0o600, answer, limits)
    await server.start()
    silent = [await connect(place) for _ in range(30)]
    others = [await connect(place) for _ in range(3)]
    assert not any(["code" in await one.ask(b'{"v":1,"op":"view"}') for one in others])
    # The longest silent went, and with each connection one of them at most.
    assert await asyncio.wait_for(silent[0].reader.read(), 5) == b""
    assert "code" not in await silent[-1].ask(b'{"v":1,"op":"view"}')
    await server.stop()


async def test_who_is_answered_is_not_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = iter([1000, 1001])
    monkeypatch.setattr(line_server, "peer_of", lambda _: Peer(1, next(uids)))
    working, done = asyncio.Event(), asyncio.Event()

    async def slow(line: str, peer: Peer) -> BaseModel:
        working.set()
        await done.wait()
        return DoneAnswer()

    place = tmp_path / "s.sock"
    server = LineServer(place, 0o600, slow, replace(LIMITS, connections=1, idle_s=60))
    await server.start()
    first = await connect(place)
    first.writer.write(b"x\n")
    await working.wait()
    assert json.loads(await (await connect(place)).reader.readline())["code"] == "SW-BUSY"
    done.set()
    assert json.loads(await first.reader.readline())["ok"]
    await server.stop()


async def test_many_questions_leave_the_program_its_turns(tmp_path: Path) -> None:
    """Else each step of a look at Slurm waits until all connections of a user are answered."""
    turn, answered_in = 0, []

    async def work(line: str, peer: Peer) -> BaseModel:
        answered_in.append(turn)
        return DoneAnswer()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(0)
            turn += 1

    place = tmp_path / "s.sock"
    server = LineServer(place, 0o600, work, replace(LIMITS, connections=20, connections_per_uid=20))
    await server.start()
    counting = asyncio.create_task(count_turns())
    clients = [await connect(place) for _ in range(20)]
    for client in clients:
        client.writer.write(b"x\n" * 5)
    for client in clients:
        for _ in range(5):
            assert json.loads(await asyncio.wait_for(client.reader.readline(), 5))["ok"]
    counting.cancel()
    assert len(answered_in) == 100
    assert len(set(answered_in)) == 100
    await server.stop()


async def test_who_is_turned_away_takes_no_connection(path: Path) -> None:
    kept = [await connect(path) for _ in range(3)]
    for client in kept:
        await client.ask(b'{"v":1,"op":"view"}')
    waiting = [await connect(path) for _ in range(5)]
    kept[0].writer.close()
    await asyncio.sleep(0.05)
    assert not await busy(path)
    assert len(waiting) == 5


def test_a_user_can_not_lock_out_launcher_root_and_slurm_user() -> None:
    socket_limits = limits(Roles(frozenset({0, 64030}), 61000))
    assert socket_limits.reserved_for == {0, 64030, 61000}
    assert 0 < socket_limits.reserved < socket_limits.connections
    assert socket_limits.line_bytes == 65_536


async def test_a_sleeping_peer_is_dropped(hasty: Path) -> None:
    client = await connect(hasty)
    assert await asyncio.wait_for(client.reader.read(), 5) == b""


@pytest.mark.parametrize("says_more", [True, False])
async def test_who_takes_no_answer_keeps_no_connection(hasty: Path, says_more: bool) -> None:
    """Else one user could take all of the daemon's file descriptors."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(hasty))
        peer.sendall(b"long\n")
        if not says_more:
            peer.shutdown(socket.SHUT_WR)
        await asyncio.sleep(2 * SOON_S + 1.0)
        # What the kernel had taken; the rest went with the connection.
        peer.settimeout(1)
        taken = sum(map(len, iter(lambda: peer.recv(65_536), b"")))
        assert taken < LONG


async def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    place = tmp_path / "s.sock"
    place.write_text("left behind")
    server = LineServer(place, 0o600, answer, LIMITS)
    await server.start()
    assert (await (await connect(place)).ask(b'{"v":1,"op":"view"}'))["ok"]
    assert place.stat().st_mode & 0o777 == 0o600
    await server.stop()
    assert not place.exists()


def test_who_sees_all() -> None:
    roles = Roles(frozenset({0, 64030}), 61000)
    assert [roles.sees_all(uid) for uid in (0, 64030, 61000, 61001)] == [True, True, True, False]
    assert not Roles(frozenset({0}), None).sees_all(61000)


def test_others_see_their_own_tenants_only() -> None:
    def service(tenant: str, user: str) -> ServiceView:
        return ServiceView(
            array_job_id=1,
            tenant=tenant,
            name="s",
            user=user,
            submit_s=0,
            directives={},
            profile="",
            cost_millislices=0,
            slots=(),
        )

    def tenant(name: str) -> TenantView:
        return TenantView(name=name, nominal_millislices=1, used_millislices=0)

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
