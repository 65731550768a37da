"""Tests the Runtime API of HAProxy 2.6: what is read from it, and which commands it gets."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.rpc.key_messages import GrantsAnswer, KeyGrant
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.usage_messages import Boot
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway import haproxy
from slicewise.launcher.gateway.haproxy import HaproxyRuntime
from slicewise.launcher.gateway.runtime_api import (
    VACANT,
    LastLook,
    Maps,
    commands,
    entry_commands,
    glance_questions,
    idle_questions,
    limit_entries,
    map_text,
    number_of,
    old_workers,
    parse,
    parse_glance,
    process_of,
    quiet_commands,
)
from slicewise.launcher.rules.gateway.routing import (
    AddRoute,
    EndSessions,
    GatewayChange,
    MarkComplete,
    MoveRoute,
    RemoveRoute,
    SendRound,
    SetConcurrency,
    SetHealthy,
    SetMode,
    SetTarget,
    SetTerms,
)
from slicewise.launcher.rules.gateway.subjects import subjects_of
from slicewise.launcher.rules.gateway.types import (
    Backend,
    Endpoint,
    Gateway,
    Server,
    ServerMode,
    Terms,
    load_of,
)
from slicewise.launcher.services import overview

DIRECTORY = Path("/etc/haproxy/slicewise")
MAP = DIRECTORY / "services.map"
STATES = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight"
STATS = (
    "# pxname,svname,qcur,scur,stot,bout,eresp,wretr,wredis,status,addr,"
    "hrsp_2xx,hrsp_4xx,hrsp_5xx,slim,check_status,last_chk,"
)
SHOWN = f"""\
0x7f0f9404bef0 vision/chat triton1
0x7f0f9404bf50 nlp/bert triton2

0x7f0f9404bef0 nlp/bert yes








0x7f0f9404bef0 triton1/r2 d1635

0x7f0f9404bef0 triton1-grpc/r1 2

0x7f0f9404bef0 nlp/bert:legal 0
0x7f0f9404bef0 nlp/bert:legal/2 7

1
{STATES}
3 triton1 1 r1 127.0.0.1 2 4 1
3 triton1 2 r2 127.0.0.1 2 12 1
3 triton1 3 again - 2 0 1
4 triton1-grpc 1 r1 127.0.0.1 2 0 1
4 triton1-grpc 2 r2 127.0.0.1 2 16 1
4 triton1-grpc 3 again - 2 0 1
5 triton2 1 r1 127.0.0.1 0 5 1
5 triton2 2 r2 127.0.0.1 0 12 1
5 triton2 3 again - 2 0 1
6 triton2-grpc 1 r1 127.0.0.1 0 2 1
6 triton2-grpc 2 r2 127.0.0.1 0 18 1
6 triton2-grpc 3 again - 2 0 1
7 successor 1 again - 2 0 1
8 successor-grpc 1 again - 2 0 1


{STATS}
tenants,BACKEND,0,0,0,0,0,0,0,UP,,0,0,0,,,,
triton1,r1,1,3,40,900,2,4,1,UP,10.0.0.1:21001,30,4,3,2,L7OK,,
triton1,r2,0,1,20,0,0,0,0,DRAIN,10.0.0.2:21004,0,0,0,2,,,
triton1,again,0,2,5,0,0,0,0,no check,unix,0,0,0,,,,
triton1,BACKEND,5,14,75,0,0,0,0,UP,,0,0,0,,,,
triton1-grpc,r1,0,2,9,80,1,0,2,UP,10.0.0.1:21002,7,0,0,2,,,
triton1-grpc,r2,0,0,1,0,0,0,0,DRAIN (via triton1/r2),10.0.0.2:21005,0,0,0,2,,,
triton1-grpc,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
triton1-grpc,BACKEND,1,3,11,0,0,0,0,UP,,0,0,0,,,,
triton2,r1,0,0,0,0,0,0,0,MAINT,127.0.0.1:1,0,0,0,,,,
triton2,r2,0,2,2,0,0,0,0,DOWN,127.0.0.1:9,0,0,0,,* L7TOUT,,
triton2,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
triton2,BACKEND,0,0,2,0,0,0,0,DOWN,,0,0,0,,,,
triton2-grpc,r1,0,0,0,0,0,0,0,MAINT (via triton2/r1),127.0.0.1:1,0,0,0,,,,
triton2-grpc,r2,0,0,0,0,0,0,0,DOWN (via triton2/r2),127.0.0.1:9,0,0,0,,,,
triton2-grpc,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
triton2-grpc,BACKEND,0,0,0,0,0,0,0,DOWN,,0,0,0,,,,
successor,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
successor,BACKEND,0,0,0,0,0,0,0,UP,,0,0,0,,,,
successor-grpc,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
successor-grpc,BACKEND,0,0,0,0,0,0,0,UP,,0,0,0,,,,

"""


def settings(directory: Path, socket: str = "haproxy.sock") -> GatewaySettings:
    return GatewaySettings(directory=directory, runtime_socket=directory / socket)


def test_state_is_read_as_haproxy_prints_it():
    found = parse(SHOWN)
    assert found.routes == {"vision/chat": "triton1", "nlp/bert": "triton2"}
    assert found.terms == {"nlp/bert": Terms(closing=True)}
    assert found.adapters == {"nlp/bert:legal": 7}
    assert found.adapters_of("nlp/bert") == {"legal"}
    assert found.adapters_of("nlp/ber") == frozenset()
    assert list(found.backends) == ["triton1", "triton2"]


def test_a_backend_is_both_its_halves():
    assert parse(SHOWN).backends["triton1"] == Backend(
        14 - 2 + 3,
        5 + 1,
        (
            Server(
                *("10.0.0.1", 21001, ServerMode.READY, True, 5, 1),
                answers=44,
                errors=3 + 2,
                sent_bytes=980,
                concurrency=2,
                response_errors=2 + 1,
            ),
            Server("10.0.0.2", 21004, ServerMode.DRAIN, True, 1, 0, "d1635", concurrency=2),
        ),
        arrived=75 - 5 + 11,
        answered=(40 - 3) + (20 - 1) + (9 - 2) + 1,
        # Of what servers have had, some came again: there was no connection.
        given_up=(75 - 5 + 11) - (37 + 19 + 7 + 1 - 7) - (14 - 2 + 3),
    )


def test_a_backend_without_a_half_for_grpc_is_that_of_http():
    """An engine without calls of gRPC; a configuration of before still has the half."""
    with_half = SHOWN.replace("triton2", "llamacpp2")
    without = "\n".join(line for line in with_half.split("\n") if "llamacpp2-grpc" not in line)
    assert "-grpc" in without
    assert parse(without) == parse(with_half)
    assert parse(without).backends["llamacpp2"] == parse(SHOWN).backends["triton2"]


@pytest.mark.parametrize(
    "change",
    [
        SetTarget("llamacpp2", 0, Endpoint("10.0.0.1", 21001, 21001, "QUJD"), 4),
        SetConcurrency("llamacpp2", 0, 4),
        EndSessions("llamacpp2", 0),
        SendRound("llamacpp2"),
    ],
)
def test_no_command_names_a_half_that_is_not_there(change: GatewayChange):
    maps = Maps(Path("/gw"))
    assert "-grpc" not in "".join(commands(change, maps))
    assert "-grpc" in "".join(commands(replace(change, backend="triton2"), maps))


def test_a_glance_asks_for_no_half_that_is_not_there():
    with_half = parse(SHOWN.replace("triton2", "llamacpp2"))
    idle = Backend(1, 0, ())
    found = replace(with_half, backends={**with_half.backends, "llamacppidle7": idle})
    asked = glance_questions(Maps(Path("/gw")), LastLook.of("1", found))
    assert "show stat llamacpp2 6 -1" in asked
    assert "show stat triton1-grpc 6 -1" in asked
    assert not [one for one in asked if "llamacpp" in one and "-grpc" in one]
    more = idle_questions(GLANCE, LastLook.of("1", found))
    assert "show stat llamacppidle7 6 -1" in more
    assert not [one for one in more if "-grpc" in one]


def test_a_server_that_lets_a_health_check_run_out_of_time_is_silent():
    """Also while the next check is under way; one that refuses the connection has ended."""
    assert [one.is_silent for one in parse(SHOWN).backends["triton2"].servers] == [False, True]
    refuses = parse(SHOWN.replace("* L7TOUT,", "L4CON,Connection refused")).backends["triton2"]
    assert not any(one.is_silent for one in refuses.servers)
    assert [one.is_refused for one in refuses.servers] == [False, True]
    away = parse(SHOWN.replace("* L7TOUT,", "L4CON,No route to host")).backends["triton2"]
    assert not any(one.is_refused for one in away.servers)


@pytest.mark.parametrize("word", ["a\x0bb", "a\x0cb", "a\x1cb", "a\x85b", "a\u2028b", "a b"])
def test_what_a_replica_says_of_its_health_splits_no_row(word: str):
    """As part of a row HAProxy shows it; its owner chooses it, and all tenants' state was lost."""
    said = SHOWN.replace(STATS, f"{STATS}last_chk,").replace("L7OK,", f"L7OK,{word},")
    assert parse(said) == parse(SHOWN)


def test_estimates_and_how_many_may_wait_are_read():
    entries = (
        *("vision/chat 42", "nlp/bert 9", "nlp/bert no%20such%20file%3B%20100%25"),
        *("vision/chat 2500", "nlp/bert yes"),
    )
    text = "".join(f"\n\n0x7f0f9404bef0 {entry}" for entry in entries)
    told = parse(SHOWN.replace("\n\n\n\n\n\n\n\n\n0x7", f"{text}\n\n\n\n0x7", 1))
    assert told.terms == {
        "vision/chat": Terms(retry_after_s=42, deadline_ms=2500),
        "nlp/bert": Terms(closing=True, in_time=9, failing="no such file; 100%", retry_once=True),
    }


def test_services_whose_sequences_stay_together_are_read():
    told = SHOWN.replace("\n\n\n0x7f0f9404bef0 triton1/r2", "\n0x7 t/a yes\n\n\n0x7 triton1/r2", 1)
    assert parse(told).terms["t/a"] == Terms(sequences=True)
    assert parse(told).asked == set()


def test_the_mark_is_no_route():
    marked = parse(f"0x7f0f9404be00 .complete yes\n{SHOWN}")
    assert (marked.complete, marked.routes) == (True, parse(SHOWN).routes)
    assert not parse(SHOWN).complete


def test_routes_are_kept_only_if_they_are_others(tmp_path: Path):
    path = tmp_path / "services.map"
    path.write_text("")
    path.chmod(0o640)
    runtime = HaproxyRuntime(settings(tmp_path))
    runtime.keep({"vision/chat": "triton2", "nlp/bert": "triton1"})
    assert path.read_text() == "nlp/bert triton1\nvision/chat triton2\n"
    assert path.stat().st_mode & 0o777 == 0o640
    written = path.stat().st_ino
    runtime.keep({"nlp/bert": "triton1", "vision/chat": "triton2"})
    assert (path.stat().st_ino, list(tmp_path.iterdir())) == (written, [path])


REPLICA = Endpoint("10.0.0.1", 21001, 21002, "CCCC")
PEM = "-----BEGIN CERTIFICATE-----\nCCCC\n-----END CERTIFICATE-----\n"


def test_a_dead_server_that_drains_is_still_known_to_drain():
    dead = parse(SHOWN).backends["triton2"].servers[1]
    assert (dead.mode, dead.up) == (ServerMode.DRAIN, False)


@pytest.mark.parametrize(
    "text", ["", "Unknown map identifier.\n", SHOWN[:120], SHOWN.replace("qcur", "quux")]
)
def test_something_else_is_no_observation(text: str):
    with pytest.raises((KeyError, ValueError, IndexError)):
        parse(text)


def set_terms(**changed: tuple[object, object]) -> SetTerms:
    """The change of one service's terms, each from one value to another."""
    before, terms = ({name: pair[i] for name, pair in changed.items()} for i in (0, 1))
    return SetTerms("t/a", Terms(**terms), Terms(**before))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (SetMode("triton1", 0, ServerMode.DRAIN), ("set server triton1/r1 state drain",)),
        (SetHealthy("triton1", 2), ("set server triton1/r3 health up",)),
        (
            EndSessions("triton1", 0),
            (
                "shutdown sessions server triton1/r1",
                "shutdown sessions server triton1-grpc/r1",
            ),
        ),
        (
            SetTarget("triton1", 1, REPLICA, 4),
            (
                f"set ssl ca-file {DIRECTORY}/replicas/triton1.r2.pem <<\n{PEM}",
                f"commit ssl ca-file {DIRECTORY}/replicas/triton1.r2.pem",
                "set server triton1/r2 addr 10.0.0.1 port 1",
                "set server triton1-grpc/r2 addr 10.0.0.1 port 1",
                "set server triton1/r2 addr 10.0.0.1 port 21001",
                "set server triton1-grpc/r2 addr 10.0.0.1 port 21002",
                "set maxconn server triton1/r2 4",
                "set maxconn server triton1-grpc/r2 4",
                f"add map {DIRECTORY}/replicas.map triton1/r2 -",
                f"del map {DIRECTORY}/replicas.map triton1/r2",
                f"add map {DIRECTORY}/replicas.map triton1/r2 {REPLICA.digest}",
            ),
        ),
        (
            SendRound("triton1"),
            (
                "set server triton1/again state maint;set server triton1/again state ready",
                (
                    "set server triton1-grpc/again state maint;"
                    "set server triton1-grpc/again state ready"
                ),
            ),
        ),
        (set_terms(closing=(False, True)), (f"add map {DIRECTORY}/closing.map t/a yes",)),
        (set_terms(closing=(True, False)), (f"del map {DIRECTORY}/closing.map t/a",)),
        (set_terms(retry_after_s=(None, 7)), (f"add map {DIRECTORY}/retry.map t/a 7",)),
        (set_terms(retry_after_s=(9, 7)), (f"set map {DIRECTORY}/retry.map t/a 7",)),
        (set_terms(retry_after_s=(9, None)), (f"del map {DIRECTORY}/retry.map t/a",)),
        (set_terms(failing=("", "no; 1%")), (f"add map {DIRECTORY}/failing.map t/a no%3B%201%25",)),
        (set_terms(failing=("no", "none")), (f"set map {DIRECTORY}/failing.map t/a none",)),
        (set_terms(failing=("no", "")), (f"del map {DIRECTORY}/failing.map t/a",)),
        (set_terms(in_time=(None, 7)), (f"add map {DIRECTORY}/in_time.map t/a 7",)),
        (set_terms(in_time=(9, 0)), (f"set map {DIRECTORY}/in_time.map t/a 0",)),
        (set_terms(in_time=(0, 1)), (f"set map {DIRECTORY}/in_time.map t/a 1",)),
        (set_terms(in_time=(9, None)), (f"del map {DIRECTORY}/in_time.map t/a",)),
        (set_terms(deadline_ms=(None, 2500)), (f"add map {DIRECTORY}/deadlines.map t/a 2500",)),
        (set_terms(deadline_ms=(2500, None)), (f"del map {DIRECTORY}/deadlines.map t/a",)),
        (set_terms(retry_once=(False, True)), (f"add map {DIRECTORY}/retry_once.map t/a yes",)),
        (set_terms(retry_once=(True, False)), (f"del map {DIRECTORY}/retry_once.map t/a",)),
        (set_terms(sequences=(False, True)), (f"add map {DIRECTORY}/sequences.map t/a yes",)),
        (
            set_terms(closing=(False, True), retry_after_s=(7, 7), in_time=(3, None)),
            (f"add map {DIRECTORY}/closing.map t/a yes", f"del map {DIRECTORY}/in_time.map t/a"),
        ),
        (AddRoute("vision/chat", "triton1"), (f"add map {MAP} vision/chat triton1",)),
        (MoveRoute("vision/chat", "triton2"), (f"set map {MAP} vision/chat triton2",)),
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
            await HaproxyRuntime(settings(tmp_path)).apply(
                [SetMode("triton1", 0, ServerMode.DRAIN)]
            )
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

    target = SetTarget("triton1", 0, REPLICA, 2)
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

    keys = {"a" * 64: KeyGrant(opens="vision", key_id="b" * 12, person="alice")}
    async with await asyncio.start_unix_server(refuse, socket):
        with pytest.raises(OutsideError, match="SW-GATEWAY-FAILED") as raised:
            await HaproxyRuntime(settings(tmp_path)).set_grants(GrantsAnswer(keys=keys))
    assert "aaaa" not in str(raised.value)


async def test_nobody_there_is_unreachable(tmp_path: Path):
    with pytest.raises(UnreachableError, match="SW-GATEWAY-DOWN"):
        await HaproxyRuntime(settings(tmp_path, "none.sock")).observe()


INFO = "Name: HAProxy\nPid: {}\nStart_time_sec: {}\nnode: a: b\n"
GLANCE = f"""\
0x7f0f9404bef0 vision/chat triton1









0x7f0f9404bef0 triton1/r2 d1635

0x7f0f9404bef0 triton1-grpc/r1 2

0x7f0f9404bef0 nlp/bert:legal 0
0x7f0f9404bef0 nlp/bert:legal/2 7

{STATS}
tenants,BACKEND,0,0,0,0,0,0,0,UP,,0,0,0,,,,
triton1,r1,0,0,0,0,2,0,0,UP,10.0.0.1:21001,30,4,3,2,L7OK,,
triton1,again,0,0,5,0,0,0,0,no check,unix,0,0,0,,,,
triton1,BACKEND,0,0,5,0,0,0,0,UP,,0,0,0,,,,
triton1-grpc,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
triton1-grpc,BACKEND,0,0,0,0,0,0,0,UP,,0,0,0,,,,
triton2,again,0,1,3,0,0,0,0,no check,unix,0,0,0,,,,
triton2,BACKEND,1,3,5,0,0,0,0,DOWN,,0,0,0,,,,
triton2-grpc,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
triton2-grpc,BACKEND,0,0,0,0,0,0,0,DOWN,,0,0,0,,,,
triton3,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
triton3,BACKEND,0,0,0,0,0,0,0,DOWN,,0,0,0,,,,
triton3-grpc,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
triton3-grpc,BACKEND,0,0,0,0,0,0,0,DOWN,,0,0,0,,,,

1
{STATES}
3 triton1 1 r1 127.0.0.1 2 4 1
3 triton1 2 r2 127.0.0.1 2 12 1
3 triton1 3 again - 2 0 1

{STATS}
triton1,r1,1,3,40,900,2,4,1,UP,10.0.0.1:21001,30,4,3,2,L7OK,,
triton1,r2,0,1,20,0,0,0,0,DRAIN,10.0.0.2:21004,0,0,0,2,,,
triton1,again,0,2,5,0,0,0,0,no check,unix,0,0,0,,,,
triton1,BACKEND,5,14,75,0,0,0,0,UP,,0,0,0,,,,

{STATS}
triton1-grpc,r1,0,2,9,80,1,0,2,UP,10.0.0.1:21002,7,0,0,2,,,
triton1-grpc,r2,0,0,1,0,0,0,0,DRAIN (via triton1/r2),10.0.0.2:21005,0,0,0,2,,,
triton1-grpc,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
triton1-grpc,BACKEND,1,3,11,0,0,0,0,UP,,0,0,0,,,,

"""
KNOWN = LastLook(
    "31 since 17", {"triton1": 2, "triton2": 2, "triton3": 12}, frozenset({"triton1"}), live=2
)


def glanced(text: str = GLANCE) -> Gateway:
    found = parse_glance(text, KNOWN)
    assert found is not None
    return found


def test_a_glance_shows_a_routed_backend_whole():
    assert glanced().backends["triton1"] == parse(SHOWN).backends["triton1"]


def test_a_glance_shows_of_other_backends_what_waits_there():
    """A backend with requests in it is given to no service."""
    found = glanced().backends
    assert list(found) == ["triton1", "triton2", "triton3"]
    assert (found["triton2"].sessions, found["triton2"].queued) == (3 - 1, 1)
    assert [len(backend.servers) for backend in found.values()] == [2, 2, 12]
    assert {server.mode for server in found["triton3"].servers} == {ServerMode.MAINT}


@pytest.mark.parametrize(
    ("shown", "instead"),
    [
        ("vision/chat triton1\n", "vision/chat triton1\n0x1 nlp/bert triton2\n"),
        ("triton2,again", "triton2,r2,0,0,0,0,0,0,0,DRAIN,127.0.0.1:9,0,0,0,,,\ntriton2,again"),
        (
            "triton3-grpc,again",
            "triton3-grpc,r1,0,0,0,0,0,0,0,UP,127.0.0.1:9,0,,,,,\ntriton3-grpc,again",
        ),
    ],
    ids=["a new route", "a server in use", "a server in use by gRPC"],
)
def test_a_glance_is_not_enough_where_there_is_more(shown: str, instead: str):
    assert parse_glance(GLANCE.replace(shown, instead, 1), KNOWN) is None


@pytest.mark.parametrize(
    "text", ["", GLANCE[:700], GLANCE[:-400], GLANCE.replace("\n1\n", "\n2\n")]
)
def test_half_a_glance_is_no_observation(text: str):
    with pytest.raises((KeyError, ValueError, IndexError)):
        parse_glance(text, KNOWN)


def test_a_glance_leaves_out_servers_in_maintenance_where_no_route_leads():
    asked = glance_questions(Maps(DIRECTORY), KNOWN)
    assert asked[12:] == (
        "show stat -1 6 -1 no-maint",
        "show servers state triton1",
        "show stat triton1 6 -1",
        "show stat triton1-grpc 6 -1",
    )


@pytest.mark.parametrize(
    ("backends", "servers", "routed", "live", "is_glance"),
    [
        (8, 2, 0, 0, True),
        (8, 2, 1, 2, True),
        # 42 kB instead of 23.
        (8, 2, 6, 12, False),
        (8, 2, 8, 16, False),
        (64, 16, 20, 100, True),
        (64, 16, 20, 320, True),
        (64, 16, 40, 100, False),
    ],
)
def test_a_glance_asks_for_fewer_lines_than_there_are(
    backends: int, servers: int, routed: int, live: int, is_glance: bool
):
    lines = {f"triton{number}": servers for number in range(1, backends + 1)}
    known = LastLook("31 since 17", lines, frozenset(list(lines)[:routed]), live)
    assert bool(glance_questions(Maps(DIRECTORY), known)) == is_glance


IDLE_ROWS = "".join(
    f"tritonidle{number}{half},{name},0,0,0,0,0,0,0,UP,,0,0,0,,,\n"
    for number in (1, 2)
    for half in ("", "-grpc")
    for name in ("again", "BACKEND")
)
WITH_IDLE = SHOWN.replace("successor,again", f"{IDLE_ROWS}successor,again").replace(
    "triton2\n", "tritonidle1\n", 1
)
HELD = f"""
{STATS}
tritonidle1,again,0,1,3,0,0,0,no check,unix,0,0,0,,,,
tritonidle1,BACKEND,0,3,9,0,0,0,UP,,0,0,0,,,,

{STATS}
tritonidle1-grpc,again,0,0,0,0,0,0,0,no check,unix,0,0,0,,,,
tritonidle1-grpc,BACKEND,0,0,0,0,0,0,0,UP,,0,0,0,,,,

"""


def of_idle(number: int) -> str:
    """The answer to a glance of which no idle backend was asked; ``nlp/bert`` has been marked."""
    text = GLANCE.replace("triton1\n", f"triton1\n0x1 nlp/bert tritonidle{number}\n", 1)
    return text.replace("\n0x7f0f9404bef0 triton1/r2", "0x2 nlp/bert yes\n\n0x7 triton1/r2", 1)


def test_a_backend_without_servers_is_seen_only_where_requests_wait():
    seen = parse(WITH_IDLE)
    known = LastLook.of("31 since 17", seen)
    assert (sorted(known.lines), sorted(known.idle)) == (
        ["triton1", "triton2"],
        ["tritonidle1", "tritonidle2"],
    )
    assert seen.group("triton").keys() == known.lines.keys()
    asked = glance_questions(Maps(DIRECTORY), known)
    assert not any("idle" in question for question in asked)
    assert asked[12:14] == (
        "show stat triton2 6 -1 no-maint",
        "show stat triton2-grpc 6 -1 no-maint",
    )
    known = replace(known, lines=KNOWN.lines)
    assert idle_questions(GLANCE, known) == ()
    assert idle_questions(of_idle(1), known) == (
        "show stat tritonidle1 6 -1",
        "show stat tritonidle1-grpc 6 -1",
    )
    found = parse_glance(of_idle(1) + HELD, known)
    assert found is not None
    held = load_of(found.backend_of("nlp/bert"))
    assert (held.held, held.arrived, held.given_up) == (2, 6, 4)
    assert found.backends["tritonidle2"] == Backend(0, 0, ())
    # It is asked again until the requests have left, also once its service has moved.
    again = LastLook.of("31 since 17", found)
    assert (again.quiet, idle_questions(GLANCE, again)) == (
        set(),
        idle_questions(of_idle(1), known),
    )
    moved = LastLook.of("31 since 17", replace(found, routes={"nlp/bert": "triton2"}))
    assert quiet_commands(Maps(DIRECTORY), moved) == (f"del map {DIRECTORY}/asked.map nlp/bert",)


def test_a_route_that_the_launcher_sets_needs_no_look_at_everything():
    known = KNOWN.with_changes([MoveRoute("nlp/bert", "triton2"), AddRoute("a/b", "tritonidle1")])
    assert known.routed == {"triton1", "triton2"}


def test_servers_in_maintenance_are_not_live():
    maintained = replace(parse(SHOWN), routes={"vision/chat": "triton1", "nlp/bert": "triton2"})
    assert [server.mode for server in maintained.backends["triton2"].servers].count(
        ServerMode.MAINT
    ) == 1
    assert LastLook.of("31 since 17", maintained) == LastLook(
        "31 since 17", {"triton1": 2, "triton2": 2}, frozenset({"triton1", "triton2"}), live=3
    )


def test_a_process_that_began_anew_with_the_same_number_is_another():
    assert process_of(INFO.format(8, 1700)) != process_of(INFO.format(8, 1701))


def test_a_process_of_another_host_with_the_same_numbers_is_another():
    here = INFO.format(8, 1700)
    assert process_of(here) == "a_b-8-1700"
    assert number_of(process_of(here)) == 8
    assert process_of(here) != process_of(here.replace("node: a", "node: c"))
    named = process_of(here.replace("node: a: b", f"node: {'é-' * 80}"))
    assert TypeAdapter(Boot).validate_python(named) == f"{'_-' * 20}-8-1700"


def test_what_is_no_process_has_no_name():
    with pytest.raises(ValueError, match="no process"):
        process_of("Name: HAProxy\nPid: 8\n")


class FakeHaproxy:
    """Answers as HAProxy and its master do.

    Attributes:
        process: by number and start.
        old: processes that a reload has replaced.
        came: routes that have come.
        glance: what it says to a glance.
        of_old: what the master answers for these.
        asked: how the process, and its master, were asked.
    """

    def __init__(self) -> None:
        self.process = (31, 17)
        self.old = ""
        self.of_old = "\n"
        self.came = ""
        self.glance = GLANCE
        self.asked: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode()
        if "show proc" in line:
            self.asked.append("master")
            answer = f"# workers\n31 worker 0 0d00h\n# old workers\n{self.old}# programs\n\n"
        elif "@!" in line:
            self.asked.append("old")
            answer = self.of_old
        else:
            is_glance = "no-maint" in line
            self.asked.append("glance" if is_glance else "all")
            shown = f"{self.came}{self.glance if is_glance else ALL}"
            answer = f"{INFO.format(*self.process)}\n{shown}"
        writer.write(answer.encode())
        writer.close()

    @asynccontextmanager
    async def serving(self, directory: Path) -> AsyncIterator[HaproxyRuntime]:
        known = settings(directory)
        async with (
            await asyncio.start_unix_server(self.answer, known.runtime_socket),
            await asyncio.start_unix_server(self.answer, known.master_socket),
        ):
            yield HaproxyRuntime(known)


class Late:
    """Answers many bytes once that is due, and sees whether the client has heard them all."""

    def __init__(self) -> None:
        self.is_due, self.is_asked = asyncio.Event(), asyncio.Event()
        self.asked = self.open = self.most_at_once = 0
        self.heard: list[bool] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        self.asked += 1
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)
        self.is_asked.set()
        await self.is_due.wait()
        writer.write(b" " * 5_000_000)
        try:
            await writer.drain()
        except ConnectionError:
            self.heard.append(False)
        else:
            self.heard.append(True)
        self.open -= 1
        writer.close()


THIRD = "".join(
    f"triton3{half},{name},0,0,0,0,0,0,0,MAINT,127.0.0.1:1,0,0,0,,,\n"
    for half in ("", "-grpc")
    for name in (*(f"r{number}" for number in range(1, 13)), "again", "BACKEND")
)
ALL = (
    SHOWN.replace("0x7f0f9404bf50 nlp/bert triton2\n", "")
    .replace(
        "7 successor 1",
        "".join(f"9 triton3 {number} r{number} - 0 1 1\n" for number in range(1, 13))
        + "7 successor 1",
        1,
    )
    .replace("successor,again", f"{THIRD}successor,again", 1)
)


@pytest.mark.parametrize(
    ("named", "own", "is_open"),
    [
        ("[ssl]\nGroups = X25519:P-256\n", "", False),
        ("# Groups = X25519\n", "Groups = X25519", True),
        (None, " Groups=P-256\n", False),
        (None, "openssl_conf = x\n", True),
        (None, None, True),
    ],
)
async def test_whether_haproxy_takes_any_group_of_tls_is_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    own: str | None,
    is_open: bool,
):
    """``named`` is the file of its OPENSSL_CONF, ``own`` OpenSSL's; None if there is none."""
    for name, text in (("named", named), ("own", own)):
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr("slicewise.launcher.gateway.haproxy._OPENSSL_OWN", tmp_path / "own")
    said = "Variable not found\n" if named is None else f"OPENSSL_CONF={tmp_path}/named\n\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"show env OPENSSL_CONF\n"
        writer.write(said.encode())
        writer.close()

    known = settings(tmp_path)
    runtime = HaproxyRuntime(known)
    # Nobody answers yet.
    assert not await runtime.takes_any_group()
    async with await asyncio.start_unix_server(answer, known.runtime_socket):
        assert await runtime.takes_any_group() == is_open


async def test_after_a_glance_that_nobody_can_read_all_is_asked_for(tmp_path: Path):
    """Each further look met the same."""
    fake = FakeHaproxy()
    async with fake.serving(tmp_path) as runtime:
        await runtime.observe()
        fake.glance = GLANCE[:700]
        with pytest.raises(OutsideError, match="SW-GATEWAY-FAILED"):
            await runtime.observe()
        assert (await runtime.observe()).routes == {"vision/chat": "triton1"}
    assert fake.asked == ["all", "master", "glance", "all"]


async def test_a_glance_that_no_line_can_hold_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("slicewise.launcher.gateway.haproxy._LINE_BYTES", 500)
    fake = FakeHaproxy()
    async with fake.serving(tmp_path) as runtime:
        for _ in range(2):
            await runtime.observe()
    assert fake.asked == ["all", "master", "all"]


async def test_all_is_asked_for_only_after_a_start_of_haproxy(tmp_path: Path):
    fake = FakeHaproxy()
    async with fake.serving(tmp_path) as runtime:
        for _ in range(3):
            await runtime.observe()
        assert fake.asked == ["all", "master", "glance", "glance"]
        fake.process = (31, 18)
        assert (await runtime.observe()).routes == {"vision/chat": "triton1"}
        assert fake.asked[4:] == ["glance", "all", "master"]


async def test_replaced_processes_are_looked_for_until_none_is_left(tmp_path: Path):
    fake = FakeHaproxy()
    async with fake.serving(tmp_path) as runtime:
        await runtime.observe()
        fake.process, fake.old = (32, 20), "31 worker 1 0d00h\n"
        await runtime.observe()
        await runtime.observe()
        fake.old = ""
        await runtime.observe()
        await runtime.observe()
    masters = [index for index, asked in enumerate(fake.asked) if asked == "master"]
    assert (fake.asked[-1], len(masters)) == ("glance", 4)


async def test_without_a_master_nothing_is_known_of_replaced_processes(tmp_path: Path):
    """Until one is there: the next look asks it."""
    fake = FakeHaproxy()
    async with fake.serving(tmp_path) as runtime:
        master = settings(tmp_path).master_socket
        hidden = master.rename(tmp_path / "hidden")
        assert (await runtime.observe()).routes == {"vision/chat": "triton1"}
        hidden.rename(master)
        await runtime.observe()
    assert fake.asked == ["all", "glance", "master"]


async def test_a_master_that_does_not_answer_hides_no_replaced_process(tmp_path: Path):
    """A replica that one of them still asks would be ended."""
    fake, known = FakeHaproxy(), settings(tmp_path)
    async with await asyncio.start_unix_server(fake.answer, known.runtime_socket):
        known.master_socket.touch()
        with pytest.raises(UnreachableError, match=r"-master.*SW-GATEWAY-DOWN"):
            await HaproxyRuntime(known).observe()


async def test_a_replaced_process_that_ends_is_asked_once(tmp_path: Path):
    """Of ten questions in a row that its master could not pass on it answered nobody any more."""
    fake = FakeHaproxy()
    fake.old, fake.of_old = "17 worker 1 0d00h\n", ""
    async with fake.serving(tmp_path) as runtime:
        await runtime.observe()
        await runtime.observe()
        assert fake.asked.count("old") == 1
        # It is another process whose number comes back later.
        fake.old = ""
        await runtime.observe()
        fake.old, fake.process = "17 worker 1 0d00h\n", (32, 18)
        await runtime.observe()
    assert fake.asked.count("old") == 2


async def test_a_route_that_came_shows_its_backend_in_the_same_look(tmp_path: Path):
    fake = FakeHaproxy()
    async with fake.serving(tmp_path) as runtime:
        await runtime.observe()
        fake.came = "0x7f0f9404bf50 nlp/bert triton2\n"
        found = await runtime.observe()
    assert fake.asked[2:] == ["glance", "all"]
    assert found.backends["triton2"].servers == parse(SHOWN).backends["triton2"].servers


def test_many_long_commands_go_in_lines_that_haproxy_can_read():
    """64 keys of long service names were more than HAProxy's buffer: none was set any more."""
    told = [
        f"add map {DIRECTORY}/keys.map {number:064} {'t' * 63}/{'s' * 63}" for number in range(200)
    ]
    lines = list(haproxy._lines(told))
    assert ";".join(lines).split(";") == told
    assert max(map(len, lines)) < 15 * 1024
    assert max(line.count(";") for line in haproxy._lines(["show info"] * 200)) == 63


@pytest.mark.parametrize("services", [2, 10_000])
async def test_a_look_at_thousands_of_backends_may_take_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, services: int
):
    """At 10,000 it has 11 MB."""
    monkeypatch.setattr(haproxy, "DEADLINE_S", -1.0)
    known = settings(tmp_path).model_copy(update={"services": services, "backends": 2})
    runtime, fake = HaproxyRuntime(known), FakeHaproxy()
    async with await asyncio.start_unix_server(fake.answer, known.runtime_socket):
        if services == 10_000:
            assert (await runtime.observe()).routes == {"vision/chat": "triton1"}
        else:
            with pytest.raises(UnreachableError, match="SW-GATEWAY-DOWN"):
                await runtime.observe()


@pytest.mark.parametrize("is_glance", [False, True])
async def test_a_late_answer_is_heard_to_its_end_before_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_glance: bool
):
    """HAProxy 3.2.26 crashed at a question after one whose answer was left half read."""
    fake, late = FakeHaproxy(), Late()
    known = settings(tmp_path)
    runtime = HaproxyRuntime(known)
    if is_glance:
        async with await asyncio.start_unix_server(fake.answer, known.runtime_socket):
            await runtime.observe()
    async with await asyncio.start_unix_server(late.answer, known.runtime_socket):
        with monkeypatch.context() as hasty:
            hasty.setattr(haproxy, "DEADLINE_S", 0.05)
            hasty.setattr(runtime, "_everything_s", 0.05)
            for _ in range(2):
                with pytest.raises(UnreachableError, match="SW-GATEWAY-DOWN"):
                    await runtime.observe()
        assert late.asked == 1
        late.is_due.set()
        with pytest.raises(OutsideError, match="SW-GATEWAY-FAILED"):
            await runtime.observe()
    assert late.heard == [True, True]


@pytest.mark.parametrize("is_interrupted", [False, True])
async def test_a_command_hears_a_late_answer_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_interrupted: bool
):
    """Its loop ended within the answer: after the deadline, or by Ctrl-C."""
    late, down = Late(), haproxy._down

    def given_up(socket: Path, error: OSError) -> UnreachableError:
        late.is_due.set()
        return down(socket, error)

    monkeypatch.setattr(haproxy, "DEADLINE_S", 60.0 if is_interrupted else 0.05)
    monkeypatch.setattr(haproxy, "_SERVICES_PER_S", 1e9)
    monkeypatch.setattr(haproxy, "_down", given_up)
    known = Settings.model_construct(gateway=settings(tmp_path))
    async with await asyncio.start_unix_server(late.answer, known.gateway.runtime_socket):
        asking = asyncio.create_task(overview._gateway(known, ()))
        await late.is_asked.wait()
        if is_interrupted:
            asking.cancel()
            late.is_due.set()
        error = asyncio.CancelledError if is_interrupted else UnreachableError
        with pytest.raises(error):
            await asking
        assert late.heard == [True]


async def test_a_command_does_not_wait_for_a_process_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("_AT_END_S", "DEADLINE_S"):
        monkeypatch.setattr(haproxy, name, 0.05)
    monkeypatch.setattr(haproxy, "_SERVICES_PER_S", 1e9)
    late, known = Late(), Settings.model_construct(gateway=settings(tmp_path))
    async with await asyncio.start_unix_server(late.answer, known.gateway.runtime_socket):
        with pytest.raises(UnreachableError, match="SW-GATEWAY-DOWN"):
            await overview._gateway(known, ())
        assert late.heard == []
        late.is_due.set()


async def test_two_that_ask_at_once_are_answered_one_after_the_other(tmp_path: Path):
    late, known = Late(), settings(tmp_path)
    runtime = HaproxyRuntime(known)
    async with await asyncio.start_unix_server(late.answer, known.runtime_socket):
        asking = [asyncio.create_task(runtime.observe()) for _ in range(3)]
        await late.is_asked.wait()
        late.is_due.set()
        await asyncio.wait(asking)
    assert (late.heard, late.most_at_once) == ([True] * 3, 1)


async def test_a_process_that_hangs_is_not_heard_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A reload has replaced it since."""
    monkeypatch.setattr(haproxy, "LATEST_S", 0.2)
    fake, hangs = FakeHaproxy(), list[asyncio.StreamWriter]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if hangs:
            await fake.answer(reader, writer)
        else:
            hangs.append(writer)

    known = settings(tmp_path)
    runtime = HaproxyRuntime(known)
    async with await asyncio.start_unix_server(answer, known.runtime_socket):
        with monkeypatch.context() as hasty:
            hasty.setattr(runtime, "_everything_s", 0.05)
            with pytest.raises(UnreachableError, match="SW-GATEWAY-DOWN"):
                await runtime.observe()
        assert (await runtime.observe()).routes == {"vision/chat": "triton1"}
        hangs[0].close()
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_backend_that_no_request_has_come_to_is_not_asked_until_it_is_used():
    shown = parse(WITH_IDLE)
    vacant = Backend(0, 0, (replace(shown.backends["triton2"].servers[0], mode=ServerMode.MAINT),))
    used = replace(vacant, arrived=7)
    backends = {**shown.backends, "triton2": vacant, "triton3": used, "triton4": vacant}
    known = LastLook.of("31 since 17", replace(shown, backends=backends, routes={}))
    assert known.unused.keys() == {"triton2", "triton4"}

    def asked(known: LastLook) -> set[str]:
        return {
            name
            for name in backends
            for question in glance_questions(Maps(DIRECTORY), known)
            if question.startswith(f"show stat {name} ")
        }

    assert asked(known) == {"triton1", "triton3"}
    target = SetMode("triton4", 0, ServerMode.READY)
    assert asked(known.with_changes([target])) == {"triton1", "triton3", "triton4"}
    assert asked(known.with_changes([AddRoute("a/b", "triton2")])) == {
        "triton1",
        "triton2",
        "triton3",
    }
    assert known.with_changes([AddRoute("a/b", "triton2")]).unused.keys() == {"triton4"}


@pytest.mark.parametrize("change", ["sessions", "arrived"])
def test_a_backend_that_a_request_has_come_to_is_asked(change: str):
    vacant = Backend(0, 0, (VACANT,))
    seen = replace(parse(WITH_IDLE), routes={}, backends={"triton1": vacant, "triton2": vacant})
    assert LastLook.of("31 since 17", seen).unused.keys() == {"triton1", "triton2"}
    touched = {**seen.backends, "triton2": replace(vacant, **{change: 1})}
    seen = replace(seen, backends=touched)
    assert LastLook.of("31 since 17", seen).unused.keys() == {"triton1"}


def test_what_was_not_asked_is_as_it_was_seen_last():
    unused = Backend(0, 0, (VACANT,) * 3)
    known = replace(KNOWN, lines={**KNOWN.lines, "triton9": 3}, unused={"triton9": unused})
    found = parse_glance(GLANCE, known)
    assert found is not None
    assert found.backends["triton9"] == unused


def test_limits_are_those_of_the_names_that_allowances_have():
    limits = RequestLimits(concurrent=3, models=("nlp/chat",))
    subjects = [
        SubjectLimits(tenant="nlp", limits=limits),
        SubjectLimits(tenant="nlp", person="carol", limits=limits),
        SubjectLimits(tenant="nlp", key_id="key1", limits=limits),
    ]
    entries = limit_entries(subjects)
    assert {name for name in entries if "=" not in name} == set(subjects_of("nlp", "carol", "key1"))
    assert entries["nlp//key1=nlp/chat"] == "yes"
