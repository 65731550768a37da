"""Tests the door before a replica: only a client with the gateway's key comes through."""

import asyncio
import os
import re
import resource
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from builders.replica_keys import gateway_directory, replica_keys
from stand_ins.emulated_gpus import gpu_node

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.runtime.tls import CURVE
from slicewise.launcher.gateway import identity
from slicewise.launcher.probing import prober as probing
from slicewise.launcher.probing.prober import Replica, probe
from slicewise.launcher.rules.engines.engine import Answer, Probe
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.scripts import door
from slicewise.sandbox.nvml.driver import EmulatedGpu

SOCKETS = ("http", "grpc:2")
PATIENCE_S = 60
LONG_S = 600
"""Of a wait that must not be the reason why something is answered or ends: beyond all patience."""
HELLO_BYTES = 131_000
"""As long as OpenSSL lets a client's first message be."""
ENDLESS_HELLO = b"".join(
    b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
    for part in (b"\x01" + HELLO_BYTES.to_bytes(3, "big"), *[bytes(16_000)] * 8)
)
"""Records of a hello of which some is always missing."""


class Inside:
    """What listens behind the door: sends everything back, in capitals."""

    def __init__(self, path: Path) -> None:
        self.came = 0
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(512)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            self.connections += 1
            while data := connection.recv(1 << 16):
                self.came += len(data)
                connection.sendall(data.upper())
            self.connections -= 1

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


START = """
import sys
from slicewise.launcher.scripts import door
for word in sys.argv[1].split():
    name, _, seconds = word.partition("=")
    assert hasattr(door, name)
    setattr(door, name, float(seconds))
"""


class Opened:
    """A door in a process of its own; ``waits_s`` are other values of its waits.

    ``before`` is what Python does before it.
    """

    def __init__(
        self,
        private: Path,
        address: str = "127.0.0.1",
        most_files: int | None = None,
        *,
        has_started: bool = True,
        before: str = "",
        **waits_s: float,
    ) -> None:
        self._private = private
        limited = () if most_files is None else ("prlimit", f"--nofile={most_files}")
        words = " ".join(
            f"{name}={seconds}" for name, seconds in ({"HANDSHAKE_S": LONG_S} | waits_s).items()
        )
        program = (sys.executable, "-c", f"{START}{before}door.main(*sys.argv[2:])")
        self._argv = (*limited, *program, words, address, str(private), *SOCKETS)
        self.keys = replica_keys()
        readonly = private / "readonly"
        readonly.mkdir(exist_ok=True)
        (readonly / "replica.pem").write_text(self.keys.pem.read_text())
        (readonly / "gateway.crt").write_text((gateway_directory() / "gateway.crt").read_text())
        self._insides: list[Inside] = []
        if has_started:
            self.start_inside()
        # Another test may have a port in the moment in which it is free.
        opened = any(self._opens(private, address) for _ in range(5))
        assert opened

    def _opens(self, private: Path, address: str) -> bool:
        with socket.socket() as one, socket.socket() as other:
            one.bind((address, 0))
            other.bind((address, 0))
            self.port, self.grpc = one.getsockname()[1], other.getsockname()[1]
        (private / "server").write_text(f"1 {self.port} {self.grpc}\n")
        self.process = subprocess.Popen(self._argv)
        while self.process.poll() is None:
            with suppress(OSError):
                for port in (self.port, self.grpc):
                    self.silent("127.0.0.9", 1, port)[0].close()
                return True
            time.sleep(0.01)
        return False

    def start_inside(self) -> None:
        self._insides += [Inside(self._private / name) for name in SOCKETS]
        self.inside, self.other_inside = self._insides

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for inside in self._insides:
            inside.close()

    def silent(self, address: str, count: int, port: int = 0) -> list[socket.socket]:
        """Clients that say nothing."""
        to, by = ("127.0.0.1", port or self.port), (address, 0)
        return [socket.create_connection(to, source_address=by) for _ in range(count)]

    def client(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)
        return context.wrap_socket(plain)

    def gateway(self) -> ssl.SSLSocket:
        return self.client(identity.context(gateway_directory(), self.keys.certificate))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    found = Opened(tmp_path)
    yield found
    found.end()


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def ended(clients: Sequence[socket.socket], count: int) -> Collection[socket.socket]:
    """Wait until the door has ended at least so many of these that say nothing; return those."""
    poll = select.poll()
    for client in clients:
        poll.register(client, select.POLLIN)
    until(lambda: len(poll.poll(0)) >= count)
    gone = {number for number, _ in poll.poll(0)}
    return [client for client in clients if client.fileno() in gone]


def ask(client: ssl.SSLSocket, text: bytes = b"hello") -> bytes:
    with client:
        client.sendall(text)
        return client.recv(1 << 16)


def test_the_gateway_comes_through(opened: Opened) -> None:
    assert ask(opened.gateway()) == b"HELLO"


def told(opened: Opened, protocol: str = door.START) -> bytes:
    """What a client hears that asks for the start, or the memory; the server hears nothing."""
    told = b""
    certificate = opened.keys.certificate
    with opened.client(identity.context(gateway_directory(), certificate, protocol)) as client:
        assert client.selected_alpn_protocol() == protocol
        while part := client.recv(1 << 16):
            told += part
    assert opened.inside.came == 0
    return told


def test_who_asks_for_the_start_hears_how_long_ago_each_mark_was(
    opened: Opened, tmp_path: Path
) -> None:
    assert told(opened) == b""
    up_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    marks = f"script {up_s - 7:.2f}\nengine {up_s - 3:.2f} with words\nbroken"
    (tmp_path / "marks").write_text(marks)
    script, engine = told(opened).decode().splitlines()
    (name, age_s), (other, *rest) = script.split(), engine.split()
    assert (name, other, rest[1:]) == ("script", "engine", ["with", "words"])
    assert 7 <= float(age_s) <= 7 + PATIENCE_S
    assert float(age_s) - float(rest[0]) == pytest.approx(4, abs=0.02)
    assert ask(opened.gateway()) == b"HELLO"


def test_who_asks_for_memory_keeps_nobody_waiting_for_the_driver(tmp_path: Path) -> None:
    """A GPU's driver may take seconds when it is asked first, just as a start is proven."""
    asked, goes_on = tmp_path / "asked", tmp_path / "goes_on"
    slow = (
        "import pathlib, time\n"
        "def slow():\n"
        f"    pathlib.Path({str(asked)!r}).touch()\n"
        f"    while not pathlib.Path({str(goes_on)!r}).exists(): time.sleep(0.02)\n"
        "    return 7\n"
        "door.gpu_mib = slow\n"
    )
    found = Opened(tmp_path, before=slow)
    try:
        (tmp_path / "marks").write_text("script 1.00\n")
        certificate = found.keys.certificate
        context = identity.context(gateway_directory(), certificate, door.MEMORY)
        with found.client(context) as client:
            until(asked.exists)
            assert told(found).startswith(b"script ")
            goes_on.touch()
            assert re.fullmatch(rb"memory \d+ 7\n", client.recv(100))
    finally:
        found.end()


HOARDS = """
import subprocess, sys
own = bytearray(64 << 20)
if sys.argv[1:]:
    subprocess.Popen([sys.executable, *sys.argv])
print("there", flush=True)
sys.stdin.read()
"""


@contextmanager
def hoarding(private: Path) -> Iterator[None]:
    """A server with a child, each of which takes 64 MiB and a little."""
    script = private / "hoards.py"
    script.write_text(HOARDS.replace("*sys.argv]", "sys.argv[0]]"))
    with subprocess.Popen(
        (sys.executable, script, "with a child"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert [server.stdout.readline() for _ in range(2)] == [b"there\n"] * 2
        (private / "server").write_text(f"{server.pid} 21000 21001\n")
        yield
        server.stdin.close()


def test_memory_is_that_of_the_server_and_all_that_it_has_started(tmp_path: Path) -> None:
    assert door.host_mib(str(tmp_path)) == 0
    with hoarding(tmp_path):
        seen = door.host_mib(str(tmp_path))
    assert 128 <= seen < 128 + 64
    assert door.host_mib(str(tmp_path)) == 0


def test_a_thread_that_ends_while_it_is_asked_hides_no_process_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, listed = str(2**31 - 1), os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: [ended, *listed(folder)])
    with hoarding(tmp_path):
        assert door.host_mib(str(tmp_path)) >= 128


def test_of_mig_instances_the_driver_says_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with gpu_node(EmulatedGpu("A100-80GB")) as driver:
        assert door.gpu_mib() == 0
        instances = [driver.create(Placement("1g.10gb", start, 1)) for start in (0, 1)]
        uuids = [instance.computes[0].uuid for instance in instances]
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(uuids))
        before = door.gpu_mib()
        driver.hold(0, instances[1].gi_id, 0, 77, 300)
        assert door.gpu_mib() == before + 300
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuids[0])
        assert door.gpu_mib() == before
        for others in ("0", "MIG-none", f"{uuids[1]},0"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", others)
            assert door.gpu_mib() == 0


def test_door_and_gateway_have_the_same_curve():
    assert door.CURVE == CURVE


def test_of_marks_a_bounded_part_is_told(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "marks").write_text("script 1.00\n" * 100_000)
    assert 0 < len(told(opened)) < 16 * 1024


def test_without_the_key_nobody_hears_of_the_start(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "marks").write_text("script 1.00\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([door.START])
    with suppress(OSError), opened.client(context) as client:
        assert client.recv(100) == b""


def loading(opened: Opened) -> ssl.SSLSocket:
    """A client that is about to load a model."""
    certificate = opened.keys.certificate
    return opened.client(identity.context(gateway_directory(), certificate, door.WEIGHTS))


def test_who_loads_a_model_comes_to_what_finds_it_on_the_node(
    opened: Opened, tmp_path: Path
) -> None:
    inside = Inside(tmp_path / "readonly" / "weights.sock")
    try:
        with loading(opened) as client:
            assert client.selected_alpn_protocol() == door.WEIGHTS
            until(lambda: inside.connections == 1)
            client.sendall(b"model\n")
            assert client.recv(100) == b"MODEL\n"
        # It hears when the load is over.
        until(lambda: not inside.connections)
        assert opened.inside.came == 0
        until(lambda: not opened.inside.connections)
    finally:
        inside.close()


def test_without_that_who_loads_a_model_is_sent_away(opened: Opened) -> None:
    with loading(opened) as client:
        assert client.recv(100) == b""
    assert ask(opened.gateway()) == b"HELLO"


def test_a_client_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    """Until then nothing listens behind the door; once it has started, its end is told at once."""
    opened = Opened(tmp_path, has_started=False, STARTS_S=LONG_S)
    try:
        with ThreadPoolExecutor() as beside:
            asked = beside.submit(lambda: ask(opened.gateway()))
            opened.start_inside()
            assert asked.result(PATIENCE_S) == b"HELLO"
        opened.inside.close()
        with pytest.raises(OSError, match=r"(?i)reset|eof"):
            opened.gateway()
    finally:
        opened.end()


def test_whoever_has_no_key_or_another_one_does_not(opened: Opened) -> None:
    """A neighbour on the network, and another tenant's replica with its own key."""
    for pem in (None, replica_keys(2).pem):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if pem is not None:
            context.load_cert_chain(pem)
        # By TLS 1.3 a client hears of it when it reads.
        with suppress(OSError):
            assert ask(opened.client(context)) == b""
    with socket.create_connection(("127.0.0.1", opened.port), timeout=PATIENCE_S) as plain:
        plain.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\n\r\n")
        with suppress(OSError):
            assert plain.recv(100)[:1] != b"P"
    assert opened.inside.came == 0


async def test_a_gateway_whose_certificate_the_script_has_not_is_told_so(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``apply --start`` waited ten minutes without a word."""
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)
    certificate = opened.keys.certificate
    replica = Replica("127.0.0.1", opened.port, certificate, 1, "m", "m.1.0", ENGINES["triton"])
    other_gateway = replica_keys(2).pem.parent
    for _ in range(5):
        answer = await probe(other_gateway, replica)
        assert answer.probe is Probe.SILENT
        assert "its script has another certificate than the gateway's" in answer.said
    assert opened.inside.came == 0
    # Of a server that says nothing sensible to the right gateway, that is not said.
    assert await probe(gateway_directory(), replica) == Answer(Probe.SILENT)
    opened.inside.close()
    assert await probe(gateway_directory(), replica) == Answer(Probe.SILENT)


def test_the_gateway_does_not_take_another_one_s_door_for_it(opened: Opened) -> None:
    """A neighbour who has taken the port shows a certificate, but has not the key."""
    other = identity.context(gateway_directory(), replica_keys(2).certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        opened.client(other)


def test_who_does_not_say_who_it_is_keeps_nobody_else_out(opened: Opened) -> None:
    silent = opened.silent("127.0.0.2", door.MOST_WAITING + 1)
    try:
        assert ask(opened.gateway()) == b"HELLO"
        # No more of them than may be are still let stand there.
        silent[-1].settimeout(PATIENCE_S)
        assert silent[-1].recv(1) == b""
    finally:
        for one in silent:
            one.close()


def test_of_the_gateway_nobody_is_sent_away_however_many_come_at_once(opened: Opened) -> None:
    async def one(context: ssl.SSLContext) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port, ssl=context)
        writer.write(b"hello")
        answer = await reader.readexactly(5)
        writer.close()
        return answer

    async def run() -> set[bytes]:
        context = identity.context(gateway_directory(), opened.keys.certificate)
        return set(await asyncio.gather(*(one(context) for _ in range(4 * door.MOST_UNKNOWN))))

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == {b"HELLO"}


def test_many_addresses_do_not_take_the_job_s_memory(opened: Opened) -> None:
    """One whose hello never ends costs the door 0.6 MiB, and Triton a connection; at both ports."""
    before = resident_mib(opened.process.pid)
    ports = (opened.port, opened.grpc)
    addresses = [f"127.0.1.{last}" for last in range(2, 32)]
    silent = [one for by in addresses for to in ports for one in opened.silent(by, 16, to)]
    try:
        for one in silent:
            one.setblocking(False)
            with suppress(OSError):
                one.send(ENDLESS_HELLO)
        ended(silent, len(silent) - door.MOST_AT_ONCE)
        assert resident_mib(opened.process.pid) - before < 80
        assert ask(opened.gateway()) == b"HELLO"
    finally:
        for one in silent:
            one.close()


def test_a_neighbour_on_the_node_is_one_however_many_addresses_it_takes(tmp_path: Path) -> None:
    """Loopback has 16 million of them, for everybody; to a node's own address each may connect."""
    opened = Opened(tmp_path, "0.0.0.0")  # noqa: S104
    silent = [one for last in range(2, 6) for one in opened.silent(f"127.0.1.{last}", 32)]
    try:
        until(lambda: opened.inside.connections >= door.MOST_UNKNOWN)
        time.sleep(0.5)
        until(lambda: opened.inside.connections <= door.MOST_UNKNOWN)
    finally:
        for one in silent:
            one.close()
        opened.end()


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def test_without_a_triton_behind_it_nobody_gets_as_far_as_a_request(opened: Opened) -> None:
    """So a gateway knows that nothing was sent, and may ask another replica."""
    opened.inside.close()
    with pytest.raises(OSError):  # noqa: PT011 -- reset or closed, whichever comes first
        opened.gateway()


def test_large_bodies_both_ways_at_once_while_nobody_reads(opened: Opened) -> None:
    async def run() -> int:
        context = identity.context(gateway_directory(), opened.keys.certificate)
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.port, ssl=context)
        body = b"x" * (8 << 20)
        writer.write(body)
        got = 0
        while got < len(body):
            got += len(await reader.read(1 << 16))
        writer.close()
        return got

    assert asyncio.run(asyncio.wait_for(run(), PATIENCE_S)) == 8 << 20


def test_slurm_s_word_to_end_does_not_close_it(opened: Opened) -> None:
    client = opened.gateway()
    opened.process.send_signal(signal.SIGTERM)
    assert ask(client) == b"HELLO"
    assert ask(opened.gateway()) == b"HELLO"


def test_a_port_that_is_taken_is_an_error_in_words(opened: Opened, tmp_path: Path) -> None:
    assert f"the replica's ports {opened.port} and 1 can't be taken" in complaint(
        tmp_path, f"1 {opened.port} 1"
    )


def test_no_ports_are_an_error_in_words(opened: Opened, tmp_path: Path) -> None:
    assert "Slurm gave the step no ports" in complaint(tmp_path, "1")


def test_each_socket_has_a_port_of_its_own(opened: Opened, tmp_path: Path) -> None:
    assert "Slurm gave the step no ports" in complaint(tmp_path, "1 2")


def complaint(private: Path, told: str) -> str:
    (private / "server").write_text(f"{told}\n")
    argv = (sys.executable, door.__file__, "127.0.0.1", str(private), *SOCKETS)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    return done.stderr


def test_a_stranger_does_not_choose_what_is_reckoned_with(opened: Opened) -> None:
    """Of ffdhe8192 the door's one thread would take 150 ms for each hello, from everybody."""
    words = ("-connect", f"127.0.0.1:{opened.port}", "-tls1_3", "-groups")

    def shakes_hands(group: str) -> bool:
        said = subprocess.run(
            ("timeout", str(PATIENCE_S), "openssl", "s_client", *words, group),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return "BEGIN CERTIFICATE" in said.stdout

    assert shakes_hands("P-256")
    assert not any(map(shakes_hands, ("ffdhe8192", "P-521")))


def test_who_is_refused_keeps_its_turn_a_while(tmp_path: Path) -> None:
    """Each handshake takes a millisecond of the door's one thread: the gateway's, too."""
    opened = Opened(tmp_path, REFUSED_S=LONG_S)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    refused: list[int] = []

    def knock(number: int) -> None:
        with suppress(OSError):
            plain = socket.create_connection(
                ("127.0.0.1", opened.port), 2 * PATIENCE_S, ("127.0.0.2", 0)
            )
            with context.wrap_socket(plain) as client:
                client.recv(1)
        refused.append(number)

    clients = [
        threading.Thread(target=knock, args=(number,)) for number in range(2 * door.MOST_UNKNOWN)
    ]
    for client in clients:
        client.start()
    try:
        until(lambda: len(refused) >= door.MOST_UNKNOWN)
        for _ in range(20):
            assert ask(opened.gateway()) == b"HELLO"
        assert len(refused) == door.MOST_UNKNOWN
    finally:
        opened.end()
        for client in clients:
            client.join()


def test_what_waits_behind_those_that_are_refused_has_its_turn(tmp_path: Path) -> None:
    opened = Opened(tmp_path, REFUSED_S=0.05, HANDSHAKE_S=0.05)
    silent = opened.silent("127.0.0.2", 2 * door.MOST_UNKNOWN)
    try:
        ended(silent, len(silent))
    finally:
        for one in silent:
            one.close()
        opened.end()


def test_once_the_gateway_has_come_strangers_do_not_take_its_place(opened: Opened) -> None:
    """Of as many addresses as may be asked at once, each with one client."""
    assert ask(opened.gateway()) == b"HELLO"
    gateway = opened.silent("127.0.0.1", 2)
    strangers = [
        one
        for last in range(2, door.MOST_AT_ONCE + 2)
        for one in opened.silent(f"127.0.1.{last}", 1)
    ]
    try:
        gone = ended([*gateway, *strangers], 2)
        assert len(gone) == 2
        assert not set(gone) & set(gateway)
    finally:
        for one in (*gateway, *strangers):
            one.close()


def test_a_few_addresses_do_not_take_all_file_descriptors(tmp_path: Path) -> None:
    """Of which a site gives a job few."""
    opened = Opened(tmp_path, most_files=400)
    silent = [one for last in range(2, 5) for one in opened.silent(f"127.0.1.{last}", 120)]
    try:
        # 120 of one address, 80 of the next, and of the last no more than may do a handshake.
        ended(silent, len(silent) - 200 - door.MOST_UNKNOWN)
        assert ask(opened.gateway()) == b"HELLO"
    finally:
        for one in silent:
            one.close()
        opened.end()


def test_told_to_close_it_lets_in_no_more_and_ends_once_all_have_left(opened: Opened) -> None:
    with opened.gateway() as client:
        client.sendall(b"one")
        assert client.recv(100) == b"ONE"
        opened.process.send_signal(signal.SIGUSR1)
        until_refused(opened)
        with pytest.raises(subprocess.TimeoutExpired):
            opened.process.wait(timeout=1)
        client.sendall(b"two")
        assert client.recv(100) == b"TWO"
    assert opened.process.wait(timeout=PATIENCE_S) == 0


def test_told_to_close_it_does_not_wait_for_strangers_that_wait_for_their_turn(
    opened: Opened,
) -> None:
    """They would take more than a minute, here for ever."""
    assert ask(opened.gateway()) == b"HELLO"
    strangers = opened.silent("127.0.0.2", door.MOST_WAITING)
    try:
        opened.process.send_signal(signal.SIGUSR1)
        assert opened.process.wait(timeout=PATIENCE_S) == 0
    finally:
        for one in strangers:
            one.close()


def until_refused(opened: Opened) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            # One that the door has not taken yet when it closes is reset, maybe while it connects.
            with suppress(ConnectionResetError):
                opened.silent("127.0.0.9", 1)[0].close()
        except ConnectionRefusedError:
            return
        time.sleep(0.02)
    raise AssertionError
