"""Starts and stops a sandbox: in which order, and what happens if that is cut short."""

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.sandbox import restart
from slicewise.sandbox.host import process, users
from slicewise.sandbox.host.directory import (
    checked,
    chosen_slot,
    claimed,
    empty,
    held_slot,
    require_room,
    storable,
)
from slicewise.sandbox.host.host import Host, Progress, hosts_text
from slicewise.sandbox.host.inventory import NODES
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.libraries import build_nodelay
from slicewise.sandbox.host.staging import stage, write_commands
from slicewise.sandbox.host.state import State, load, save
from slicewise.sandbox.servers import (
    gpus,
    haproxy,
    mariadb,
    munge,
    postgres,
    slicewise,
    slurm,
    triton,
)

STOP_PATIENCE_S = 3.0
_STOP_STAGES: tuple[tuple[str, ...], ...] = (
    ("launcher", "daemon"),
    ("haproxy", "slurmctld", *(f"slurmd-{node.name}" for node in NODES)),
    ("slurmdbd",),
    ("mariadbd", "postgres", "munged"),
)
_SERVERS = frozenset(name for names in _STOP_STAGES for name in names)


def up(directory: Path, progress: Progress, *, services: bool, anew: bool = False) -> State:
    """Start a sandbox there, or start again what has ended of the one that is up.

    If anything goes wrong, a new sandbox is taken down again, and one that was up stays with all
    its data. ``anew`` discards one that was up first.
    """
    path = checked(directory)
    with claimed(path), storable(path):
        state = None if anew else _ready(path)
        if state is not None:
            return restart.restore(Host(state), progress).state
        with _uninterrupted():
            _remove(path)
        try:
            with chosen_slot(path) as slot:
                return _bring_up(Layout(path, slot), progress, services=services).state
        except BaseException:
            with _uninterrupted():
                _remove(path)
                shutil.rmtree(path, ignore_errors=True)
            raise


def down(directory: Path, *, keep: bool = False) -> bool:
    """Take down whatever exists of a sandbox, all or parts; return False if nothing does.

    Interrupts are ignored meanwhile.
    """
    path = checked(directory)
    if not path.exists():
        return False
    with _uninterrupted(), claimed(path):
        if keep:
            _keep(_stop(path))
        else:
            _remove(path)
            shutil.rmtree(path)
    return True


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ignore signals that would end this process.

    Blocking them is not enough: another thread (a progress display has one) would take them. Only
    the main thread may set handlers, and signals interrupt only that thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, _let_pass) for number in held]
    try:
        yield
    finally:
        for number, handler in zip(held, before, strict=True):
            signal.signal(number, handler)


def _let_pass(_number: int, _frame: object) -> None:
    """Handle a signal by doing nothing; unlike SIG_IGN, children do not inherit that."""


def _ready(path: Path) -> State | None:
    """The state of a sandbox that ``up`` has completed, even if servers have ended since."""
    state = load(Layout(path, 0).state_file)
    return state if state is not None and state.ready else None


def _remove(path: Path) -> None:
    """Stop everything and leave the directory empty."""
    _stop(path)
    Layout(path, 0).state_file.unlink(missing_ok=True)  # if cut short here, it is no sandbox
    empty(path)


def _keep(state: State | None) -> None:
    """Remember a stopped sandbox as one that is not up."""
    if state is not None:
        save(State(state.layout, state.users, state.program, state.device_nodes))


def _stop(path: Path) -> State | None:
    """Stop everything; returns what state.json said."""
    try:
        state = load(Layout(path, 0).state_file)
    except SlicewiseError:
        state = None
    if state is None:
        _sweep(path, ())
        return None
    # Keep the slot: its ports become free before all processes of its user ids have ended.
    with held_slot(state.layout.slot) as is_held:
        _stop_in_order(Host(state))
        own = state.several_users and is_held
        _sweep(path, users.own_uids(state.layout.slot) if own else ())
    return state


def _sweep(path: Path, uids: Sequence[int]) -> None:
    """End a sandbox's remaining processes, recorded or not; free what it holds elsewhere."""
    process.end(process.leftovers(path, uids), patience_s=1.0)
    while left := process.leftovers(path, uids):
        process.end(left, patience_s=0.0)
    postgres.release_memory(Layout(path, 0))
    triton.remove_shared_memory(Layout(path, 0).triton)
    triton.remove_temporary(uids)


def _stop_in_order(host: Host) -> None:
    running = {p.name: p for p in host.state.processes.values() if process.is_alive(p)}
    own = [program for name, program in running.items() if name not in _SERVERS]
    process.end(own, patience_s=STOP_PATIENCE_S)
    for names in _STOP_STAGES:
        stage_of = [running[name] for name in names if name in running]
        if "slurmctld" in names and "slurmctld" in running:
            slurm.cancel_jobs(host)
        if "postgres" in names and "postgres" in running:
            process.send_signal(running["postgres"], signal.SIGINT)  # else it waits for clients
        process.end(stage_of, patience_s=STOP_PATIENCE_S)


def _bring_up(layout: Layout, progress: Progress, *, services: bool) -> Host:
    host = _prepare(layout, progress)
    asyncio.run(_start(host, progress, services=services))
    host.update(ready=True)
    return host


def _prepare(layout: Layout, progress: Progress) -> Host:
    path = layout.directory
    require_room(path)
    as_root = os.geteuid() == 0
    people = (
        users.several_users(layout.slot, users.packaged_slurm_user())
        if as_root
        else users.one_user(users.current_user())
    )
    program = stage(layout, for_others=as_root)
    state = State(layout, people, program, device_nodes=as_root and gpus.device_nodes_work(path))
    save(state)
    host = Host(state)
    for place in (layout.etc, layout.log, layout.lib, layout.run, layout.home, layout.models):
        host.directory(place, "root", 0o755)
    host.directory(layout.run, "slurm", 0o755)
    build_nodelay(layout.nodelay)
    for role, user in people.items():
        host.directory(layout.home / user.name, role, 0o755)
    passwd = Path("/etc/passwd").read_text(encoding="utf-8")
    groups = Path("/etc/group").read_text(encoding="utf-8")
    host.file(layout.etc / "passwd", users.passwd_text(passwd, people, layout.home))
    host.file(layout.etc / "group", users.group_text(groups, people))
    host.file(layout.etc / "hosts", hosts_text(layout))
    write_commands(layout, program)
    for line in limitations(state):
        progress(line)
    return host


def limitations(state: State) -> tuple[str, ...]:
    """Say in sentences what this sandbox has to do without."""
    lines = []
    if not state.several_users:
        lines.append("not root: one user plays operator, daemon and all three tenants")
    if not state.device_nodes:
        lines.append("no device nodes may be made here: the GPUs are links to /dev/null")
    if state.program.project.is_relative_to(state.layout.site):
        lines.append(f"the users can't read the program here: copied to {state.layout.site}")
    return tuple(lines)


async def _start(host: Host, progress: Progress, *, services: bool) -> None:
    """Start servers, those that do not need each other in parallel.

    The first failure ends this coroutine; ``asyncio.run`` then cancels the other starts.
    """

    async def timed(name: str, step: Coroutine[object, object, None]) -> None:
        await restart.timed(progress, name, step)

    async def slurm_chain() -> None:
        await asyncio.gather(timed("munged", munge.up(host)), timed("MariaDB", mariadb.up(host)))
        await timed("slurmdbd, accounts", slurm.up_accounting(host))
        await timed("slurmctld", slurm.up_controller(host))
        await timed(f"{len(NODES)} slurmd", slurm.up_nodes(host))

    async def ledger_chain() -> None:
        await timed("PostgreSQL", postgres.up(host))
        if services:
            await timed("ledger", slicewise.up_ledger(host))

    async def gateway_chain() -> None:
        await timed("HAProxy", slicewise.up_gateway(host) if services else haproxy.up(host))

    slurm.configure(host)
    haproxy.prepare(host)
    slicewise.configure(host)
    if not services:
        haproxy.configure_bare(host)
        await asyncio.gather(slurm_chain(), ledger_chain(), gateway_chain())
        return
    engines = (
        timed("Triton", slicewise.stage_triton(host)),
        timed("llama.cpp", slicewise.stage_llamacpp(host)),
    )
    await asyncio.gather(slurm_chain(), ledger_chain(), gateway_chain(), *engines)
    await timed("daemon", slicewise.up_daemon(host))
    await timed("launcher", slicewise.up_launcher(host))
