"""A new service's address is told to its owner once the launcher looks after the service."""

from typing import cast

from cluster.daemon_client import DaemonClient
from cluster.wire import ServiceView, ViewAnswer
from launcher.address import wait_until_followed


class Daemon:
    """Sees the launcher's first wish at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    async def view(self) -> ViewAnswer:
        self.looks += 1
        service = ServiceView(
            array_job_id=814,
            tenant="vision",
            name="chat",
            user="alice",
            submit_s=1,
            directives={},
            profile="1g.10gb",
            cost_millislices=1000,
            slots=(),
            is_followed=self.looks == 3,
        )
        return ViewAnswer(observed_s=1.0, complete=True, services=(service,), tenants=())


async def test_it_waits_for_the_launcher() -> None:
    daemon = Daemon()
    assert await wait_until_followed(cast("DaemonClient", daemon), 814) == ""
    assert daemon.looks == 3


async def test_it_says_that_no_launcher_takes_it_up() -> None:
    assert "is it running?" in await wait_until_followed(
        cast("DaemonClient", Daemon()), 815, patience_s=0.0
    )
