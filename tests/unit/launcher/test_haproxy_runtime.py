"""The Runtime API of HAProxy 2.6: what it prints, what it is told."""

import asyncio
from pathlib import Path

import pytest

from cluster.errors import OutsideError, UnreachableError
from launcher.decide.gateway import Backend, Mode, Server
from launcher.decide.routing import (
    AddRoute,
    EndSessions,
    MarkComplete,
    RemoveRoute,
    SendRound,
    SetHealthy,
    SetMode,
    SetTarget,
)
from launcher.haproxy import HaproxyRuntime, commands, parse

MAP = Path("/etc/haproxy/slicewise/services.map")
STATES = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight"
STATS = "# pxname,svname,qcur,scur,status,addr,"
SHOWN = f"""\
0x7f0f9404bef0 vision/chat pool1
0x7f0f9404bf50 nlp/bert pool2

1
{STATES}
3 pool1 1 r1 127.0.0.1 2 4 1
3 pool1 2 r2 127.0.0.1 2 12 1
3 pool1 3 again - 2 0 1
4 pool2 1 r1 127.0.0.1 0 5 1
4 pool2 2 r2 127.0.0.1 0 12 1
4 pool2 3 again - 2 0 1


{STATS}
gateway,FRONTEND,,9,OPEN,,
pool1,r1,1,3,UP,10.0.0.1:21001,
pool1,r2,0,1,DRAIN,10.0.0.2:21004,
pool1,again,0,2,no check,unix,
pool1,BACKEND,5,14,UP,,
pool2,r1,0,0,MAINT,127.0.0.1:1,
pool2,r2,0,2,DOWN,127.0.0.1:9,
pool2,again,0,0,no check,unix,
pool2,BACKEND,0,0,DOWN,,

"""


def test_state_is_read_as_haproxy_prints_it():
    found = parse(SHOWN)
    assert found.routes == {"vision/chat": "pool1", "nlp/bert": "pool2"}
    assert found.backends["pool1"] == Backend(
        12,
        5,
        (
            Server("10.0.0.1", 21001, Mode.READY, up=True, in_flight=3, queued=1),
            Server("10.0.0.2", 21004, Mode.DRAIN, up=True, in_flight=1, queued=0),
        ),
    )


def test_the_mark_is_no_route():
    marked = parse(f"0x7f0f9404be00 .complete yes\n{SHOWN}")
    assert (marked.complete, marked.routes) == (True, parse(SHOWN).routes)
    assert not parse(SHOWN).complete


def test_routes_are_kept_only_if_they_are_others(tmp_path: Path):
    path = tmp_path / "services.map"
    path.write_text("")
    path.chmod(0o640)
    runtime = HaproxyRuntime(tmp_path / "haproxy.sock", path)
    runtime.keep({"vision/chat": "pool2", "nlp/bert": "pool1"})
    assert path.read_text() == "nlp/bert pool1\nvision/chat pool2\n"
    assert path.stat().st_mode & 0o777 == 0o640
    written = path.stat().st_ino
    runtime.keep({"nlp/bert": "pool1", "vision/chat": "pool2"})
    assert (path.stat().st_ino, list(tmp_path.iterdir())) == (written, [path])


def test_a_dead_server_that_drains_is_still_known_to_drain():
    dead = parse(SHOWN).backends["pool2"].servers[1]
    assert (dead.mode, dead.up) == (Mode.DRAIN, False)


@pytest.mark.parametrize(
    "text", ["", "Unknown map identifier.\n", SHOWN[:120], SHOWN.replace("qcur", "quux")]
)
def test_something_else_is_no_observation(text: str):
    with pytest.raises((KeyError, ValueError, IndexError)):
        parse(text)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (SetMode("pool1", 0, Mode.DRAIN), ("set server pool1/r1 state drain",)),
        (SetHealthy("pool1", 2), ("set server pool1/r3 health up",)),
        (EndSessions("pool1", 0), ("shutdown sessions server pool1/r1",)),
        (
            SetTarget("pool1", 1, "10.0.0.1", 21001, 4),
            (
                "set server pool1/r2 addr 10.0.0.1 port 21001",
                "set maxconn server pool1/r2 4",
            ),
        ),
        (
            SendRound("pool1"),
            ("set server pool1/again state maint;set server pool1/again state ready",),
        ),
        (AddRoute("vision/chat", "pool1"), (f"add map {MAP} vision/chat pool1",)),
        (RemoveRoute("vision/chat"), (f"del map {MAP} vision/chat",)),
        (MarkComplete(), (f"add map {MAP} .complete yes",)),
    ],
)
def test_words_of_a_change(change, expected: tuple[str, ...]):
    assert commands(change, MAP) == expected


async def test_a_refused_change_carries_haproxys_words(tmp_path: Path):
    socket = tmp_path / "haproxy.sock"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"No such server.\n\n")
        writer.close()

    server = await asyncio.start_unix_server(refuse, socket)
    async with server:
        with pytest.raises(OutsideError, match="No such server"):
            await HaproxyRuntime(socket, MAP).apply([SetMode("pool1", 0, Mode.DRAIN)])
        with pytest.raises(OutsideError, match="SW-GATEWAY-FAILED"):
            await HaproxyRuntime(socket, MAP).observe()


async def test_nobody_there_is_unreachable(tmp_path: Path):
    with pytest.raises(UnreachableError, match="SW-GATEWAY-DOWN"):
        await HaproxyRuntime(tmp_path / "none.sock", MAP).observe()
