"""``slicewise web serve``: runs the page's server until it is stopped."""

import asyncio
import signal

from slicewise.cluster.rpc.message import Message, build
from slicewise.cluster.runtime.systemd import tell_systemd
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.page.server import WebServer


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. It keeps who is logged in, and nothing else, in memory."""
    build(Message)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server = WebServer(settings)
    await server.start()
    report("web_started", address=settings.web.address)
    tell_systemd("READY=1")
    try:
        await stopping.wait()
    finally:
        tell_systemd("STOPPING=1")
        await server.stop()
        report("web_ended")
