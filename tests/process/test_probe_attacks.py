"""A replica that misbehaves costs its own service only: the launcher's loop goes on, and others are
found ready meanwhile. The replica is its tenant's program and may send whatever it likes.
"""

import asyncio
import base64
import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE

import pytest
from builders.replica_keys import Keys, gateway_directory, replica_context, replica_keys
from stand_ins.session_flood import SessionFlood

from slicewise.launcher.gateway import identity
from slicewise.launcher.probing import prober as probing
from slicewise.launcher.probing.bounded_tls import BoundedTls, TooLongError, connected
from slicewise.launcher.probing.prober import Prober, Replica, probe
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.engines.registry import ENGINES

ME = "bert.814.0"
TRITON = ENGINES["triton"]
PATIENCE_S = 60
TURN_BYTES = 4096
"""Read of one answer at most until all others that are asked have had their turn."""
MOST_BYTES = 2 * 256 * 1024 + 24 * 1024
"""Read of one connection at most, whatever is sent there."""
CHEAP_BYTES = 32 * 1024
"""Read of one connection at most where the replica is not asked less and less often."""


def answer(body: bytes, *headers: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    lines = (b"HTTP/1.1 200 OK", b"Connection: close", length, *headers)
    return b"\r\n".join((*lines, b"", body))


def said(name: bytes, value: bytes) -> bytes:
    return answer(b'{"%s": %s}' % (name, value))


def tensor(shape: bytes) -> bytes:
    return said(b"inputs", b'[{"name": "A", "datatype": "FP32", "shape": [%s]}]' % shape)


def well_behaved(path: bytes) -> bytes:
    """What Triton says."""
    if path == b"/v2":
        return said(b"name", b'"%s"' % ME.encode())
    if path == b"/v2/models/bert":
        return tensor(b"-1,4")
    return answer(b"{}")


def metadata(found: bytes) -> Callable[[bytes], bytes]:
    return lambda path: found if path == b"/v2/models/bert" else well_behaved(path)


DEEP = b"[" * 60 + b"]" * 60 + b","
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ATTACKS: dict[str, tuple[Callable[[bytes], bytes], bytes, str]] = {
    "a product of huge numbers": (
        metadata(tensor(b",".join([b"9" * 2000] * 1000))),
        b"",
        "262144 bytes",
    ),
    "20,000 dimensions": (metadata(tensor(b",".join([b"9" * 12] * 20_000))), b"", "20000 parts"),
    "a number of a million digits": (metadata(tensor(b"9" * 1_000_000)), b"", "262144 bytes"),
    "infinity": (metadata(tensor(b"1e999")), b"", ""),
    "4 MiB of lists": (metadata(answer(b"[" + b"[]," * 1_300_000 + b"[]]")), b"", "262144 bytes"),
    "4 MiB of name": (lambda _: said(b"name", b'"' + b"x" * 4_000_000 + b'"'), b"", "262144 bytes"),
    "deep lists": (metadata(answer(b"[" * 200_000 + b"]" * 200_000)), b"", "262144 bytes"),
    "many deep lists": (metadata(said(b"inputs", b"[" + DEEP * 300 + b"1]")), b"", ""),
    "100,000 inputs": (
        metadata(said(b"inputs", b"[" + b"{}," * 100_000 + b"{}]")),
        b"",
        "262144 bytes",
    ),
    "interim answers": (lambda _: b"", b"HTTP/1.1 100 \r\n\r\n" * 20_000, ""),
    "chunks of a byte": (lambda _: CHUNKED, b"1\r\nx\r\n" * 50_000, ""),
    "headers": (lambda _: b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * 50_000, "16384 bytes"),
    "a header without end": (lambda _: b"HTTP/1.1 200 OK\r\na: ", b"b" * 300_000, "16384 bytes"),
    "a body without end": (lambda _: b"HTTP/1.1 200 OK\r\n\r\n", b"[" * 300_000, "262144 bytes"),
}
"""Each answer, what follows it for as long as a client listens, and which bound its owner is told
of; none where the answer has no sense, or is no answer.
"""


class Server:
    """A replica of threads, so that what it does takes none of the loop's time."""

    def __init__(self, answers: Callable[[bytes], bytes], endless: bytes = b"") -> None:
        self.answers, self.endless = answers, endless
        self.pause_s = 0.0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.tls = replica_context(gateway_directory() / "gateway.crt", replica_keys())
        port, certificate = self.listener.getsockname()[1], replica_keys().certificate
        self.replica = Replica("127.0.0.1", port, certificate, 1000, "bert", ME, TRITON)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError, IndexError), self.tls.wrap_socket(plain, True) as connection:
            text = self.answers(connection.recv(65536).split()[1])
            step = 1 if self.pause_s else len(text) or 1
            for start in range(0, len(text), step):
                connection.sendall(text[start : start + step])
                time.sleep(self.pause_s)
            while self.endless:
                connection.sendall(self.endless)
            # Closing before all was read would reset the connection under the answer.
            while connection.recv(65536):
                pass


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def begun(answers: Callable[[bytes], bytes], endless: bytes = b"") -> Server:
        servers.append(Server(answers, endless))
        return servers[-1]

    yield begun
    for one in servers:
        # Closing alone leaves the thread that accepts in its call.
        with suppress(OSError):
            one.listener.shutdown(socket.SHUT_RDWR)
        one.listener.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no answer be late on a slow machine; what ends has ended by another bound."""
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)


class Meter:
    """Counts what is read from a port and written to it.

    Attributes:
        has_read: set once something has been read.
        most_bytes: the most that was read of one connection.
        turn_bytes: the most that was read before all others in the loop had their turn.
        part_bytes: the most that was written at a time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, port: int) -> None:
        self.has_read = asyncio.Event()
        self.most_bytes = self.turn_bytes = self.part_bytes = self._this_turn_bytes = 0
        open_connection = asyncio.open_connection

        async def metered(
            address: str, to_port: int, *, limit: int
        ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await open_connection(address, to_port, limit=limit)
            if to_port == port:
                monkeypatch.setattr(reader, "read", self._reading(reader.read))
                monkeypatch.setattr(writer, "write", partial(self._write, writer.write))
            return reader, writer

        monkeypatch.setattr(asyncio, "open_connection", metered)

    def _reading(
        self, read: Callable[[int], Awaitable[bytes]]
    ) -> Callable[[int], Awaitable[bytes]]:
        come_bytes = 0

        async def reading(count: int) -> bytes:
            nonlocal come_bytes
            part = await read(count)
            come_bytes += len(part)
            if not self._this_turn_bytes:
                asyncio.get_running_loop().call_soon(self._next_turn)
            self._this_turn_bytes += len(part)
            self.turn_bytes = max(self.turn_bytes, self._this_turn_bytes)
            self.most_bytes = max(self.most_bytes, come_bytes)
            self.has_read.set()
            return part

        return reading

    def _next_turn(self) -> None:
        self._this_turn_bytes = 0

    def _write(self, write: Callable[[bytes], None], data: bytes) -> None:
        self.part_bytes = max(self.part_bytes, len(data))
        write(data)


@pytest.mark.parametrize("name", ATTACKS)
async def test_others_are_found_ready_while_one_misbehaves(
    serve: Callable[..., Server], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, endless, told = ATTACKS[name]
    bad, good = serve(answers, endless).replica, serve(well_behaved).replica
    await others_are_found_ready(bad, good, told, monkeypatch)


async def test_sessions_to_resume_are_not_taken_without_end(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within TLS, before any answer: one step of the loop took 256 ms of its own."""
    flood = SessionFlood(replica_context(gateway_directory() / "gateway.crt", replica_keys()))
    good = serve(well_behaved).replica
    try:
        bad = replace(good, port=flood.port)
        await others_are_found_ready(bad, good, "262144 bytes", monkeypatch)
    finally:
        flood.close()


class Counted:
    """What comes on a connection; the end, once it is ten times what may be read."""

    def __init__(self, reader: asyncio.StreamReader, most_bytes: int) -> None:
        self._reader, self._most_bytes = reader, most_bytes
        self.come_bytes = 0

    async def read(self, count: int) -> bytes:
        if self.come_bytes > 10 * self._most_bytes:
            return b""
        part = await self._reader.read(count)
        self.come_bytes += len(part)
        return part


async def test_of_sessions_to_resume_no_more_is_read_than_of_an_answer() -> None:
    """However fast they are read: those that wait cost others nothing, and each takes time."""
    context = identity.context(gateway_directory(), replica_keys().certificate)
    flood = SessionFlood(replica_context(gateway_directory() / "gateway.crt", replica_keys()))
    reader, writer = await asyncio.open_connection("127.0.0.1", flood.port)
    most_bytes, beside_bytes = 16 * 1024, 24 * 1024
    come = Counted(reader, 2 * most_bytes + beside_bytes)
    try:
        tls = BoundedTls(come, writer, context, most_bytes)  # type: ignore[arg-type]
        await tls.shake_hands()
        with pytest.raises(TooLongError):
            await tls.until(b"\r\n", most_bytes)
    finally:
        writer.transport.abort()
        flood.close()
    assert come.come_bytes == 2 * most_bytes + beside_bytes


async def others_are_found_ready(
    bad: Replica, good: Replica, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter = Meter(monkeypatch, bad.port)
    prober = Prober(asyncio.Event(), partial(probe, gateway_directory()))
    prober.look([bad])
    async with asyncio.timeout(PATIENCE_S):
        await meter.has_read.wait()
        while prober.look([bad, good])[good] != Answer(Probe.OURS):  # noqa: ASYNC110 -- no event
            await asyncio.sleep(0.01)
    assert prober.look([bad])[bad].probe is Probe.SILENT
    prober.look([])
    answer = await probe(gateway_directory(), bad)
    assert answer.probe is Probe.SILENT
    assert told in answer.said
    assert bool(told) == bool(answer.said)
    # Two connections at most: the door tells of the start while the first inference runs.
    assert meter.turn_bytes <= 2 * TURN_BYTES
    assert meter.most_bytes <= (MOST_BYTES if answer.is_costly else CHEAP_BYTES)


def huge_modulus(file: Path) -> None:
    """Parameters of Diffie-Hellman as large as OpenSSL takes them; no code checks for a prime."""
    number = b"\x00" + b"\xff" * 1250
    body = b"\x02\x82" + len(number).to_bytes(2, "big") + number + b"\x02\x01\x02"
    der = b"\x30\x82" + len(body).to_bytes(2, "big") + body
    label = "DH PARAMETERS"
    text = base64.encodebytes(der).decode()
    file.write_text(f"-----BEGIN {label}-----\n{text}-----END {label}-----\n")


SLOW_KEYS = {
    "a number of 10,000 bits": "-tls1_2 -cipher DHE-RSA-AES128-GCM-SHA256 -dhparam dh.pem",
    "the largest known group": "-tls1_3 -groups ffdhe8192",
}


@pytest.fixture(params=SLOW_KEYS)
def slow_keys(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replica]:
    huge_modulus(tmp_path / "dh.pem")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=x -keyout k.pem -out c.pem"
    # One that may sign others is refused before anybody is asked.
    leaf = "-addext basicConstraints=critical,CA:FALSE"
    subprocess.run(f"{make} {leaf}".split(), cwd=tmp_path, check=True, capture_output=True)
    certificate = "".join((tmp_path / "c.pem").read_text().splitlines()[1:-1])
    serve = "openssl s_server -accept 127.0.0.1:0 -www -cert c.pem -key k.pem"
    words = f"{serve} {SLOW_KEYS[request.param]}".split()
    with subprocess.Popen(words, cwd=tmp_path, stdout=PIPE, stderr=DEVNULL) as server:
        assert server.stdout is not None
        ready = next(line for line in server.stdout if line.startswith(b"ACCEPT"))
        yield Replica(
            "127.0.0.1", int(ready.rpartition(b":")[2]), certificate, 1000, "bert", ME, TRITON
        )
        server.kill()


async def test_a_server_can_not_choose_keys_that_take_long(slow_keys: Replica) -> None:
    """It finds none of them offered: else these hands would be shaken."""
    assert await probe(gateway_directory(), slow_keys) == Answer(Probe.SILENT)
    context = identity.context(gateway_directory(), slow_keys.certificate)
    with pytest.raises(ssl.SSLError, match=r"ALERT_(PROTOCOL_VERSION|HANDSHAKE_FAILURE)"):
        async with connected("127.0.0.1", slow_keys.port, context, 0):
            pass


async def test_no_hands_are_shaken_below_tls_1_3(serve: Callable[..., Server]) -> None:
    """There the server chooses the numbers; how long they take is the machine's matter."""
    server = serve(well_behaved)
    assert await probe(gateway_directory(), server.replica) == Answer(Probe.OURS)
    server.tls.maximum_version = ssl.TLSVersion.TLSv1_2
    assert await probe(gateway_directory(), server.replica) == Answer(Probe.SILENT)


async def test_a_certificate_that_signs_others_is_no_replica_s(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Launcher and HAProxy would reckon with each link of a chain, and with keys of 8192 bits."""
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30"
    leaf = "-CA a.crt -CAkey a.key -addext basicConstraints=critical,CA:FALSE"
    for words in (
        f"{make} -subj /CN=a -keyout a.key -out a.crt",
        f"{make} -subj /CN=b -keyout b.key -out b.crt {leaf}",
    ):
        await asyncio.to_thread(
            subprocess.run, words.split(), cwd=tmp_path, check=True, capture_output=True
        )
    chain = tmp_path / "chain.pem"
    chain.write_text("".join((tmp_path / name).read_text() for name in ("b.crt", "b.key")))
    root = "".join((tmp_path / "a.crt").read_text().splitlines()[1:-1])
    server = serve(well_behaved)
    server.tls = replica_context(gateway_directory() / "gateway.crt", Keys(chain, root))
    assert await probe(gateway_directory(), replace(server.replica, certificate=root)) == Answer(
        Probe.SILENT
    )


async def test_a_body_that_unpacks_to_gigabytes_is_not_unpacked(
    serve: Callable[..., Server],
) -> None:
    body = b"\x1f\x8b" + bytes(1000)
    server = serve(lambda _: answer(body, b"Content-Encoding: gzip"))
    assert await probe(gateway_directory(), server.replica) == Answer(Probe.SILENT)


@pytest.mark.parametrize("slow", [b"/v2", b"/v2/models/bert/ready", b"/v2/models/bert"])
async def test_a_byte_now_and_then_ends_at_the_deadline(
    serve: Callable[..., Server], slow: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a deadline, all bytes would come at last, and the replica be ours."""
    monkeypatch.setattr(probing, "DEADLINE_S", 0.3)
    server = serve(well_behaved)

    def answers(path: bytes) -> bytes:
        server.pause_s = 0.05 if path == slow else 0.0
        return well_behaved(path)

    server.answers = answers
    assert await probe(gateway_directory(), server.replica) == Answer(Probe.SILENT)


async def test_a_large_input_is_sent_while_others_are_asked(
    serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB, to who reads none of it and answers at once: they are not sent in one piece."""
    server = serve(metadata(tensor(str(16 * 1024 * 1024).encode())))
    meter = Meter(monkeypatch, server.replica.port)
    assert (await probe(gateway_directory(), server.replica)).probe in {Probe.OURS, Probe.SILENT}
    # Of a part of 64 KiB TLS makes records, each with 22 bytes beside its content.
    assert 64 * 1024 < meter.part_bytes < 65 * 1024


async def test_what_is_beyond_a_bound_is_told_to_its_owner(serve: Callable[..., Server]) -> None:
    shape = b",".join([b"1"] * 33)
    said_of = (await probe(gateway_directory(), serve(metadata(tensor(shape))).replica)).said
    assert "inputs.0.shape of its ModelMetadata" in said_of
    assert 'readiness = "model"' in said_of
    large = answer(json.dumps(["x" * 300_000]).encode())
    assert (
        "more than 262144 bytes"
        in (await probe(gateway_directory(), serve(metadata(large)).replica)).said
    )


async def test_a_server_that_lists_much_is_ours_and_one_that_lists_too_much_is_told_of(
    serve: Callable[..., Server],
) -> None:
    """vLLM's list of 300 LoRA modules, and of 3000."""
    for count, expected in ((300, Probe.OURS), (3000, Probe.SILENT)):
        cards = [{"id": f"adapter-{number}", "permission": ["x" * 450]} for number in range(count)]
        listed = answer(json.dumps({"object": "list", "data": [*cards, {"id": ME}]}).encode())
        replica = replace(serve(lambda _, listed=listed: listed).replica, engine=ENGINES["vllm"])
        found = await probe(gateway_directory(), replace(replica, infers=False))
        assert found.probe is expected
        assert found.said.endswith("an answer of more than 262144 bytes") == (count == 3000)


async def test_who_costs_much_is_asked_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []
    sleep = asyncio.sleep

    async def paused(seconds: float) -> None:
        pauses_s.append(seconds)
        await sleep(0)

    async def ask(_: Replica) -> Answer:
        return Answer(Probe.SILENT, is_costly=True)

    monkeypatch.setattr(asyncio, "sleep", paused)
    prober = Prober(asyncio.Event(), ask)
    prober.look([Replica("10.0.0.1", 8000, "", 1000, "bert", ME, TRITON)])
    while len(pauses_s) < 3:
        await sleep(0)
    prober.look([])
    first_s, second_s, third_s = pauses_s[:3]
    assert first_s + second_s < 1.6 < first_s + second_s + third_s
    assert second_s > 1.5 * first_s
