"""Priorities by priority/multifactor: age, fair share, size, QOS, and the site's factor.

As Slurm does, the model computes a priority when a job becomes eligible or changes, and those of
all waiting jobs once in PriorityCalcPeriod. Fair share is Fair Tree: accounts and users are ranked
among their siblings by share ÷ decayed use, from the top. Users are known from their jobs, so those
who never submitted one take no rank. Left out are nice, partitions' factors and TRES factors.
"""

from dataclasses import dataclass
from math import inf

from simulation.cluster import PriorityWeights
from simulation.slurm_model.limits import CALC_PERIOD_S, Limits
from simulation.slurm_model.records import JobRecord

_LARGEST = 0xFFFFFFFF - 2
"""The largest priority that Slurm keeps."""


@dataclass
class _UserUse:
    """Decayed billing × seconds of one user in one account."""

    seconds: float = 0.0
    held: int = 0
    early: float = 0.0


@dataclass
class _Branch:
    """One account or user of the tree, with what stands below."""

    use: float
    share: int
    below: list["_Branch"]
    user: tuple[str, str] | None = None
    level: float = inf


class Priorities:
    """Computes priorities, and keeps the use that fair share follows."""

    def __init__(self, weights: PriorityWeights, nodes: int, limits: Limits) -> None:
        self._weights = weights
        self._nodes = max(1, nodes)
        self._limits = limits
        self._use: dict[tuple[str, str], _UserUse] = {}
        self._factors: dict[tuple[str, str], float] = {}
        self._last_s = 0.0
        self._top_qos = 1
        self.changes_by_itself = bool(weights.age or weights.fair_share)

    def begin_at(self, now_s: float) -> None:
        """Say when the model begins."""
        self._last_s = now_s

    def qos_changed(self) -> None:
        """Look again which QOS has the largest priority."""
        self._top_qos = max((1, *(one.priority for one in self._limits.qos.values())))

    def of(self, record: JobRecord, now_s: float) -> int:
        """The job's priority now, at least 1."""
        weights = self._weights
        total = float(record.site_factor)
        if weights.age and record.eligible_s is not None and now_s > record.eligible_s:
            aged = (now_s - record.eligible_s) / weights.max_age_s if weights.max_age_s else 1.0
            total += weights.age * min(1.0, aged)
        if weights.fair_share:
            key = (record.request.account, record.request.user)
            total += weights.fair_share * self._factors.get(key, 1.0)
        if weights.job_size:
            total += weights.job_size * record.request.nodes / self._nodes
        if weights.qos:
            total += weights.qos * self._limits.of_qos(record.qos).priority / self._top_qos
        return min(_LARGEST, max(1, int(total)))

    def begin(self, record: JobRecord, now_s: float) -> None:
        """Count a job's use from now on."""
        if self._weights.fair_share:
            use = self._use.setdefault((record.request.account, record.request.user), _UserUse())
            billing = record.tres.get("billing", 0)
            use.held += billing
            use.early += billing * (now_s - self._last_s)

    def end(self, record: JobRecord, now_s: float) -> None:
        """Count a job's use until now."""
        if self._weights.fair_share:
            use = self._use[record.request.account, record.request.user]
            billing = record.tres.get("billing", 0)
            use.held -= billing
            use.seconds += billing * (now_s - self._last_s)

    def pass_period(self, now_s: float) -> None:
        """Decay all use until now, and rank everybody again."""
        if not self._weights.fair_share:
            return
        passed_s = now_s - self._last_s
        half_life_s = self._weights.half_life_s
        decay = 0.5 ** (passed_s / half_life_s) if half_life_s else 1.0
        for use in self._use.values():
            used = use.seconds + use.held * passed_s - use.early
            use.seconds, use.early = max(0.0, used * decay), 0.0
        self._last_s = now_s
        self._rank()

    def _rank(self) -> None:
        ranked = _ranked([self._tree()])
        users = sum(len(group) for group in ranked)
        left = users
        for group in ranked:
            for user in group:
                self._factors[user] = left / users
            left -= len(group)

    def _tree(self) -> _Branch:
        root = _Branch(0.0, 1, [])
        accounts = {"root": root, "": root}
        for (account, user), use in self._use.items():
            path = self._limits.line_of(account)
            parent = root
            root.use += use.seconds
            for name in reversed(path):
                if name not in accounts:
                    known = self._limits.accounts.get(name)
                    accounts[name] = _Branch(0.0, known.share if known is not None else 1, [])
                    parent.below.append(accounts[name])
                parent = accounts[name]
                parent.use += use.seconds
            parent.below.append(_Branch(use.seconds, 1, [], (account, user)))
        return root


def _ranked(branches: list[_Branch]) -> list[list[tuple[str, str]]]:
    """Users below these tied accounts, best first; those of equal rank stand together."""
    below = [one for branch in branches for one in _levelled(branch)]
    found: list[list[tuple[str, str]]] = []
    for level in sorted({one.level for one in below}, reverse=True):
        tied = [one for one in below if one.level == level]
        users = [one.user for one in tied if one.user is not None]
        if users:
            found.append(users)
        accounts = [one for one in tied if one.user is None]
        if accounts:
            found += _ranked(accounts)
    return found


def _levelled(branch: _Branch) -> list[_Branch]:
    use = sum(one.use for one in branch.below)
    share = sum(one.share for one in branch.below)
    for one in branch.below:
        if one.use > 0 and share:
            one.level = (one.share / share) / (one.use / use)
        else:
            one.level = inf if one.share else 0.0
    return branch.below


def next_period_s(now_s: float) -> float:
    """The end of the PriorityCalcPeriod in which this second lies."""
    return (now_s // CALC_PERIOD_S + 1) * CALC_PERIOD_S
