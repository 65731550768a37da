"""The door of a replica: lets the gateway through to Triton, and nobody else.

    python3 door.py ADDRESS PRIVATE

Triton itself listens on unix sockets in PRIVATE, a directory that only its user may enter. Who
comes by the network must show the gateway's certificate (``gateway.crt``); the door shows the
replica's own (``replica.pem``), whose key never leaves PRIVATE. Bytes are passed on as they are.

This file travels inside the batch script and runs on the node, beside Triton: with nothing but
Python 3.8 and its standard library. It is started before Slurm has allotted the ports: they come in
PRIVATE's file ``triton``, behind Triton's process id.
"""

import asyncio
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections import Counter

BEHIND = ("http", "grpc:2")
"""Triton's sockets, by port; to the name of gRPC's it has added a port."""
HANDSHAKE_S = 5
"""How long a client may take to show who it is."""
MOST_UNKNOWN = 32
"""Clients of one address that are asked at once who they are; the others wait their turn."""
MOST_WAITING = 512
"""Connections of one address that have not shown yet who they are, those that wait included."""
MOST_AT_ONCE = 96
"""Clients of all addresses that are asked at once, at both ports: each takes a third of a MiB of
the job's, and 0.6 while its hello has no end. One more, and the address that has most loses its
oldest."""
REFUSED_S = 0.5
"""So long who did not show it keeps its turn: a handshake takes a millisecond from everybody."""
_CURVE = "prime256v1"
"""The only group: of all that there are a client would choose the largest, which takes 150 ms."""
_POLL_S = 0.02
_MOST_BYTES = 1 << 20
"""Of one direction that wait to be sent: then its sender waits."""


class Half(asyncio.Protocol):
    """One of two connections: hands what comes to the other one."""

    other: "Half"
    transport: asyncio.Transport

    def __init__(self) -> None:
        self.is_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected; over TLS: the client has shown the gateway's certificate."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 -- for the type checker
        self.transport, self.is_open = transport, True
        transport.set_write_buffer_limits(_MOST_BYTES)

    def data_received(self, data: bytes) -> None:
        """Some bytes."""
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Its peer reads too slowly."""
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        self.other.transport.resume_reading()

    def connection_lost(self, _: "Exception | None") -> None:
        """Whoever ends first: the other half sends what it has and ends, too."""
        self.is_open = False
        if self.other.is_open:
            self.other.transport.close()


class Door:
    """Of both ports: who knocks at one has no more turns at the other."""

    def __init__(self, context: ssl.SSLContext, most_files: int) -> None:
        """``most_files`` is how many this process may have open."""
        self._context = context
        self._most_files = most_files
        self._unknown: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._asked: dict[str, dict[asyncio.Task[None], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._proven: set[str] = set()
        """Addresses from which the gateway has come."""

    async def serve(self, listener: socket.socket, behind: str) -> None:
        """Let clients of a port in, for ever, to the socket behind it."""
        loop = asyncio.get_running_loop()
        own = listener.getsockname()[0]
        while True:
            try:
                client, (address, *_) = await loop.sock_accept(listener)
            except OSError:
                # Out of file descriptors, or a client that has gone: the next one may do better.
                await asyncio.sleep(0.05)
                continue
            host = host_of(address, own)
            if self._unknown[host] >= self._most_waiting(host):
                client.close()
                continue
            self._unknown[host] += 1
            task = asyncio.create_task(self._in_turn(client, host, behind))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _most_waiting(self, host: str) -> int:
        """Many addresses together do not get all file descriptors: half are for who comes in."""
        is_roomy = sum(self._unknown.values()) < self._most_files // 2
        return MOST_WAITING if is_roomy or host in self._proven else MOST_UNKNOWN

    async def _in_turn(self, client: socket.socket, host: str, behind: str) -> None:
        """Who keeps silent takes turns of its own address, not the gateway's."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- for the type checker
        try:
            async with self._turns.setdefault(host, asyncio.Semaphore(MOST_UNKNOWN)):
                self._make_room()
                self._asked.setdefault(host, {})[task] = None
                shown = await self._let_in(client, behind)
                self._asked[host].pop(task, None)
                if shown:
                    self._proven.add(host)
                elif shown is not None:
                    await asyncio.sleep(REFUSED_S)
        finally:
            self._asked.get(host, {}).pop(task, None)
            self._unknown[host] -= 1
            if not self._unknown[host]:
                del self._unknown[host], self._turns[host]
                self._asked.pop(host, None)

    def _make_room(self) -> None:
        """Of addresses from which the gateway has come nobody goes while there are others."""
        if sum(map(len, self._asked.values())) >= MOST_AT_ONCE:
            strangers = [
                asked for host, asked in self._asked.items() if asked and host not in self._proven
            ]
            most = max(strangers or self._asked.values(), key=len)
            oldest = next(iter(most))
            del most[oldest]
            oldest.cancel()

    async def _let_in(self, client: socket.socket, behind: str) -> "bool | None":
        """Whether it has shown that it is the gateway; None if there is nobody behind the door.

        Triton first: without it the client finds no server, and may ask another replica.
        """
        loop = asyncio.get_running_loop()
        inner, outer = Half(), Half()
        inner.other, outer.other = outer, inner
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.create_unix_connection(lambda: inner, behind)
            inner.transport.pause_reading()
            await loop.connect_accepted_socket(
                lambda: outer, client, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
            inner.transport.resume_reading()
        except (OSError, RuntimeError, asyncio.CancelledError):
            # Nobody behind the door, a client without the certificate, or one that has gone or
            # must make room.
            client.close()
            return False if inner.is_open else None
        finally:
            if inner.is_open and not outer.is_open:
                inner.transport.close()
        return True


def host_of(address: str, own: str) -> str:
    """Who connects, by its address: a neighbour on this node has all that begin with 127.

    Where the door itself listens on one of them, so does the gateway: there they are told apart.
    """
    return "127" if address.startswith("127.") and not own.startswith("127.") else address


def context_of(private: str) -> ssl.SSLContext:
    """Shows the replica's certificate, asks for the gateway's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(os.path.join(private, "replica.pem"))  # noqa: PTH118
    context.load_verify_locations(os.path.join(private, "gateway.crt"))  # noqa: PTH118
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_ecdh_curve(_CURVE)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def listen(address: str, port: int) -> socket.socket:
    """Take the port; raises OSError if another program has it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(128)
    listener.setblocking(False)
    return listener


def allotted(private: str) -> "list[int]":
    """Ports, of HTTP first, once Slurm has allotted them."""
    line = ""
    while not line.endswith("\n"):
        time.sleep(_POLL_S)
        with open(os.path.join(private, "triton"), encoding="ascii") as file:  # noqa: PTH118, PTH123
            line = file.read()
    return [int(word) for word in line.split()[1:]]


async def serve(door: Door, listeners: "list[socket.socket]", private: str) -> None:
    """Let clients of both protocols in, for ever."""
    behind = (os.path.join(private, name) for name in BEHIND)  # noqa: PTH118
    await asyncio.gather(*map(door.serve, listeners, behind))


def main(address: str, private: str) -> None:
    """Serve until killed: Slurm tells all processes of a job to end, but Triton still answers."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    # Slurm hands on the limit of whoever has submitted the job, often 1024: two for each request.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context = context_of(private)
    ports = allotted(private)
    if len(ports) != len(BEHIND):
        sys.exit("Slurm allots the step no ports: MpiParams=ports= of slurm.conf")
    try:
        listeners = [listen(address, port) for port in ports]
    except OSError as error:
        sys.exit(f"the replica's ports {' and '.join(map(str, ports))} can't be taken: {error}")
    asyncio.run(serve(Door(context, most), listeners, private))


if __name__ == "__main__":
    main(*sys.argv[1:])
