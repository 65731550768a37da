"""Slicewise itself in the sandbox: settings, ledger, gateway, daemon, launcher."""

import asyncio

from slicewise.sandbox.host.host import Host
from slicewise.sandbox.host.inventory import CLUSTER, PARTITION, gpu_types
from slicewise.sandbox.host.layout import DAEMON_ROLE, LAUNCHER_ROLE
from slicewise.sandbox.host.packages import has_tokens
from slicewise.sandbox.host.probes import unix_socket_answers
from slicewise.sandbox.host.render import render
from slicewise.sandbox.servers import haproxy, llamacpp, triton


def configure(host: Host) -> None:
    """Write slicewise.toml and the databases' URLs, and make the daemon's directory."""
    layout = host.layout
    owner = host.user("slurm").name
    url_file = host.file(
        layout.etc / "database-url",
        layout.database_url(DAEMON_ROLE) + "\n",
        role="slurm",
        mode=0o600,
    )
    launcher_url_file = host.file(
        layout.etc / "launcher-database-url",
        layout.database_url(LAUNCHER_ROLE) + "\n",
        role="slicewise",
        mode=0o600,
    )
    host.directory(layout.run_dir, "slurm", 0o755)
    host.file(
        layout.settings_file,
        render(
            "slicewise.toml.j2",
            layout=layout,
            cluster=CLUSTER,
            partition=PARTITION,
            gpu_types=gpu_types(),
            slurm_user=owner,
            launcher_user=host.user("slicewise").name,
            web_user=host.user("web").name,
            has_tokens=has_tokens(),
            url_file=url_file,
            launcher_url_file=launcher_url_file,
        ),
    )


async def up_ledger(host: Host) -> None:
    """Create the tables and let daemon and launcher use theirs; PostgreSQL must run."""
    await host.command("root", ("slicewise", "ledger", "db", "upgrade"))
    for role, duty in ((DAEMON_ROLE, "daemon"), (LAUNCHER_ROLE, "launcher")):
        await host.command("root", ("slicewise", "ledger", "db", "grant", role, "--as", duty))


async def up_gateway(host: Host) -> None:
    """Write the gateway's configuration and start HAProxy with it."""
    await host.command("slicewise", ("slicewise", "gateway", "render"))
    await haproxy.up(host)


async def up_daemon(host: Host) -> None:
    """Start the daemon; Slurm must run, and the ledger be up to date."""
    host.spawn("daemon", "slurm", ("slicewise", "daemon"))
    await host.ready("daemon", lambda: unix_socket_answers(host.layout.run_dir / "user.sock"))


async def up_launcher(host: Host) -> None:
    """Start the launcher; the daemon and the gateway must run."""
    log = host.log_file("launcher")
    said_before = log.stat().st_size if log.exists() else 0
    host.spawn("launcher", "slicewise", ("slicewise", "launcher"))
    await host.ready("launcher", lambda: b"started" in log.read_bytes()[said_before:])


async def up_web(host: Host) -> None:
    """Start the page's server; the daemon must run."""
    log = host.log_file("web")
    said_before = log.stat().st_size if log.exists() else 0
    host.spawn("web", "web", ("slicewise", "web", "serve"))
    await host.ready("web", lambda: b"web_started" in log.read_bytes()[said_before:])


async def stage_triton(host: Host) -> None:
    """Put a tritonserver into ``bin`` that every user may start."""
    await asyncio.to_thread(triton.stage, host.layout.bin, host.layout.triton)


async def stage_llamacpp(host: Host) -> None:
    """Put a llama-server into ``bin`` that every user may start."""
    layout = host.layout
    python = host.state.program.python
    await asyncio.to_thread(llamacpp.stage, layout.bin, layout.llamacpp, python)
