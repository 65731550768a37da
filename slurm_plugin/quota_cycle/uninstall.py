"""Takes Slicewise out of Slurm: puts every setting back, removes its QOS and forgets them."""

import asyncio
import fcntl
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.errors import OutsideError, SlicewiseError
from slicewise.cluster.language.findings import Finding
from slicewise.cluster.language.jobs import ALLOTTED, JobView, NodeView
from slicewise.cluster.language.slurm.interface import JobChange, Slurm, Target
from slicewise.cluster.runtime.together import together
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.slurm.batch import address, update_words
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.summaries import ledger_view_now
from slicewise.slurm_plugin.quota_cycle.avoided_nodes import ReadmittedNodes, avoided_nodes
from slicewise.slurm_plugin.quota_cycle.compile import compile_turn, is_uninstalled
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.admission.qos_switch import MOVES, unit_of_target
from slicewise.slurm_plugin.rules.common.qos_names import (
    GATE_QOS,
    is_marked,
    is_ours,
    uninstalled_qos,
)
from slicewise.slurm_plugin.rules.limits.budget_parts import may_still_take
from slicewise.slurm_plugin.rules.limits.changes import LimitChange, Stage, removal, stages_back
from slicewise.slurm_plugin.rules.limits.desired import (
    NAME,
    Difference,
    SlurmLimits,
    found_of,
    limits_type,
)
from slicewise.slurm_plugin.rules.limits.drift import (
    KnownLimits,
    limits_by,
    opened_gate,
    our_qos,
    our_qos_by_name,
    remember_way_back,
    set_by_others,
    settled,
    taken_out,
    way_back,
)
from slicewise.slurm_plugin.rules.limits.last_jobs import (
    Due,
    Jobs,
    LastJobs,
    due_of,
    last_jobs,
    own_limits,
)
from slicewise.slurm_plugin.rules.mig.node_weights import own_weights
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.types import LimitKey
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import closed_to_qos

_ROUNDS = 12
"""Most rounds of changes until Slurm shows all those that it accepted. Moves do not count: each is
made once."""
_SHOWN = 10
_FINISH = "slicewise uninstall --finish"

Notify = Callable[[str], object]
"""Called with each command right before it runs."""

Refused = Mapping[int, str]
"""Slurm's words for the jobs, or whole arrays, that it did not move, by job id."""

_NONE: Refused = {}


def _silent(_: str) -> None: ...


@dataclass(frozen=True)
class WayBack:
    """What is still to be undone, in this order, and what has to wait.

    Attributes:
        mark: the QOS that says in Slurm that Slicewise was uninstalled, where the ledger is away.
        gate: the settings that open the gate.
        jobs: what happens to jobs in our QOS: their limits change with the gate, their moves come
            before the rest.
        settings: those of accounts and users; qos: the QOS that are removed after them.
        weights: those of nodes.
        avoided: the nodes that services' waiting slots avoid.
        waits: what keeps something in Slurm, one sentence each.
    """

    found: SlurmLimits
    known: KnownLimits = field(hash=False)
    mark: tuple[Difference, ...]
    gate: tuple[Difference, ...]
    jobs: LastJobs
    settings: tuple[Difference, ...]
    qos: tuple[Difference, ...]
    weights: tuple[Difference, ...]
    avoided: ReadmittedNodes
    waits: tuple[str, ...]

    @property
    def all(self) -> tuple[Difference, ...]:
        """All settings that are to be undone."""
        return (*self.mark, *self.binding, *self.settings, *self.qos, *self.weights)

    @property
    def binding(self) -> tuple[Difference, ...]:
        """Settings that let more jobs start than before, once they are undone."""
        return (*self.gate, *self.jobs.limits)

    @property
    def moves(self) -> Mapping[str, str]:
        """Target QOS of waiting jobs to be moved, by job or array tasks as scontrol names them."""
        return {address(target): qos for target, qos in self.jobs.moves.items()}

    @property
    def avoid_commands(self) -> tuple[str, ...]:
        """The commands after which no waiting slot avoids a node."""
        return self.avoided.commands(tuple(self.avoided.changes))

    @property
    def move_commands(self) -> tuple[str, ...]:
        """The commands that make these moves."""
        return tuple(
            command
            for target, qos in self.jobs.moves.items()
            for command in move_commands(target, qos, self.jobs)
        )


@dataclass(frozen=True)
class Undone:
    """What was undone.

    Attributes:
        changes: the sacctmgr commands that Slurm took.
        waits: what keeps something in Slurm, one sentence each.
        moved: target QOS of the waiting jobs that were moved, as ``WayBack.moves``.
        in_use: jobs still in our QOS, by QOS.
        given_back: the scontrol commands after which waiting slots avoid no node, as Slurm took
            them.
    """

    changes: tuple[LimitChange, ...]
    waits: tuple[str, ...]
    moved: Mapping[str, str] = field(default_factory=dict, hash=False)
    moved_jobs: Annotated[int, HIDDEN] = 0
    """Number of moved jobs, each task of an array counted."""
    unmoved: Annotated[Refused, HIDDEN] = field(default_factory=dict, hash=False)
    """What Slurm did not move, though it should still be moved."""
    in_use: Mapping[str, Jobs] = field(default_factory=dict, hash=False)
    given_back: tuple[str, ...] = ()


@contextmanager
def no_daemon(run_dir: Path) -> Iterator[None]:
    """Keep daemons from starting in ``run_dir``; SlicewiseError (SW-DAEMON-RUNNING) if one runs.

    The lock is the daemon's own. Its file is not created here, since it belongs to SlurmUser.
    """
    try:
        file = (run_dir / "daemon.lock").open("rb")
    except FileNotFoundError:
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SlicewiseError(
                Code.DAEMON_RUNNING,
                f"A daemon runs in {run_dir}; it would set all limits again.",
                "Stop it first: systemctl stop slicewise-daemon",
            ) from None
        yield


async def plan(
    slurm: Slurm,
    ledger: Ledger | None,
    settings: Settings,
    refused: Refused = _NONE,
    *,
    finishes: bool = False,
) -> WayBack:
    """Plan what ``uninstall`` would do; without a ``ledger``, from what Slurm shows alone.

    Moves in ``refused`` were tried a moment ago and are not tried again. With ``finishes``, limits
    changed outside Slicewise since it set them stay.
    """
    associations, qos, elsewhere, config, shown, partitions = await together(
        slurm.associations(),
        slurm.qos(),
        slurm.qos_elsewhere(),
        slurm.config(),
        slurm.jobs(),
        slurm.partitions(),
    )
    ledger_view = await asyncio.to_thread(ledger_view_now, ledger, settings) if ledger else None
    known_limits = ledger_view.known if ledger_view else {}
    billing = settings.billing
    limits = found_of(settings.cluster.name, associations, qos, config, billing=billing)
    now_s = ledger_view.now_s if ledger_view else wall_s()
    jobs = last_jobs(
        shown,
        limits,
        _due(ledger_view, shown, settings) if ledger_view else Due(),
        settings.costs,
        now_s=now_s,
        fixed=set_by_others(own_limits(limits), limits, known_limits) if finishes else (),
        theirs=elsewhere,
        refused=refused,
    )
    gated = [view.name for view in partitions if view.qos == GATE_QOS]
    # QOS belong to slurmdbd, and no list says which other cluster uses the gate.
    is_shared = any(map(is_ours, elsewhere))
    is_kept = gated or is_shared
    listed = jobs.staying
    in_lists = {
        (view.name, word): named
        for view in partitions
        for word, qos in (("AllowQos", view.allow_qos or ()), ("DenyQos", view.deny_qos))
        if (named := {name for name in qos if is_ours(name) and name in limits.qos})
    }
    kept = listed | elsewhere | ({GATE_QOS} if is_kept else frozenset())
    kept = kept.union(*in_lists.values())
    return WayBack(
        found=limits,
        known=known_limits,
        mark=() if ledger else tuple(_mark(limits)),
        gate=() if is_shared else opened_gate(limits),
        jobs=jobs,
        settings=way_back(known_limits, limits, listed),
        qos=our_qos(known_limits, limits, kept) if ledger else our_qos_by_name(limits, kept),
        weights=tuple(_weights_back(await slurm.nodes())),
        avoided=await avoided_nodes(slurm, shown),
        waits=(
            *_jobs_left(jobs, refused),
            *_waits(gated, is_shared=is_shared),
            *_named_in(in_lists),
            *_barred(closed_to_qos(partitions, settings.cluster.partitions, _with_waiting(jobs))),
            *(() if ledger else _unknown(limits)),
        ),
    )


def _due(ledger_view: LedgerView, jobs: Iterable[JobView], settings: Settings) -> Due:
    partitions = frozenset(settings.cluster.partitions)
    others = (job for job in jobs if job.state in ALLOTTED and not is_ours(job.qos))
    by_holder = jobs_by_holder(others, partitions, settings.costs, settings.models)
    elsewhere = may_still_take(by_holder, ledger_view.now_s)
    return due_of(ledger_view.tenants, ledger_view.run_minutes, elsewhere, settings.billing)


async def has_begun(slurm: Slurm, ledger: Ledger | None, settings: Settings) -> bool:
    """Whether Slicewise was uninstalled and is not wanted again. Raises what both raise."""
    if ledger is not None and await asyncio.to_thread(ledger.limits.is_uninstalled):
        return True
    return is_marked((qos.name for qos in await slurm.qos()), settings.cluster.name)


async def uninstall(
    slurm: Slurm, ledger: Ledger | None, settings: Settings, tell: Notify = _silent
) -> Undone:
    """Take Slicewise out of Slurm.

    First note that no limits may be set again: in the ledger, or in Slurm where the ledger is away.
    Then open the gate, put all settings back, remove the QOS; nodes get their weights back
    meanwhile, and services' waiting slots may start again on the nodes that they avoid.

    Jobs in our QOS go on. Nothing is lent any more (see ``limits.last_jobs``): own QOS get their
    tenants' guaranteed quotas back (the nominal less what children are due), and waiting jobs on
    borrowed quota move there. A QOS stays while jobs are in it, or a partition has it as its own,
    in AllowQos or in DenyQos, without which slurmctld would end: run it again then. The ledger
    keeps its tenants, quotas and charges.

    Safe to be killed at any point and run again: the original settings are forgotten last. Raises
    OutsideError if Slurm refuses changes (SW-SLURM-FAILED; all that it does not refuse are made),
    or does not make those it accepted (SW-LIMITS-UNSETTLED).
    """
    if ledger is None:
        return await _undone(slurm, None, settings, _Doing(slurm, tell), finishes=False)
    await asyncio.to_thread(ledger.limits.mark_uninstalled)
    async with compile_turn(ledger):
        return await _undone(slurm, ledger, settings, _Doing(slurm, tell), finishes=False)


async def finish(
    slurm: Slurm,
    ledger: Ledger | None,
    settings: Settings,
    tell: Notify = _silent,
    tried: dict[int, str] | None = None,
) -> Undone | None:
    """Go on with an uninstall that has begun; None, with nothing done, if none has, or limits are
    wanted again. Settings that were changed outside Slicewise since stay.

    Moves in ``tried`` were tried lately and are not tried again. The moves of this call are added
    to it, also if the call raises what ``uninstall`` raises.
    """
    doing = _Doing(slurm, tell, tried)
    if ledger is None:
        begun = await has_begun(slurm, None, settings)
        return await _undone(slurm, None, settings, doing, finishes=True) if begun else None
    async with compile_turn(ledger):
        if not await has_begun(slurm, ledger, settings):
            return None
        await asyncio.to_thread(ledger.limits.mark_uninstalled)
        return await _undone(slurm, ledger, settings, doing, finishes=True)


async def _undone(
    slurm: Slurm, ledger: Ledger | None, settings: Settings, doing: "_Doing", *, finishes: bool
) -> Undone:
    rounds = 0
    while True:
        due = await plan(slurm, ledger, settings, doing.tried, finishes=finishes)
        if ledger:
            changing = (*due.binding, *due.settings) or due.qos
            known_limits = settled(due.jobs.reached, due.found, due.known)
            known_limits = {**known_limits, **remember_way_back(changing, due.known)}
            await asyncio.to_thread(ledger.limits.know, known_limits)
        await doing.weigh(due.weights)
        await doing.give_back(due.avoided)
        stages = _first_stages(due)
        if not stages and due.jobs.moves:
            # Moves come first, while accounts' lists still allow the tenants' own QOS.
            await doing.move(due.jobs)
            continue
        stages = stages or _last_stages(due)
        if not stages:
            if ledger and not due.waits:
                await asyncio.to_thread(ledger.limits.forget)
            return doing.done(due)
        if rounds == _ROUNDS:
            raise OutsideError(
                Code.LIMITS_UNSETTLED,
                f"Slurm accepted {len(doing.applied)} changes, but does not show all of them. What"
                f" is still due begins with: sacctmgr {' '.join(stages[0][0])}.",
                "Run that command to see why, then uninstall again.",
            )
        await doing.change(stages)
        rounds += 1


def _first_stages(due: WayBack) -> tuple[Stage, ...]:
    if due.mark:
        return (tuple(("add", "qos", difference.key.name) for difference in due.mark),)
    return stages_back(due.binding, due.found)


def _last_stages(due: WayBack) -> tuple[Stage, ...]:
    if due.settings:
        return stages_back(due.settings, due.found)
    return ((removal(difference.key.name for difference in due.qos),),) if due.qos else ()


class _Doing:
    """Makes the changes in Slurm, and reports each right before.

    Attributes:
        applied: the sacctmgr commands that Slurm took.
        tried: moves that were tried, with the words to show should they be due again.
    """

    def __init__(self, slurm: Slurm, tell: Notify, tried: dict[int, str] | None = None) -> None:
        self._slurm = slurm
        self._tell = tell
        self._moved: dict[Target, str] = {}
        self._let_back: set[Target] = set()
        self._not_let_back: dict[Target, str] = {}
        self._given_back: tuple[str, ...] = ()
        self.applied: tuple[LimitChange, ...] = ()
        self.tried = {} if tried is None else tried

    def done(self, last: WayBack) -> Undone:
        """The result, by what the ``last`` look showed: Slurm accepts some moves without making
        them.
        """
        unmoved = {unit: self.tried[unit] for unit in map(unit_of_target, last.jobs.unmoved)}
        moved = {
            target: qos
            for target, qos in self._moved.items()
            if unit_of_target(target) not in unmoved
        }
        return Undone(
            self.applied,
            (*last.waits, *last.avoided.left(self._not_let_back)),
            {address(target): qos for target, qos in moved.items()},
            sum(1 if isinstance(target, int) else len(target.indices) for target in moved),
            unmoved,
            last.jobs.in_use,
            self._given_back,
        )

    async def give_back(self, avoided: ReadmittedNodes) -> None:
        """Let each slot back onto the nodes that it avoids; each is tried once."""
        new = {
            target: change
            for target, change in avoided.changes.items()
            if target not in self._let_back
        }
        for command in avoided.commands(tuple(new)):
            self._tell(command)
        if new:
            refused = await self._slurm.update(new)
            self._not_let_back |= refused
            self._given_back += avoided.commands(
                [target for target in new if target not in refused]
            )
            self._let_back |= new.keys()

    async def weigh(self, weights: Iterable[Difference]) -> None:
        wanted = {weight.key.name: int(weight.wanted) for weight in weights}
        for node, weight in wanted.items():
            self._tell(f"scontrol update NodeName={node} Weight={weight}")
        if wanted:
            await self._slurm.weigh_nodes(wanted)

    async def change(self, stages: Iterable[Stage]) -> None:
        """Run all stages; OutsideError (SW-SLURM-FAILED) then if Slurm refused some changes."""
        refused: dict[LimitChange, str] = {}
        for stage in stages:
            for change in stage:
                self._tell(f"sacctmgr {' '.join(change)}")
            refused |= await self._slurm.sacctmgr(stage)
            self.applied += tuple(change for change in stage if change not in refused)
        _require_taken(refused)

    async def move(self, jobs: LastJobs) -> None:
        """Make the first moves, each once.

        A job that Slurm refuses to move has mostly started or ended meanwhile.
        """
        moves = dict(islice(jobs.moves.items(), MOVES))
        for target, qos in moves.items():
            for command in move_commands(target, qos, jobs):
                self._tell(command)
        changes = {target: JobChange(qos=qos) for target, qos in moves.items()}
        refused = await self._slurm.update(changes)
        for target, qos in moves.items():
            self.tried[unit_of_target(target)] = refused.get(target, "it shows it as before")
            if target not in refused:
                self._moved[target] = qos


def move_commands(target: Target, qos: str, jobs: LastJobs) -> tuple[str, ...]:
    """The commands that move a waiting job, or tasks of an array; Slurm changes the array's records
    one by one.
    """
    words = update_words(target, JobChange(qos=qos), jobs.folded)
    return tuple(" ".join(("scontrol", *word)) for word in words)


def _require_taken(refused: Mapping[LimitChange, str]) -> None:
    for change, words in refused.items():
        raise OutsideError(
            Code.SLURM_FAILED,
            f"Slurm refused {len(refused)} changes, the first of them:"
            f" sacctmgr {' '.join(change)}: {words}",
            "All others were made. Run that command to see why, then do this again.",
        )


async def want_again(slurm: Slurm, ledger: Ledger, settings: Settings) -> None:
    """Let limits be set again after an uninstall.

    The ledger's mark is cleared last: if the process is killed before that, none are set. Raises
    what both raise, and OutsideError (SW-SLURM-FAILED) if Slurm keeps its mark.
    """
    async with compile_turn(ledger):
        associations, qos, config = await together(
            slurm.associations(), slurm.qos(), slurm.config()
        )
        ledger_view = await asyncio.to_thread(ledger_view_now, ledger, settings)
        if not is_uninstalled(ledger_view, qos, settings):
            return
        slurm_limits = found_of(settings.cluster.name, associations, qos, config)
        await asyncio.to_thread(ledger.limits.know, taken_out(ledger_view.known, slurm_limits))
        mark = uninstalled_qos(settings.cluster.name)
        if mark in slurm_limits.qos:
            _require_taken(await slurm.sacctmgr((removal((mark,)),)))
        await asyncio.to_thread(ledger.limits.mark_wanted)


def _mark(slurm_limits: SlurmLimits) -> Iterator[Difference]:
    """The mark to add in Slurm; none where nothing of ours is in Slurm to be put back."""
    name = uninstalled_qos(slurm_limits.cluster)
    if name not in slurm_limits.qos and any(map(limits_by, slurm_limits.qos)):
        yield Difference(
            LimitKey("qos", name, NAME), "", name, "marks that Slicewise was uninstalled"
        )


def _unknown(slurm_limits: SlurmLimits) -> Iterator[str]:
    """Sentences about what can't be undone without the ledger."""
    limited = sorted(
        name
        for name, row in slurm_limits.accounts.items()
        if any(limits_type(f"grptres={tres}") for tres in row.grp_tres)
    )
    if limited:
        yield (
            f"Limits on GPU types of accounts stay ({shown(limited)}): only the ledger knows which"
            " were Slicewise's, and what they were before."
        )
    name = uninstalled_qos(slurm_limits.cluster)
    if name in slurm_limits.qos or any(map(limits_by, slurm_limits.qos)):
        yield (
            f"QOS {name} stays, so that no daemon sets limits again when PostgreSQL answers:"
            f" uninstall again then. If it never will: sacctmgr remove qos {name}"
        )


def _weights_back(nodes: Iterable[NodeView]) -> Iterator[Difference]:
    own = own_weights(nodes)
    for node in nodes:
        if node.name in own:
            key = LimitKey("node", node.name, "weight")
            yield Difference(key, str(node.weight), str(own[node.name]), "as it was before")


def _jobs_left(jobs: LastJobs, refused: Refused) -> Iterator[str]:
    for qos, those in jobs.in_use.items():
        yield (
            f"QOS {qos} stays as long as jobs are in it, {jobs_text(those)}: "
            f"{shown(those.names)}. They go on. Run {_FINISH} when they have ended."
        )
    unmoved: dict[tuple[str, str], list[Target]] = {}
    for target, qos in jobs.unmoved.items():
        unmoved.setdefault((refused[unit_of_target(target)], qos), []).append(target)
    for (words, qos), targets in unmoved.items():
        commands = (
            command for target in targets[:_SHOWN] for command in move_commands(target, qos, jobs)
        )
        yield (
            f"Slurm does not move these waiting jobs to QOS {qos} ({words}), so they keep their"
            f" QOS: {shown(list(map(address, targets)))} ({len(targets)} jobs or arrays). To move"
            f" them yourself: {'; '.join(commands)}"
        )
    for qos, stuck in jobs.stuck.items():
        settings = " ".join(stuck.settings)
        yield (
            f"In QOS {qos} jobs wait that need more than it allows, and would wait for ever: "
            f"{shown(stuck.names)}. To let them start: sacctmgr modify qos where name={qos} "
            f"set {settings}"
        )


def jobs_text(those: Jobs) -> str:
    """``2 run, 1 waits, 3 are held``."""
    counts = (
        (those.running, "runs", "run"),
        (those.waiting, "waits", "wait"),
        (those.held, "is held", "are held"),
    )
    return ", ".join(f"{n} {single if n == 1 else many}" for n, single, many in counts if n)


def shown(names: Sequence[str]) -> str:
    """``814, 815_3 and 7 more``: the first ten."""
    more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
    return ", ".join(names[:_SHOWN]) + more


def _waits(gated: Iterable[str], *, is_shared: bool) -> Iterator[str]:
    gate = "stays closed for another cluster of this slurmdbd" if is_shared else "is open now"
    for name in gated:
        yield (
            f"Partition {name} has QOS={GATE_QOS}, which {gate}: take it out of slurm.conf, "
            f"scontrol reconfigure, then {_FINISH}. Without that QOS slurmctld would exit."
        )


def _with_waiting(jobs: LastJobs) -> frozenset[str]:
    """The QOS in which jobs have yet to start."""
    return frozenset(qos for qos, those in jobs.in_use.items() if those.waiting or those.held)


def _barred(closed: Iterable[Finding]) -> Iterator[str]:
    """Sentences about partitions that bar QOS which stay: a site puts its own lists back early."""
    for finding in closed:
        yield f"{finding.what}: {finding.why}. Put your own list back once those jobs have ended."


def _named_in(lists: Mapping[tuple[str, str], Collection[str]]) -> Iterator[str]:
    """Sentences about partitions' lists that name our QOS.

    From Slurm 25.11 on slurmctld does not start where such a list names a QOS that does not exist.
    """
    for (name, word), qos in lists.items():
        yield (
            f"{word} of partition {name} has {', '.join(sorted(qos))}: take them out of "
            f"slurm.conf, scontrol reconfigure, then {_FINISH}. Without those QOS slurmctld would"
            " exit (from Slurm 25.11 on)."
        )
