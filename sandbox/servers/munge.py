"""munged with a key of its own: proves to Slurm's daemons who sent a message."""

import secrets
from pathlib import Path

from slicewise.sandbox.host.host import Host
from slicewise.sandbox.host.probes import unix_socket_answers

_KEY = "munge.key"
_KEY_BYTES = 128


async def up(host: Host) -> None:
    """Make a key and start munged."""
    host.directory(host.layout.munge_socket.parent, "slurm", 0o755)
    data = host.directory(_data(host), "slurm", 0o700)
    host.file(data / _KEY, secrets.token_hex(_KEY_BYTES // 2), role="slurm", mode=0o400)
    await start(host)


async def start(host: Host) -> None:
    """Start munged with the key that is there."""
    layout, data = host.layout, _data(host)
    host.spawn(
        "munged",
        "slurm",
        (
            "munged",
            "--foreground",
            "--num-threads=2",
            f"--socket={layout.munge_socket}",
            f"--key-file={data / _KEY}",
            f"--pid-file={layout.munge_socket.parent / 'munged.pid'}",
            f"--seed-file={data / 'munge.seed'}",
            f"--log-file={data / 'munged.log'}",
        ),
    )
    await host.ready("munged", lambda: unix_socket_answers(layout.munge_socket))


def _data(host: Host) -> Path:
    return host.layout.lib / "munge"
