"""The yardstick of admission: a bare asyncio streams server that sends each line back."""

import asyncio
import sys
from pathlib import Path


async def serve(path: Path) -> None:
    """Listen on that socket until the process is killed."""
    server = await asyncio.start_unix_server(_echo, path)
    async with server:
        await server.serve_forever()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
