"""An event loop without a network: who listens and who connects are both in this process.

Addresses, Unix sockets' paths, full buffers and ends of connections are as the kernel has them, but
no byte leaves the process and no second passes. Work for a thread is done at once, without one.
"""

import asyncio
import errno
import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import count
from pathlib import Path
from typing import Any, Self

from fault_world.virtual_time import VirtualLoop, WorldClock

Address = tuple[str, int] | str
"""Host and port, or the path of a Unix socket."""

_CHUNK = 64 * 1024
"""Most bytes that arrive at once."""
_HIGH_WATER = 64 * 1024


class MemoryLoop(VirtualLoop):
    """A loop with a network of its own.

    Attributes:
        uid: the user that a server on a Unix socket sees at the other end.
    """

    def __init__(self, clock: WorldClock) -> None:
        super().__init__(clock)
        self.uid = os.getuid()
        self._listeners: dict[Address, Listener] = {}
        self._ports = count(49152)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        self.call_soon(self._work, done, func, args)
        return done

    def _work(
        self, done: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        if done.cancelled():
            return
        try:
            done.set_result(func(*args))
        except StopIteration as error:
            done.set_exception(RuntimeError(f"{error!r} is no result"))
        except BaseException as error:  # noqa: BLE001 -- whoever waits for the result sees it
            done.set_exception(error)

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("This loop starts no process: such a test belongs in tests/process.")

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        signal.signal(sig, lambda *_: self.call_soon(callback, *args))

    def remove_signal_handler(self, sig: int) -> bool:
        signal.signal(sig, signal.default_int_handler if sig == signal.SIGINT else signal.SIG_DFL)
        return True

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | Sequence[str] | None = None,
        port: int | None = None,
        *,
        ssl: object = None,
        **_: Any,
    ) -> "Listener":
        assert ssl is None, "TLS needs the real network: such a test belongs in tests/process."
        hosts = [host] if isinstance(host, str) else list(host or ("127.0.0.1",))
        addresses: list[Address] = [(one, port or next(self._ports)) for one in hosts]
        return self._listen(protocol_factory, addresses)

    async def create_unix_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        path: str | Path | None = None,
        *,
        sock: "BoundSocket | None" = None,
        **_: Any,
    ) -> "Listener":
        place = str(path if sock is None else sock.path)
        if sock is None:
            BoundSocket(Path(place), 0o600)
        return self._listen(protocol_factory, [place])

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        local_addr: tuple[str, int] | None = None,
        **_: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        local = (local_addr[0] if local_addr else "127.0.0.1", next(self._ports))
        return await self._connect(protocol_factory, (host, int(port)), local)

    async def create_unix_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        path: str | Path | None = None,
        *,
        sock: "PairEnd | None" = None,
        **_: Any,
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        if sock is not None:
            sock.transport.set_protocol(protocol_factory())
            sock.transport.begin()
            sock.transport.resume_reading()
            await asyncio.sleep(0)
            return sock.transport, sock.transport.get_protocol()
        if not os.access(str(path), os.F_OK):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return await self._connect(protocol_factory, str(path), "")

    def socketpair(self) -> tuple["PairEnd", "PairEnd"]:
        """Two ends that are connected with each other, for ``create_unix_connection``."""
        ours, theirs = (Transport(self, None, "", "", self.uid) for _ in range(2))
        ours.meet(theirs)
        theirs.meet(ours)
        ours.pause_reading()
        theirs.pause_reading()
        return PairEnd(ours), PairEnd(theirs)

    def _listen(
        self, factory: Callable[[], asyncio.BaseProtocol], addresses: Sequence[Address]
    ) -> "Listener":
        for address in addresses:
            if address in self._listeners:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = Listener(self, factory, addresses, self._listeners)
        self._listeners |= dict.fromkeys(addresses, listener)
        return listener

    async def _connect(
        self, factory: Callable[[], asyncio.BaseProtocol], address: Address, local: Address
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        await asyncio.sleep(0)
        listener = self._listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        ours = Transport(self, factory(), local, address, self.uid)
        theirs = Transport(self, listener.factory(), address, local, self.uid)
        ours.meet(theirs)
        theirs.meet(ours)
        theirs.begin()
        ours.begin()
        await asyncio.sleep(0)
        return ours, ours.get_protocol()


class PairEnd:
    """One end of a ``socketpair``, closed by whoever got the connection."""

    def __init__(self, transport: "Transport") -> None:
        self.transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def fileno(self) -> "PairEnd":
        """What stands for it in another process."""
        return self


class BoundSocket:
    """What ``slicewise.slurm_plugin.common.sockets.bound`` returns, in this loop's network."""

    def __init__(self, path: Path, mode: int) -> None:
        self.path = path
        path.unlink(missing_ok=True)
        path.touch()
        path.chmod(mode)

    def listen(self, backlog: int) -> None:
        """Listening begins with the server."""


class Listener(asyncio.AbstractServer):
    """Who listens at addresses, until it is closed."""

    def __init__(
        self,
        loop: MemoryLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        addresses: Sequence[Address],
        listeners: dict[Address, "Listener"],
    ) -> None:
        self.factory = factory
        self._loop, self._addresses, self._listeners = loop, addresses, listeners

    @property
    def sockets(self) -> Sequence["_Socket"]:
        return tuple(_Socket(one, os.getuid()) for one in self._addresses)

    def close(self) -> None:
        for address in self._addresses:
            if self._listeners.get(address) is self:
                del self._listeners[address]

    def get_loop(self) -> MemoryLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._listeners.get(self._addresses[0]) is self

    async def start_serving(self) -> None: ...

    async def serve_forever(self) -> None:
        await self._loop.create_future()

    async def wait_closed(self) -> None: ...


class _Socket:
    """What programs ask of a transport's socket."""

    family = socket.AF_UNIX

    def __init__(self, name: Address, uid: int) -> None:
        self._name, self._uid = name, uid

    def getsockname(self) -> Address:
        return self._name

    def getpeername(self) -> Address:
        return self._name

    def setsockopt(self, *options: int) -> None:
        """Options change nothing here."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
        return struct.pack("3i", os.getpid(), self._uid, self._uid)


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, loop: MemoryLoop, protocol: Any, own: Address, other: Address, uid: int
    ) -> None:
        super().__init__({"sockname": own, "peername": other, "socket": _Socket(own, uid)})
        self._loop, self._protocol = loop, protocol
        self._peer: Transport
        self._unsent = bytearray()
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._is_reading, self._is_closing, self._is_lost = True, False, False
        self._has_written_eof = self._has_sent_eof = self._is_full = self._is_pumping = False

    def meet(self, peer: "Transport") -> None:
        """Know the other end."""
        self._peer = peer

    def begin(self) -> None:
        """Tell the protocol of the connection."""
        self._loop.call_soon(self._protocol.connection_made, self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_lost or self._has_written_eof:
            return
        if self._peer._is_lost:
            self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
            return
        self._unsent += data
        self._soon()
        if len(self._unsent) > self._high and not self._is_full:
            self._is_full = True
            self._loop.call_soon(self._protocol.pause_writing)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._has_written_eof = True
        self._soon()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._soon()

    def abort(self) -> None:
        self._unsent.clear()
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._peer._soon()

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def _soon(self) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Let what is unsent arrive as far as it is read, then the end."""
        self._is_pumping = False
        peer = self._peer
        if self._unsent and peer.is_closing():
            # Nobody reads what arrives at a socket that is closed.
            self._unsent.clear()
        if self._unsent and peer._is_reading:
            chunk = bytes(self._unsent[:_CHUNK])
            del self._unsent[:_CHUNK]
            peer._arrives(chunk)
            self._soon()
        if self._is_full and len(self._unsent) <= self._low:
            self._is_full = False
            self._protocol.resume_writing()
        if self._unsent:
            return
        if (self._is_closing or self._has_written_eof) and not self._has_sent_eof:
            self._has_sent_eof = True
            self._loop.call_soon(peer._ends)
        if self._is_closing:
            self._lose(None)

    def _arrives(self, chunk: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(chunk)
            return
        while chunk and not self.is_closing():
            buffer = self._protocol.get_buffer(len(chunk))
            part, chunk = chunk[: len(buffer)], chunk[len(buffer) :]
            memoryview(buffer)[: len(part)] = part
            self._protocol.buffer_updated(len(part))

    def _ends(self) -> None:
        if not self.is_closing() and not self._protocol.eof_received():
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = self._is_closing = True
            # An end of a pair that nobody has taken has no protocol.
            if self._protocol is not None:
                self._loop.call_soon(self._protocol.connection_lost, error)
            if not self._has_sent_eof:
                self._has_sent_eof = True
                self._loop.call_soon(self._peer._ends)
