"""HAProxy: the gateway."""

from functools import partial

from slicewise.sandbox.host.host import Host
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.probes import unix_socket_answers
from slicewise.sandbox.host.render import render

CONFIGURATION = "haproxy.cfg"
"""Name of the file in the gateway's directory, as `slicewise gateway render` writes it."""


def prepare(host: Host) -> None:
    """Make the directories that a gateway's configuration names."""
    host.directory(host.layout.haproxy_socket.parent, "slicewise", 0o755)
    host.directory(host.layout.gateway_directory, "slicewise", 0o755)


def configure_bare(host: Host) -> None:
    """Write the configuration of a gateway that knows no service: it answers 503."""
    layout = host.layout
    text = render(
        "haproxy.cfg.j2",
        bind=f"{layout.head_address}:{layout.port('gateway')}",
        runtime_socket=layout.haproxy_socket,
    )
    host.file(layout.gateway_directory / CONFIGURATION, text, role="slicewise", mode=0o640)


def command(layout: Layout) -> tuple[str, ...]:
    """The command for HAProxy in the foreground: a master, and a worker that a reload replaces."""
    configuration = layout.gateway_directory / CONFIGURATION
    return ("haproxy", "-W", "-S", str(layout.haproxy_master_socket), "-f", str(configuration))


async def up(host: Host) -> None:
    """Start HAProxy, for the first time or again, with the configuration in its directory."""
    layout = host.layout
    host.spawn("haproxy", "slicewise", command(layout))
    for socket in (layout.haproxy_socket, layout.haproxy_master_socket):
        await host.ready("haproxy", partial(unix_socket_answers, socket))
