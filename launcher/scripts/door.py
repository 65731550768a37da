"""The door of a replica: lets only the gateway through to the engine's server.

    python3 door.py ADDRESS PRIVATE SOCKET...

The server itself listens on unix sockets in PRIVATE, a directory that only its user may enter. A
client from the network must show the gateway's certificate (``gateway.crt``); the door shows the
replica's own (``replica.pem``). Both lie in PRIVATE/readonly, which a server in a container can't
change; the replica's key never leaves it. Bytes are passed on as they are.

This file travels inside the batch script and runs on the node, beside the server, with nothing but
Python 3.8 and its standard library. It is started before Slurm has allotted the ports: they are
written to PRIVATE's file ``server``, after the server's process id: one for each SOCKET.

A client that chooses the protocol START is told how long ago each step of the start was, as
PRIVATE's file ``marks`` has it, by seconds that have passed, since the clocks of two hosts differ.
One that chooses MEMORY is told how much memory the server takes. Both are told nothing else. One
that chooses WEIGHTS is led to PRIVATE/readonly's ``weights.sock``, of ``pool_weights.py``, which
greets it first.

SIGUSR1 makes it let in no more, and end once all clients have left.
"""

import asyncio
import ctypes
import functools
import os
import resource
import signal
import socket
import ssl
import sys
import time
from collections import Counter

HANDSHAKE_S = 5
"""Seconds that a client may take to show its certificate."""
MOST_UNKNOWN = 32
"""Clients of one address that may do their handshake at the same time; others wait their turn."""
MOST_WAITING = 512
"""Connections of one address that have not shown a certificate yet, waiting ones included."""
MOST_AT_ONCE = 96
"""Clients of all addresses that may do their handshake at the same time, at all ports. Each takes
a third of a MiB of the job's memory, and 0.6 MiB while its hello is incomplete. If one more comes,
the address with the most handshakes loses its oldest."""
REFUSED_S = 0.5
"""Seconds for which a client that has not shown the certificate keeps its turn: its handshake takes
a millisecond from all clients."""
CURVE = "prime256v1"
"""The only group of TLS: of all groups a client would choose the largest, which takes 150 ms."""
START, MEMORY, WEIGHTS = "slicewise-start", "slicewise-memory", "slicewise-weights"
"""Names of ALPN."""
READONLY = "readonly"
MOST_MARKS_BYTES = 2048
MOST_PROCESSES = 1000
"""Processes of a server whose memory is added up."""
STARTS_S = 0.5
"""Seconds for which a client waits for a server that starts: the launcher need not ask so often."""
_POLL_S = 0.02
_MOST_BYTES = 1 << 20
"""Bytes of one direction that may wait to be sent; beyond that their sender has to wait."""


class Half(asyncio.Protocol):
    """One of two connections that are joined: passes what it receives to the other one."""

    other: "Half"
    transport: asyncio.Transport

    def __init__(self, halves: "set[Half]", private: str) -> None:
        """``halves`` are all that are open; ``private`` has what clients hear of."""
        self._there = halves
        self._private = private

    @property
    def is_open(self) -> bool:
        """Whether its connection is open."""
        return self in self._there

    @property
    def protocol(self) -> "str | None":
        """The protocol that its client has chosen by ALPN."""
        tls = self.transport.get_extra_info("ssl_object")
        return None if tls is None else tls.selected_alpn_protocol()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the new connection; over TLS, its client has shown the gateway's certificate."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 -- for the type checker
        self.transport = transport
        self._there.add(self)
        transport.set_write_buffer_limits(_MOST_BYTES)
        if self.protocol == START:
            transport.write(start_text(self._private))
            transport.close()
        elif self.protocol == MEMORY:
            # A driver may take seconds: meanwhile others are answered.
            looking = asyncio.get_running_loop().run_in_executor(None, memory_text, self._private)
            looking.add_done_callback(self._tell)

    def _tell(self, looked: "asyncio.Future[bytes]") -> None:
        if self.is_open:
            self.transport.write(looked.result())
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on to the other half."""
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Stop reading from the other half: this one's peer reads too slowly."""
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the other half again: this one's peer has caught up."""
        self.other.transport.resume_reading()

    def connection_lost(self, _: "Exception | None") -> None:
        """Close the other half, too, once it has sent what it still has."""
        self._there.discard(self)
        if self.other.is_open:
            self.other.transport.close()


class Door:
    """Admits clients at all ports; an address has one number of turns for all together."""

    def __init__(self, context: ssl.SSLContext, most_files: int, private: str) -> None:
        """``most_files`` is how many files this process may have open."""
        self._context = context
        self._private = private
        self._weights = os.path.join(private, READONLY, "weights.sock")  # noqa: PTH118
        self._most_files = most_files
        self._unknown: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._asked: dict[str, dict[asyncio.Task[None], None]] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        """Clients that are yet to be let in, and their addresses."""
        self._started: set[str] = set()
        """Sockets whose server has taken a connection."""
        self._proven: set[str] = set()
        """Addresses from which the gateway has come."""
        self._there: set[Half] = set()

    async def empty(self) -> None:
        """Wait until all clients have left, also those that are yet to be let in.

        Clients at addresses from which the gateway has not come are sent away: hundreds may wait
        there, each for its turn.
        """
        for task, host in self._tasks.items():
            if host not in self._proven:
                task.cancel()
        while self._tasks or self._there:  # noqa: ASYNC110 -- many callbacks change them
            await asyncio.sleep(_POLL_S)

    async def serve(self, listener: socket.socket, behind: str) -> None:
        """Accept clients of a port, for ever; connect them to the socket behind it if let in."""
        loop = asyncio.get_running_loop()
        own = listener.getsockname()[0]
        while True:
            try:
                client, (address, *_) = await loop.sock_accept(listener)
            except OSError:
                # File descriptors have run out, or the client has gone: the next one may succeed.
                await asyncio.sleep(0.05)
                continue
            host = host_of(address, own)
            if self._unknown[host] >= self._most_waiting(host):
                client.close()
                continue
            self._unknown[host] += 1
            task = asyncio.create_task(self._in_turn(client, host, behind))
            self._tasks[task] = host
            task.add_done_callback(self._tasks.pop)

    def _most_waiting(self, host: str) -> int:
        """Return how many connections an address may have that have not shown a certificate yet.

        Many addresses together must not take all file descriptors: half are kept for clients that
        are let in.
        """
        is_roomy = sum(self._unknown.values()) < self._most_files // 2
        return MOST_WAITING if is_roomy or host in self._proven else MOST_UNKNOWN

    async def _in_turn(self, client: socket.socket, host: str, behind: str) -> None:
        """Handle a client; a silent one uses up turns of its own address, not of the gateway's."""
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
        except asyncio.CancelledError:
            # It was still waiting for its turn.
            client.close()
            raise
        finally:
            self._asked.get(host, {}).pop(task, None)
            self._unknown[host] -= 1
            if not self._unknown[host]:
                del self._unknown[host], self._turns[host]
                self._asked.pop(host, None)

    def _make_room(self) -> None:
        """End the oldest handshake of the address with the most, if there are too many.

        Addresses from which the gateway has come are spared while there are others.
        """
        if sum(map(len, self._asked.values())) >= MOST_AT_ONCE:
            strangers = [
                asked for host, asked in self._asked.items() if asked and host not in self._proven
            ]
            most = max(strangers or self._asked.values(), key=len)
            oldest = next(iter(most))
            del most[oldest]
            oldest.cancel()

    async def _let_in(self, client: socket.socket, behind: str) -> "bool | None":
        """Return whether the client is shown to be the gateway; None if the server does not answer.

        The server is connected first: without it the client finds no server, and may ask another
        replica. A server that has not taken a connection yet starts: the client waits for it.
        """
        loop = asyncio.get_running_loop()
        inner, outer = Half(self._there, self._private), Half(self._there, self._private)
        inner.other, outer.other = outer, inner
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._connect(inner, behind)
            inner.transport.pause_reading()
            await loop.connect_accepted_socket(
                lambda: outer, client, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
            inner.transport.resume_reading()
            if outer.is_open and outer.protocol == WEIGHTS:
                inner = await self._lead_to_weights(inner, outer)
        except (OSError, RuntimeError, asyncio.CancelledError):
            # The server does not answer, or the client has no certificate, has gone, or must make
            # room.
            client.close()
            return False if inner.is_open else None
        finally:
            if inner.is_open and not outer.is_open:
                inner.transport.close()
        return True

    async def _lead_to_weights(self, inner: Half, outer: Half) -> Half:
        """Connect a client with ``pool_weights.py`` in place of the server; return that half.

        Until it is greeted it sends nothing. If nobody is there it is sent away.
        """
        # The server's half goes without the client.
        inner.other = inner
        inner.transport.close()
        keeper = Half(self._there, self._private)
        keeper.other, outer.other = outer, keeper
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: keeper, self._weights)
        except OSError:
            pass
        finally:
            if not keeper.is_open:
                outer.transport.close()
        return keeper

    async def _connect(self, inner: Half, behind: str) -> None:
        """Connect to the server; raises OSError if it does not answer, or not within STARTS_S."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STARTS_S
        while True:
            try:
                await loop.create_unix_connection(lambda: inner, behind)
            except OSError:
                if behind in self._started or loop.time() >= until_s:
                    raise
                await asyncio.sleep(_POLL_S)
            else:
                self._started.add(behind)
                return


def start_text(private: str) -> bytes:
    """Return how many seconds ago each mark was set, a line for each: ``script 3.21``.

    A mark has the seconds that the node was up then, a clock that nobody sets. What follows them is
    passed on.
    """
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    lines = []
    try:
        with open(os.path.join(private, "marks"), encoding="ascii") as file:  # noqa: PTH118, PTH123
            for line in file.read(MOST_MARKS_BYTES).splitlines():
                name, up_s, *more = line.split(" ")
                lines.append(" ".join([name, "%.2f" % (now_s - float(up_s)), *more]))
    except (OSError, ValueError):
        # There is none, or the script has written half a line: what was read before counts.
        pass
    return "".join(line + "\n" for line in lines).encode("ascii")


def memory_text(private: str) -> bytes:
    """Return how much memory the server takes, of the node and of MIG instances, in MiB."""
    return f"memory {host_mib(private)} {gpu_mib()}\n".encode("ascii")


def host_mib(private: str) -> int:
    """Return how much memory the server and all that it has started have to themselves, in MiB.

    Not the cgroup's memory: that counts files that they have read, which the kernel drops.
    """
    total_kib = 0
    try:
        with open(os.path.join(private, "server"), encoding="ascii", errors="replace") as file:  # noqa: PTH118, PTH123
            processes = [file.read().split()[0]]
    except (OSError, IndexError):
        return 0
    for process in processes:
        try:
            with open(f"/proc/{process}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
                total_kib += sum(
                    int(line.split()[1]) for line in file if line.startswith("RssAnon")
                )
            tasks = os.listdir(f"/proc/{process}/task")  # noqa: PTH208
        except (OSError, ValueError):
            continue  # It has just ended, or is none: the server can write to that file.
        for task in tasks:
            try:
                with open(f"/proc/{process}/task/{task}/children", encoding="ascii") as file:  # noqa: PTH123
                    processes += file.read().split()[: MOST_PROCESSES - len(processes)]
            except OSError:
                continue  # This thread has; others have children, too.
    return total_kib >> 10


class _GpuMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


@functools.lru_cache(maxsize=1)
def _nvml() -> ctypes.CDLL:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    if library.nvmlInitWithFlags(0):
        raise OSError
    return library


def gpu_mib() -> int:
    """Return how much memory of the job's MIG instances is taken, in MiB; 0 if that is not known.

    Of whole GPUs, of which others may have a share, nothing is.
    """
    used = 0
    try:
        for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","):
            device, memory = ctypes.c_void_p(), _GpuMemory()
            if not name.startswith("MIG-") or (
                _nvml().nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(device))
                or _nvml().nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
            ):
                return 0
            used += memory.used
    except (OSError, AttributeError):
        return 0  # There is no driver, or one of another age.
    return used >> 20


def host_of(address: str, own: str) -> str:
    """Return what counts as the client's address: all addresses of this node, 127.*, are one.

    If the door itself listens on one of them, so does the gateway: there they are told apart.
    """
    return "127" if address.startswith("127.") and not own.startswith("127.") else address


def context_of(private: str) -> ssl.SSLContext:
    """Return a TLS context that shows the replica's certificate and requires the gateway's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(os.path.join(private, READONLY, "replica.pem"))  # noqa: PTH118
    context.load_verify_locations(os.path.join(private, READONLY, "gateway.crt"))  # noqa: PTH118
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_ecdh_curve(CURVE)
    context.set_alpn_protocols(["h2", "http/1.1", START, MEMORY, WEIGHTS])
    return context


def listen(address: str, port: int) -> socket.socket:
    """Listen on the port; raises OSError if another program has it."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(128)
    listener.setblocking(False)
    return listener


def allotted(private: str) -> "list[int]":
    """Wait until Slurm has allotted the ports; return them."""
    line = ""
    while not line.endswith("\n"):
        time.sleep(_POLL_S)
        with open(os.path.join(private, "server"), encoding="ascii") as file:  # noqa: PTH118, PTH123
            line = file.read()
    return [int(word) for word in line.split()[1:]]


async def serve(door: Door, listeners: "list[socket.socket]", behind: "list[str]") -> None:
    """Serve all ports until SIGUSR1, then the clients that are there."""
    serving = asyncio.gather(*map(door.serve, listeners, behind))
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        for listener in listeners:
            listener.close()
        await door.empty()


def main(address: str, private: str, *sockets: str) -> None:
    """Serve until killed.

    SIGTERM is blocked: Slurm tells all processes of a job to end, but the server still answers.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    # Slurm passes on the open-file limit of the user who submitted the job, often 1024; each
    # request needs two files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    context = context_of(private)
    ports = allotted(private)
    if len(ports) != len(sockets):
        sys.exit("Slurm gave the step no ports: set MpiParams=ports= in slurm.conf")
    try:
        listeners = [listen(address, port) for port in ports]
    except OSError as error:
        sys.exit(f"the replica's ports {' and '.join(map(str, ports))} can't be taken: {error}")
    behind = [os.path.join(private, name) for name in sockets]  # noqa: PTH118
    asyncio.run(serve(Door(context, most, private), listeners, behind))


if __name__ == "__main__":
    main(*sys.argv[1:])
