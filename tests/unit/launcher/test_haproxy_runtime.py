"""The Runtime API of HAProxy 2.6: what it prints, what it is told."""

import asyncio
from pathlib import Path

import pytest

from cluster.errors import OutsideError, UnreachableError
from cluster.gateway_settings import GatewaySettings
from launcher.decide.gateway import Backend, Endpoint, Mode, Server
from launcher.decide.routing import (
    AddRoute,
    EndSessions,
    MarkComplete,
    RemoveRoute,
    SendRound,
    SetClosing,
    SetHealthy,
    SetInTime,
    SetMode,
    SetRetryAfter,
    SetTarget,
)
from launcher.haproxy import HaproxyRuntime
from launcher.haproxy_text import Maps, commands, entry_commands, map_text, old_workers, parse

DIRECTORY = Path("/etc/haproxy/slicewise")
MAP = DIRECTORY / "services.map"
STATES = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight"
STATS = "# pxname,svname,qcur,scur,stot,status,addr,"
SHOWN = f"""\
0x7f0f9404bef0 vision/chat pool1
0x7f0f9404bf50 nlp/bert pool2

0x7f0f9404bef0 nlp/bert yes



0x7f0f9404bef0 pool1/r2 d1635

1
{STATES}
3 pool1 1 r1 127.0.0.1 2 4 1
3 pool1 2 r2 127.0.0.1 2 12 1
3 pool1 3 again - 2 0 1
4 pool1-grpc 1 r1 127.0.0.1 2 0 1
4 pool1-grpc 2 r2 127.0.0.1 2 16 1
4 pool1-grpc 3 again - 2 0 1
5 pool2 1 r1 127.0.0.1 0 5 1
5 pool2 2 r2 127.0.0.1 0 12 1
5 pool2 3 again - 2 0 1
6 pool2-grpc 1 r1 127.0.0.1 0 2 1
6 pool2-grpc 2 r2 127.0.0.1 0 18 1
6 pool2-grpc 3 again - 2 0 1
7 successor 1 again - 2 0 1
8 successor-grpc 1 again - 2 0 1


{STATS}
tenants,BACKEND,0,0,0,UP,,
pool1,r1,1,3,40,UP,10.0.0.1:21001,
pool1,r2,0,1,20,DRAIN,10.0.0.2:21004,
pool1,again,0,2,5,no check,unix,
pool1,BACKEND,5,14,75,UP,,
pool1-grpc,r1,0,2,9,UP,10.0.0.1:21002,
pool1-grpc,r2,0,0,1,DRAIN (via pool1/r2),10.0.0.2:21005,
pool1-grpc,again,0,0,0,no check,unix,
pool1-grpc,BACKEND,1,3,11,UP,,
pool2,r1,0,0,0,MAINT,127.0.0.1:1,
pool2,r2,0,2,2,DOWN,127.0.0.1:9,
pool2,again,0,0,0,no check,unix,
pool2,BACKEND,0,0,2,DOWN,,
pool2-grpc,r1,0,0,0,MAINT (via pool2/r1),127.0.0.1:1,
pool2-grpc,r2,0,0,0,DOWN (via pool2/r2),127.0.0.1:9,
pool2-grpc,again,0,0,0,no check,unix,
pool2-grpc,BACKEND,0,0,0,DOWN,,
successor,again,0,0,0,no check,unix,
successor,BACKEND,0,0,0,UP,,
successor-grpc,again,0,0,0,no check,unix,
successor-grpc,BACKEND,0,0,0,UP,,

"""


def settings(directory: Path, socket: str = "haproxy.sock") -> GatewaySettings:
    return GatewaySettings(directory=directory, runtime_socket=directory / socket)


def test_state_is_read_as_haproxy_prints_it():
    found = parse(SHOWN)
    assert found.routes == {"vision/chat": "pool1", "nlp/bert": "pool2"}
    assert found.closing == {"nlp/bert"}
    assert list(found.backends) == ["pool1", "pool2"]


def test_a_backend_is_both_its_halves():
    assert parse(SHOWN).backends["pool1"] == Backend(
        14 - 2 + 3,
        5 + 1,
        (
            Server("10.0.0.1", 21001, Mode.READY, up=True, in_flight=5, queued=1),
            Server("10.0.0.2", 21004, Mode.DRAIN, True, 1, 0, "d1635"),
        ),
        arrived=75 - 5 + 11,
        answered=(40 - 3) + (20 - 1) + (9 - 2) + 1,
    )


def test_estimates_and_how_many_may_wait_are_read():
    entries = "\n\n0x7f0f9404bef0 vision/chat 42\n\n0x7f0f9404bef0 nlp/bert 9\n\n0x7"
    told = parse(SHOWN.replace("\n\n\n\n0x7", entries, 1))
    assert (told.retry_after_s, told.in_time) == ({"vision/chat": 42}, {"nlp/bert": 9})


def test_the_mark_is_no_route():
    marked = parse(f"0x7f0f9404be00 .complete yes\n{SHOWN}")
    assert (marked.complete, marked.routes) == (True, parse(SHOWN).routes)
    assert not parse(SHOWN).complete


def test_routes_are_kept_only_if_they_are_others(tmp_path: Path):
    path = tmp_path / "services.map"
    path.write_text("")
    path.chmod(0o640)
    runtime = HaproxyRuntime(settings(tmp_path))
    runtime.keep({"vision/chat": "pool2", "nlp/bert": "pool1"})
    assert path.read_text() == "nlp/bert pool1\nvision/chat pool2\n"
    assert path.stat().st_mode & 0o777 == 0o640
    written = path.stat().st_ino
    runtime.keep({"nlp/bert": "pool1", "vision/chat": "pool2"})
    assert (path.stat().st_ino, list(tmp_path.iterdir())) == (written, [path])


REPLICA = Endpoint("10.0.0.1", 21001, 21002, "CCCC")
PEM = "-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n"


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
        (
            EndSessions("pool1", 0),
            (
                "shutdown sessions server pool1/r1",
                "shutdown sessions server pool1-grpc/r1",
            ),
        ),
        (
            SetTarget("pool1", 1, REPLICA, 4),
            (
                f"set ssl ca-file {DIRECTORY}/replicas/pool1.r2.pem <<\n{PEM}",
                f"commit ssl ca-file {DIRECTORY}/replicas/pool1.r2.pem",
                "set server pool1/r2 addr 10.0.0.1 port 1",
                "set server pool1-grpc/r2 addr 10.0.0.1 port 1",
                "set server pool1/r2 addr 10.0.0.1 port 21001",
                "set server pool1-grpc/r2 addr 10.0.0.1 port 21002",
                "set maxconn server pool1/r2 4",
                "set maxconn server pool1-grpc/r2 4",
                f"add map {DIRECTORY}/replicas.map pool1/r2 -",
                f"del map {DIRECTORY}/replicas.map pool1/r2",
                f"add map {DIRECTORY}/replicas.map pool1/r2 {REPLICA.digest}",
            ),
        ),
        (
            SendRound("pool1"),
            (
                "set server pool1/again state maint;set server pool1/again state ready",
                "set server pool1-grpc/again state maint;set server pool1-grpc/again state ready",
            ),
        ),
        (SetClosing("t/a", closing=True), (f"add map {DIRECTORY}/closing.map t/a yes",)),
        (SetClosing("t/a", closing=False), (f"del map {DIRECTORY}/closing.map t/a",)),
        (SetRetryAfter("t/a", 7, None), (f"add map {DIRECTORY}/retry.map t/a 7",)),
        (SetRetryAfter("t/a", 7, 9), (f"set map {DIRECTORY}/retry.map t/a 7",)),
        (SetRetryAfter("t/a", None, 9), (f"del map {DIRECTORY}/retry.map t/a",)),
        (SetInTime("t/a", 7, None), (f"add map {DIRECTORY}/in_time.map t/a 7",)),
        (SetInTime("t/a", 0, 9), (f"set map {DIRECTORY}/in_time.map t/a 0",)),
        (SetInTime("t/a", None, 9), (f"del map {DIRECTORY}/in_time.map t/a",)),
        (AddRoute("vision/chat", "pool1"), (f"add map {MAP} vision/chat pool1",)),
        (RemoveRoute("vision/chat"), (f"del map {MAP} vision/chat",)),
        (MarkComplete(), (f"add map {MAP} .complete yes",)),
    ],
)
def test_words_of_a_change(change, expected: tuple[str, ...]):
    assert commands(change, Maps(DIRECTORY)) == expected


def test_a_map_is_changed_entry_by_entry_and_gets_what_it_lacks_first():
    shown = {"a": "1", "b": "2", "c": "3"}
    wanted = {"a": "1", "b": "9", "d": "4", ".mark": "yes"}
    assert entry_commands(MAP, shown, wanted) == (
        f"add map {MAP} d 4",
        f"add map {MAP} .mark yes",
        f"set map {MAP} b 9",
        f"del map {MAP} c",
    )
    assert map_text({"b": "2", "a": "1"}) == "a 1\nb 2\n"


def test_replaced_workers_are_told_from_living_ones():
    head = "#<PID> <type> <reloads>\n29 master 2\n# workers\n334 worker 0 0d00h\n"
    assert old_workers(f"{head}# programs\n\n") == ()
    shown = f"{head}# old workers\n304 worker 1 0d00h\n29994 worker 2 0d00h\n# programs\n\n"
    assert old_workers(shown) == (304, 29994)


async def test_a_refused_change_carries_haproxys_words(tmp_path: Path):
    socket = tmp_path / "haproxy.sock"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"No such server.\n\n")
        writer.close()

    server = await asyncio.start_unix_server(refuse, socket)
    async with server:
        with pytest.raises(OutsideError, match="No such server"):
            await HaproxyRuntime(settings(tmp_path)).apply([SetMode("pool1", 0, Mode.DRAIN)])
        with pytest.raises(OutsideError, match="SW-GATEWAY-FAILED"):
            await HaproxyRuntime(settings(tmp_path)).observe()


@pytest.mark.parametrize("words", ["no need to change the addr", "nothing changed"])
async def test_an_address_that_a_server_has_already_is_no_refusal(tmp_path: Path, words: str):
    """As HAProxy says it before 3.0, and since."""
    socket = tmp_path / "haproxy.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told = await reader.readline()
        is_address = b" addr " in told
        writer.write(f"{words}\n\n".encode() if is_address else b"\n")
        writer.close()

    target = SetTarget("pool1", 0, REPLICA, 2)
    async with await asyncio.start_unix_server(answer, socket):
        await HaproxyRuntime(settings(tmp_path)).apply([target])


@pytest.mark.parametrize(
    "answer", ["\n", f"0x1 {'a' * 64} vision more\n\n", f"oops {'a' * 64} b\n\n"]
)
async def test_what_haproxy_refuses_of_keys_tells_no_digest(tmp_path: Path, answer: str):
    socket = tmp_path / "haproxy.sock"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readline()
        known = asked.startswith(b"show map")
        writer.write(answer.encode() if known else b"Unknown command " + asked)
        writer.close()

    async with await asyncio.start_unix_server(refuse, socket):
        with pytest.raises(OutsideError, match="SW-GATEWAY-FAILED") as raised:
            await HaproxyRuntime(settings(tmp_path)).set_keys({"a" * 64: "vision"})
    assert "aaaa" not in str(raised.value)


async def test_nobody_there_is_unreachable(tmp_path: Path):
    with pytest.raises(UnreachableError, match="SW-GATEWAY-DOWN"):
        await HaproxyRuntime(settings(tmp_path, "none.sock")).observe()
