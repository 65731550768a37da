"""Priorities by priority/multifactor: age, fair share, size, QOS, and the site's factor.

As Slurm does, the model computes a priority when a job becomes eligible or changes, and those of
all waiting jobs once in PriorityCalcPeriod. Fair share is Fair Tree: accounts and users are ranked
among their siblings by share ÷ decayed use, from the top. Users are known from their jobs, so those
who never ran one take no rank, and get the best one with their first. An account's share and place
in the tree are those that it had at its first job. Left out are nice, factors of partitions and
TRES, and that accounts with the very same use are ranked as one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter

from slicewise.simulation.rules.cluster import PriorityWeights
from slicewise.simulation.rules.slurm_model.job_records import JobRecord
from slicewise.simulation.rules.slurm_model.qos_limits import CALC_PERIOD_S, ModelLimits

_LARGEST = 0xFFFFFFFF - 2
"""The largest priority that Slurm keeps."""
_MOST_HALVINGS = 500
_USE = attrgetter("use")
_LEVEL = attrgetter("level")


@dataclass
class _Account:
    """One account of the tree: its use in ``Priorities``' unit, and what stands below it."""

    name: str
    share: int
    use: float = 0.0
    accounts: list["_Account"] = field(default_factory=list)
    users: list["_User"] = field(default_factory=list)

    @property
    def level(self) -> float:
        """What it has used for its share: the least goes first. Each user has one share."""
        return self.use / self.share if self.share else inf


@dataclass
class _User:
    """One user in one account.

    Attributes:
        line: the account and its parents.
        use: billing × seconds, in ``Priorities``' unit.
        seconds, held, early: billing × seconds of this period: of runs that ended, billing of what
            runs, and what of the period those that run had not begun.
        factor: fair share, from 0 to 1.
    """

    line: tuple[_Account, ...]
    use: float = 0.0
    seconds: float = 0.0
    held: int = 0
    early: float = 0.0
    factor: float = 1.0


class Priorities:
    """Computes priorities, and keeps the use that fair share follows."""

    def __init__(self, weights: PriorityWeights, nodes: int, limits: ModelLimits) -> None:
        self._weights = weights
        self._nodes = max(1, nodes)
        self._limits = limits
        self._users: dict[tuple[str, str], _User] = {}
        self._accounts: dict[str, _Account] = {"root": _Account("root", 1)}
        self._last_s = self._base_s = 0.0
        self._top_qos = 1
        self.changes_by_itself = bool(weights.age or weights.fair_share)

    def begin_at(self, now_s: float) -> None:
        """Say when the model begins."""
        self._last_s = self._base_s = now_s

    def begin_with(self, used: Mapping[tuple[str, str], float], now_s: float) -> None:
        """Count billing × seconds that users, by account and name, had used when it began."""
        if not self._weights.fair_share:
            return
        unit = self._unit(now_s)
        for (account, name), billing_s in used.items():
            user = self._user(account, name)
            user.use += billing_s * unit
            for one in user.line:
                one.use += billing_s * unit
        self._rank(self._accounts["root"], len(self._users))

    def qos_changed(self) -> None:
        """Look again which QOS has the largest priority."""
        self._top_qos = max((1, *(qos.priority for qos in self._limits.qos.values())))

    def of(self, record: JobRecord, now_s: float) -> int:
        """The job's priority now, at least 1."""
        weights = self._weights
        total = float(record.site_factor)
        if weights.age and record.eligible_s is not None and now_s > record.eligible_s:
            aged = (now_s - record.eligible_s) / weights.max_age_s if weights.max_age_s else 1.0
            total += weights.age * min(1.0, aged)
        if weights.fair_share:
            user = self._users.get((record.request.account, record.request.user))
            total += weights.fair_share * (1.0 if user is None else user.factor)
        if weights.job_size:
            total += weights.job_size * record.request.nodes / self._nodes
        if weights.qos:
            total += weights.qos * self._limits.of_qos(record.qos).priority / self._top_qos
        return min(_LARGEST, max(1, int(total)))

    def begin(self, record: JobRecord, now_s: float) -> None:
        """Count a job's use from now on."""
        if self._weights.fair_share:
            user = self._user(record.request.account, record.request.user)
            billing = record.tres.get("billing", 0)
            user.held += billing
            user.early += billing * (now_s - self._last_s)

    def end(self, record: JobRecord, now_s: float) -> None:
        """Count a job's use until now."""
        if self._weights.fair_share:
            user = self._user(record.request.account, record.request.user)
            billing = record.tres.get("billing", 0)
            user.held -= billing
            user.seconds += billing * (now_s - self._last_s)

    def pass_period(self, now_s: float) -> None:
        """Decay all use until now, and rank everybody again."""
        if not self._weights.fair_share:
            return
        passed_s = now_s - self._last_s
        unit = self._unit(now_s)
        for user in self._users.values():
            if user.held or user.seconds:
                used = (user.seconds + user.held * passed_s - user.early) * unit
                user.seconds = user.early = 0.0
                user.use += used
                for account in user.line:
                    account.use += used
        self._last_s = now_s
        self._rank(self._accounts["root"], len(self._users))

    def _unit(self, now_s: float) -> float:
        """How much a billing × second of now counts, so that what was before need not shrink."""
        half_life_s = self._weights.half_life_s
        if not half_life_s:
            return 1.0
        halvings = (now_s - self._base_s) / half_life_s
        if halvings > _MOST_HALVINGS:
            shrunk = 0.5**halvings
            for user in self._users.values():
                user.use *= shrunk
            for account in self._accounts.values():
                account.use *= shrunk
            self._base_s, halvings = now_s, 0.0
        return float(2.0**halvings)

    def _rank(self, account: _Account, left: int) -> int:
        """Rank the users below an account; ``left`` are in this place or behind it."""
        account.users.sort(key=_USE)
        accounts = sorted(account.accounts, key=_LEVEL)
        everybody, following = len(self._users), 0
        use, rank = -1.0, left
        for user in account.users:
            while following < len(accounts) and accounts[following].level < user.use:
                left = self._rank(accounts[following], left)
                following += 1
            if user.use != use:
                use, rank = user.use, left
            user.factor = rank / everybody
            left -= 1
        for beyond in accounts[following:]:
            left = self._rank(beyond, left)
        return left

    def _user(self, account: str, name: str) -> _User:
        user = self._users.get((account, name))
        if user is None:
            line = tuple(
                self._account(account_name) for account_name in self._limits.line_of(account)
            )
            user = self._users[account, name] = _User(line)
            (line[0] if line else self._accounts["root"]).users.append(user)
        return user

    def _account(self, name: str) -> _Account:
        account = self._accounts.get(name)
        if account is None:
            limits = self._limits.accounts.get(name)
            account = self._accounts[name] = _Account(name, 1 if limits is None else limits.share)
            parents = self._limits.line_of(name)[1:]
            parent = self._account(parents[0]) if parents else self._accounts["root"]
            parent.accounts.append(account)
        return account


def next_period_s(now_s: float) -> float:
    """The end of the PriorityCalcPeriod in which this second lies."""
    return (now_s // CALC_PERIOD_S + 1) * CALC_PERIOD_S
