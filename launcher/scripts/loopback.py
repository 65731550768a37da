"""Leads from a unix socket to a server that listens on 127.0.0.1 in a network of its own.

    python3 loopback.py SOCKET PORT COMMAND...

Becomes COMMAND, beside a process that passes on bytes between SOCKET and 127.0.0.1:PORT. It is
started in a new network namespace, in which nothing but 127.0.0.1 is reachable, and nothing from
outside; a unix socket is reached by its path, from any namespace. So the door before the server
reaches it, and no other user of the node does.

SOCKET appears once the server listens. This file travels inside the batch script and runs on the
node or in the engine's image, with nothing but Python 3.8 and its standard library.
"""

import asyncio
import fcntl
import os
import resource
import socket
import struct
import sys
import time

_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_POLL_S = 0.02
_CHUNK_BYTES = 1 << 16
_BACKLOG = 512


def bring_up() -> None:
    """Bring up the loopback interface, which is down in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def wait_for(port: int) -> None:
    """Wait until the server listens."""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)):
                return
        except OSError:
            time.sleep(_POLL_S)


async def lead(path: str, port: int) -> None:
    """Connect each client of the socket to the server, for ever."""

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer_there, back = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass_on(reader, back), _pass_on(writer_there, writer))

    server = await asyncio.start_unix_server(join, path, backlog=_BACKLOG)
    async with server:
        await server.serve_forever()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on bytes until either side has gone; then the other one is closed, too."""
    try:
        while True:
            data = await reader.read(_CHUNK_BYTES)
            if not data:
                return
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def main(words: "list[str]") -> None:
    """Fork what leads to the server, and become the server."""
    path, port, *command = words
    bring_up()
    if os.fork() == 0:
        # No child of the server, which may wait for its children, or kill them.
        if os.fork() == 0:
            # Each client needs two files; the server keeps the limit that the user's job has.
            _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
            wait_for(int(port))
            asyncio.run(lead(path, int(port)))
        os._exit(0)
    os.wait()
    os.execvp(command[0], command)  # noqa: S606 -- as the shell would


if __name__ == "__main__":
    main(sys.argv[1:])
