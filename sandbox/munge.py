"""munged with a key of its own: proves to Slurm's daemons who sent a message."""

import secrets

from sandbox.host import Host
from sandbox.probes import unix_socket_answers

_KEY_BYTES = 128


async def up(host: Host) -> None:
    """Make a key and start munged."""
    layout = host.layout
    run = host.directory(layout.munge_socket.parent, "slurm", 0o755)
    data = host.directory(layout.lib / "munge", "slurm", 0o700)
    key = host.file(
        data / "munge.key", secrets.token_hex(_KEY_BYTES // 2), role="slurm", mode=0o400
    )
    host.spawn(
        "munged",
        "slurm",
        (
            "munged",
            "--foreground",
            "--num-threads=2",
            f"--socket={layout.munge_socket}",
            f"--key-file={key}",
            f"--pid-file={run / 'munged.pid'}",
            f"--seed-file={data / 'munge.seed'}",
            f"--log-file={data / 'munged.log'}",
        ),
    )
    await host.ready("munged", lambda: unix_socket_answers(layout.munge_socket))
