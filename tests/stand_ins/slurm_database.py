"""sacctmgr as of 22.05 in a few lines of Python, a ledger, and a death between two steps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

from builders.ledger_parts import LedgerParts
from builders.nodes import a_node

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.jobs import JobState, JobView, NodeView, PartitionView
from slicewise.cluster.language.slurm.interface import Association, Changed, JobChange, Qos, Target
from slicewise.cluster.language.slurm.values import duration_s
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.settings.lending import LendingSettings
from slicewise.cluster.slurm.batch import address, named_qos
from slicewise.slurm_plugin.rules.accounting.ledger_view import UNINSTALLED_ID
from slicewise.slurm_plugin.rules.accounting.types import Balance
from slicewise.slurm_plugin.rules.quota.tenants import changed
from slicewise.slurm_plugin.rules.quota.types import (
    KnownLimit,
    LimitKey,
    Loan,
    Policy,
    Recall,
    TenantUpdate,
)
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import conf_lines

CLUSTER = "c"
COSTS = {"1g.10gb": 1000, "3g.40gb": 3500}
CAPACITY = 14_000


class KilledError(Exception):
    """kill -9 of the program between two of its steps."""


@dataclass
class Steps:
    """Counts a program's changes to Slurm and the ledger, and kills it before one of them.

    ``left``: changes until then; None: it is never killed.
    """

    left: int | None = None

    def step(self) -> None:
        if self.left == 0:
            raise KilledError
        if self.left is not None:
            self.left -= 1


@dataclass
class Row:
    """An account (user "") or a user in an account.

    Attributes:
        own: its own list of QOS; None if it inherits one.
        plus, minus: QOS added to and removed from the inherited list.
        default: its own default QOS; "" if it inherits one.
    """

    account: str
    user: str = ""
    parent: str = ""
    own: frozenset[str] | None = None
    plus: frozenset[str] = frozenset()
    minus: frozenset[str] = frozenset()
    default: str = ""
    grp_tres: dict[str, int] = field(default_factory=dict)
    run_mins: dict[str, int] = field(default_factory=dict)
    tres_mins: dict[str, int] = field(default_factory=dict)


class SlurmDatabase:
    """The part of Slurm that ``compile`` and ``uninstall`` see.

    Like the real Slurm it silently refuses a default that is not in the list, and the removal of a
    QOS that is a default.
    """

    def __init__(
        self, rows: Iterable[Row], qos: Iterable[Qos] = (), steps: Steps | None = None
    ) -> None:
        root = Row("root", own=frozenset({"normal"}))
        self.rows = {(row.account, row.user): row for row in (root, *rows)}
        self.known = {one.name: one for one in (Qos("normal", {}, frozenset()), *qos)}
        self.steps = steps or Steps()
        self.commands: list[str] = []
        self.running: tuple[JobView, ...] = ()
        self.elsewhere = frozenset[str]()
        self.partition_qos = "slicewise_gate"
        self.allow_qos: frozenset[str] | None = None
        self.deny_qos: frozenset[str] = frozenset()
        self.refuses: tuple[str, ...] = ()
        self.ignores: tuple[str, ...] = ()
        """Words in commands that are accepted but have no effect."""
        self.shows_refusals = False
        self.weight = 1
        self.excluded: dict[int, frozenset[str]] = {}

    # What is asked of it

    async def associations(self) -> tuple[Association, ...]:
        return tuple(self._association(row) for row in self.rows.values())

    def _association(self, row: Row) -> Association:
        return Association(
            cluster=CLUSTER,
            account=row.account,
            user=row.user,
            parent=row.parent,
            qos=self._list(row),
            default_qos=self._default(row),
            grp_tres=dict(row.grp_tres),
            grp_tres_run_mins=dict(row.run_mins),
            grp_tres_mins=dict(row.tres_mins),
            own_qos=row.plus if row.own is None else row.own,
            own_default_qos=row.default,
        )

    async def qos(self) -> tuple[Qos, ...]:
        return tuple(self.known.values())

    async def config(self) -> Mapping[str, str]:
        lines = (line.partition("=") for line in conf_lines((), COSTS, MILLISLICES))
        return {key: value for key, _, value in lines}

    async def partitions(self) -> tuple[PartitionView, ...]:
        weights = {f"gres/gpu:{kind}": float(cost) for kind, cost in COSTS.items()}
        gpu = PartitionView("gpu", weights, self.partition_qos)
        return (replace(gpu, allow_qos=self.allow_qos, deny_qos=self.deny_qos),)

    async def nodes(self) -> tuple[NodeView, ...]:
        gpus = {"1g.10gb": 7, "3g.40gb": 2}
        states, partitions = frozenset({"IDLE"}), frozenset({"gpu"})
        return (a_node(states=states, gpus=gpus, partitions=partitions, weight=self.weight),)

    async def qos_elsewhere(self) -> frozenset[str]:
        return self.elsewhere

    async def jobs(self) -> tuple[JobView, ...]:
        return self.running

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        return {change: words for change in changes if (words := self.set(change))}

    def set(self, change: tuple[str, ...]) -> str:
        """Make one change; return the refusal, or ""."""
        self.steps.step()
        command = " ".join(change)
        self.commands.append(command)
        if any(word in command for word in self.refuses):
            return " Nothing modified"
        if any(word in command for word in self.ignores):
            return ""
        before = self.state() if self.shows_refusals else None
        self._take(list(change))
        return " Nothing modified" if before is not None and self.state() == before else ""

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        refused: dict[Target, str] = {}
        for target, change in changes.items():
            self.steps.step()
            if change.excluded_nodes is not None:
                refused |= self._exclude(target, change)
                continue
            command = f"update {address(target)} qos={change.qos}"
            self.commands.append(command)
            theirs = [job for job in self.running if _is_of(job, target)]
            if any(word in command for word in self.refuses) or not all(
                self._may_have(job, change.qos or "") for job in theirs
            ):
                refused[target] = "Invalid qos specification"
            elif not any(word in command for word in self.ignores):
                self.running = tuple(
                    replace(job, qos=change.qos or "") if job in theirs else job
                    for job in self.running
                )
        return refused

    def _may_have(self, job: JobView, qos: str) -> bool:
        waits = job.state in {JobState.PENDING, JobState.SPECIAL_EXIT}
        return waits and self.may_have(job.account, qos)

    def may_have(self, account: str, qos: str) -> bool:
        """Whether a job of the account may have this QOS."""
        return qos in self._list(self.rows[account, ""]) & self.known.keys()

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        refused, named = await self.sacctmgr(changes), named_qos(changes)
        return Changed(refused, tuple(one for one in await self.qos() if one.name in named))

    def _exclude(self, target: Target, change: JobChange) -> Mapping[Target, str]:
        command = f"update {address(target)} excluded={','.join(change.excluded_nodes or ())}"
        self.commands.append(command)
        if any(word in command for word in self.refuses):
            return {target: "Job is being modified"}
        theirs = [job for job in self.running if _is_of(job, target)]
        self.excluded |= {job.job_id: change.excluded_nodes or frozenset() for job in theirs}
        comment = change.admin_comment or ""
        self.running = tuple(
            replace(job, admin_comment=comment) if job in theirs else job for job in self.running
        )
        return {}

    async def excluded_nodes(self, array_job_id: int) -> Mapping[int, frozenset[str]]:
        theirs = [job.job_id for job in self.running if job.array_job_id == array_job_id]
        return {job_id: self.excluded.get(job_id, frozenset()) for job_id in theirs}

    async def weigh_nodes(self, weights: Mapping[str, int]) -> None:
        self.steps.step()
        self.weight = weights["n1"]

    def state(self) -> tuple[object, ...]:
        """The whole state, to compare."""
        # A QOS is replaced, never changed.
        return self._copied_rows(), dict(self.known), self.weight

    def _copied_rows(self) -> dict[tuple[str, str], Row]:
        return {
            key: replace(
                row,
                grp_tres=dict(row.grp_tres),
                run_mins=dict(row.run_mins),
                tres_mins=dict(row.tres_mins),
            )
            for key, row in self.rows.items()
        }

    def limit(self, account: str, tres: str = "billing") -> int | None:
        return self.rows[account, ""].grp_tres.get(tres)

    def limits(self, *tenants: str) -> list[int | None]:
        """The limits of the tenants' own QOS, then those of their borrowed QOS."""
        names = [f"slicewise_{name}{end}" for end in ("", "_borrowed") for name in tenants]
        return [self.known[name].grp_tres.get("billing") for name in names if name in self.known]

    # Inheritance

    def _above(self, row: Row) -> Row | None:
        return self.rows.get((row.account if row.user else row.parent, ""))

    def _list(self, row: Row) -> frozenset[str]:
        if row.own is not None:
            return row.own
        above = self._above(row)
        return ((self._list(above) if above else frozenset()) | row.plus) - row.minus

    def _default(self, row: Row) -> str:
        above = self._above(row)
        return row.default or (self._default(above) if above else "")

    # What is done to it

    def _take(self, words: list[str]) -> None:
        match words:
            case ["add", "qos", names, *settings]:
                for name in names.split(","):
                    self.known[name] = Qos(name, {}, frozenset())
                    self._set_qos(name, settings)
            case ["remove", "qos", "where", names]:
                self._remove_qos(frozenset(names.removeprefix("name=").split(",")))
            case ["modify", "qos", "where", names, "set", *settings]:
                for name in names.removeprefix("name=").split(","):
                    self._set_qos(name, settings)
            case ["modify", "account", "where", names, "cluster=c", "set", *settings]:
                self._modify([(name, "") for name in _values(names)], settings)
            case ["modify", "user", "where", user, account, "cluster=c", "set", *settings]:
                self._modify([(name, _values(user)[0]) for name in _values(account)], settings)
            case _:
                raise AssertionError(words)

    def _remove_qos(self, names: frozenset[str]) -> None:
        if any(row.default in names for row in self.rows.values()):
            return
        for name in names:
            del self.known[name]
        for name, one in self.known.items():
            self.known[name] = replace(one, preempt=one.preempt - names)
        for row in self.rows.values():
            row.own = None if row.own is None else row.own - names
            row.plus, row.minus = row.plus - names, row.minus - names

    def _set_qos(self, name: str, settings: Iterable[str]) -> None:
        one = self.known[name]
        group, each, preempt = dict(one.grp_tres), dict(one.max_tres_per_account), one.preempt
        minutes = dict(one.grp_tres_run_mins)
        limits = {"grptres": group, "maxtresperaccount": each, "grptresrunmins": minutes}
        exempt_s, mode, flags = one.preempt_exempt_s, one.preempt_mode, one.flags
        for setting in settings:
            word, _, value = setting.partition("=")
            if word in {"preempt", "preempt+"}:
                assert set(value.split(",")) <= self.known.keys()
                preempt = preempt | set(value.split(","))
            elif word == "preemptmode":
                mode = value
            elif word in {"flags", "flags+"}:
                flags = flags | {value}
            elif word == "preemptexempttime":
                # sacctmgr takes a number alone for minutes.
                assert value == "-1" or ":" in value
                exempt_s = None if value == "-1" else duration_s(value)
            else:
                _set_limits(limits[word], value)
        self.known[name] = Qos(name, group, preempt, each, minutes, exempt_s, mode, flags)

    def _modify(self, keys: Iterable[tuple[str, str]], settings: Iterable[str]) -> None:
        for key in keys:
            before = self._copied_rows()
            for setting in settings:
                self._set(self.rows[key], setting)
            refused = (row for row in self.rows.values() if not self._has_its_default(row))
            if any(refused):
                self.rows = before

    def _has_its_default(self, row: Row) -> bool:
        return not self._default(row) or self._default(row) in self._list(row)

    def _set(self, row: Row, setting: str) -> None:
        word, _, value = setting.partition("=")
        names = frozenset(value.split(",")) - {""}
        assert word == "defaultqos" or not names & {"inherited"}
        match word:
            case "grptres":
                _set_limits(row.grp_tres, value)
            case "grptresrunmins":
                _set_limits(row.run_mins, value)
            case "grptresmins":
                _set_limits(row.tres_mins, value)
            case "defaultqos":
                row.default = "" if value == "-1" else value
            case "qos" if not value:
                row.own, row.plus, row.minus = None, frozenset(), frozenset()
            case "qos+" if row.own is None:
                row.plus, row.minus = row.plus | names, row.minus - names
            case "qos-" if row.own is None:
                row.plus, row.minus = row.plus - names, row.minus | names
            case "qos+" if row.own is not None:
                row.own = row.own | names
            case "qos-" if row.own is not None:
                row.own = row.own - names
            case _:
                raise AssertionError(setting)


def _is_of(job: JobView, target: Target) -> bool:
    if isinstance(target, int):
        return job.job_id == target
    return job.array_job_id == target.array_job_id and (
        job.task_index in target.indices or bool(job.untouched & target.indices)
    )


def _values(words: str) -> list[str]:
    return words.partition("=")[2].split(",")


def _set_limits(limits: dict[str, int], text: str) -> None:
    for part in text.split(","):
        tres, _, value = part.partition("=")
        limits[tres] = int(value)
        if limits[tres] == -1:
            del limits[tres]


class FreeLock:
    """A lock that no other process holds."""

    def hold(self) -> bool:
        return True

    def give_up(self) -> None: ...


class LimitLedger(LedgerParts):
    """The part of the ledger that ``compile`` and ``uninstall`` need."""

    def __init__(self, steps: Steps | None = None) -> None:
        self.steps = steps or Steps()
        self.shown: Policy = {}
        self.lent: tuple[Loan, ...] = ()
        self.called: tuple[Recall, ...] = ()
        self.remembered: dict[LimitKey, KnownLimit] = {}
        self.authors: list[str] = []
        self.compiled_id = 0
        self.left: dict[str, int] = {}
        """Millislice-seconds of the budgets that have begun, by tenant."""

    def policy(self) -> Policy:
        return self.shown

    def outstanding(self) -> tuple[Loan, ...]:
        return self.lent

    def recalls(self) -> tuple[Recall, ...]:
        return self.called

    def balances(self) -> Mapping[str, Balance]:
        none = MillisliceSeconds(0)
        return {
            name: Balance(name, MillisliceSeconds(left), MillisliceSeconds(left), none, none, none)
            for name, left in self.left.items()
        }

    def rollovers(self) -> Mapping[str, int]:
        return dict.fromkeys(self.left, 0)

    def open_reservations(self) -> tuple[object, ...]:
        return ()

    def change(self, update: TenantUpdate, author: str, reason: str) -> None:
        self.shown = changed(self.shown, update)
        self.authors.append(author)

    def mark_compiled(self, change_id: int) -> None:
        self.compiled_id = change_id

    def known(self) -> Mapping[LimitKey, KnownLimit]:
        return dict(self.remembered)

    def compiling(self) -> FreeLock:
        return FreeLock()

    def know(self, known: Mapping[LimitKey, KnownLimit]) -> None:
        if known:
            self.steps.step()
            self.remembered |= known

    def mark_uninstalled(self) -> None:
        self.steps.step()
        self.compiled_id = UNINSTALLED_ID

    def mark_wanted(self) -> None:
        self.steps.step()
        self.compiled_id = 0

    def is_uninstalled(self) -> bool:
        return self.compiled_id == UNINSTALLED_ID

    def forget(self) -> None:
        self.steps.step()
        self.remembered = {}


def settings(
    by_hand: str = "put back", term_s: int = 0, billing: BillingUnit = MILLISLICES
) -> SimpleNamespace:
    """The part of the settings that is read."""
    return SimpleNamespace(
        cluster=SimpleNamespace(name=CLUSTER, partitions=("gpu",)),
        whole_boards={},
        models=dict.fromkeys(COSTS, "A100-80GB"),
        costs=COSTS,
        billing=billing,
        ledger=SimpleNamespace(by_hand=by_hand, time_zone="UTC"),
        lending=LendingSettings(term_s=term_s),
        qos={},
    )
