"""Runs the whole demo: cluster up, story, report, cluster down."""

import asyncio
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

from rich.console import Console

from slicewise.cluster.language.errors import Refusal
from slicewise.cluster.language.gpus.mig_profiles import board, cost_millislices
from slicewise.cluster.settings.read import load_settings
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.acts import let_the_guest_in
from slicewise.sandbox.demo.commands import (
    Commands,
    publish_chat_model,
    publish_models,
    write_service_file,
)
from slicewise.sandbox.demo.live import Display
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.lock import only_demo
from slicewise.sandbox.demo.observe import ClusterObserver
from slicewise.sandbox.demo.record import Recording
from slicewise.sandbox.demo.report import Report, build
from slicewise.sandbox.demo.scenario import (
    CHAT,
    COMPRESSION,
    GUEST,
    NLP,
    REQUEST_TIMEOUT_S,
    SERVING,
    VISION,
    rules,
)
from slicewise.sandbox.demo.story import Story
from slicewise.sandbox.demo.trace import Arrival, arrivals, read_extract
from slicewise.sandbox.host.inventory import gpu_types
from slicewise.sandbox.lifecycle import down


@dataclass(frozen=True)
class Options:
    """The options of ``python -m slicewise.sandbox.demo``."""

    directory: Path
    report_dir: Path
    keep: bool


def default_directory() -> Path:
    """The demo's directory, not that of ``slicewise sandbox up``: users' own sandboxes stay."""
    return Path(f"/tmp/slicewise-demo-{os.getuid()}")  # noqa: S108 -- checked by the sandbox


def run(options: Options, console: Console) -> Report:
    """Perform the demo and write ``demo.json`` and ``demo.png``.

    Afterwards, even after an error or interrupt, the cluster is taken down unless ``keep``. What an
    earlier demo left in the directory is taken down first. Raises SlicewiseError (SW-BUSY) while
    another demo runs there.
    """
    with only_demo(options.directory):
        return _run(options, console)


def _run(options: Options, console: Console) -> Report:
    begin_s = time.monotonic()
    with console.status("Taking down what an earlier demo left"):
        down(options.directory)
    try:
        with console.status("Starting the cluster"):
            sandbox = Sandbox.up(
                options.directory,
                progress=lambda line: console.print(f"[dim]{line}[/dim]", highlight=False),
            )
        recording = _perform(sandbox, console, begin_s)
        report = build(recording)
        _write(recording, report, options.report_dir)
    finally:
        if not options.keep:
            with console.status("Taking the cluster down"):
                down(options.directory)
    return report


def _perform(sandbox: Sandbox, console: Console, begin_s: float) -> Recording:
    layout = sandbox.layout
    observer = ClusterObserver(load_settings(layout.settings_file))
    commands = Commands(sandbox.run, costs())
    with console.status("Setting quotas, applying services"):
        refusal = _apply_services(commands, publish_models(layout.models), layout.home)
        models = publish_chat_model(layout.models, CHAT.model)
        chat_file = write_service_file(CHAT, models, layout.home / CHAT.user)
        shape_jobs = let_the_guest_in(commands, chat_file)
        page = sandbox.page_login("root")
    console.print(f"Watch it in a browser (logs in once): {page}", soft_wrap=True, highlight=False)

    async def story() -> Recording:
        services = [plan.service for plan in SERVING]
        async with Load(layout.gateway_url, services, REQUEST_TIMEOUT_S) as load:
            with Display(console) as display:
                performance = Story(
                    load, observer, commands, display, refusal, shape_jobs, facts(), begin_s
                )
                return await performance.perform(replay())

    return asyncio.run(story())


def _apply_services(commands: Commands, models: Path, home: Path) -> Refusal | None:
    """Set quotas, apply two services, and return the refusal of a third tenant's service."""
    for plan in SERVING:
        commands.set_quota(plan)
    for plan in (VISION, NLP):
        commands.apply(plan, write_service_file(plan, models, home / plan.user))
    return commands.refused_application(GUEST, write_service_file(GUEST, models, home / GUEST.user))


def replay() -> tuple[Arrival, ...]:
    """Return the trace as this demo sends it."""
    schedules = {plan.service: plan.schedule for plan in SERVING}
    return arrivals(read_extract(), COMPRESSION, schedules)


def costs() -> Mapping[str, int]:
    """Millislices of one instance by GRES type, as the sandbox's inventory has them."""
    return {
        profile: cost_millislices(board(model), profile, Fraction(1))
        for model, profiles in gpu_types().items()
        for profile in profiles
    }


def facts() -> Mapping[str, str]:
    """Return what a reader of the report needs to judge and repeat the run."""
    return {
        "command": shlex.join(("python", "-m", "slicewise.sandbox.demo", *sys.argv[1:])),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.platform()}",
        "started": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
        **rules(),
    }


def _write(recording: Recording, report: Report, directory: Path) -> None:
    from slicewise.sandbox.demo import plot  # noqa: PLC0415 -- takes a second, and only here

    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report.as_json(), indent=2)
    (directory / "demo.json").write_text(f"{text}\n", encoding="utf-8")
    plot.save(recording, directory / "demo.png")
