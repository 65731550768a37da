"""Limits of QOS and accounts: which of them keeps a job from its start, in Slurm's order.

As slurmctld's acct_policy.c: the job's QOS first (GrpTRES, GrpTRESRunMins, MaxTRESPerAccount), then
its account and each parent (GrpTRESMins, GrpTRES, GrpTRESRunMins). A TRES that the QOS limits is
not checked on the accounts, whatever the accounts' limits say. Left out are limits of users, of
numbers of jobs and of single jobs. Of GrpTRESMins it is what AccountingStorageEnforce=safe checks:
what was used, what runs may still use and what the job may use together; nothing is forgotten.

Slurm lowers the running minutes that are left (GrpTRESRunMins) once in PriorityCalcPeriod, not all
the time; so does the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

from slicewise.simulation.rules.slurm_model.job_records import INVALID_QOS, JobRecord
from slicewise.simulation.rules.slurm_model.job_requests import AccountLimits, QosLimits

CALC_PERIOD_S = 300.0
"""PriorityCalcPeriod of a slurm.conf that names none."""
_MINUTE_S = 60
_UNLIMITED_MINUTES = 0xFFFFFFFF
"""Slurm's INFINITE, by which it multiplies what an unlimited job asks for."""
_FIRST = ("cpu", "mem", "node", "billing")
_WORDS = {"cpu": "Cpu", "mem": "Mem", "node": "Node", "billing": "Billing"}
_NO_QOS = QosLimits()
_Of = Literal["held", "minutes", "run minutes"]
"""What a limit is on: what running jobs hold, all use so far, what running jobs may still use."""


@dataclass
class Use:
    """What the running jobs of a QOS or an account hold.

    Attributes:
        base_s: the second from which ``ends`` counts.
        held: by TRES.
        ends: for each TRES the sum of amount × the second at which the job's limit is reached.
        spent: for each TRES the amount × seconds of runs that have ended, and of limits of others.
        since: for each TRES the sum of amount × seconds from the last period to the job's start,
            over jobs that started in this period: their whole limit still counts.
        period: the number of the period for which ``since`` stands.
    """

    base_s: float
    held: dict[str, int] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    period: int = 0
    spent: dict[str, float] = field(default_factory=dict)

    def add(self, record: JobRecord, sign: int, period: int) -> None:
        """Count a job that starts (1) or no longer runs (-1)."""
        if period != self.period:
            self.since.clear()
            self.period = period
        start_s = record.start_s or 0.0
        end_s = start_s - self.base_s + _minutes(record.limit_s) * _MINUTE_S
        late_s = start_s - period * CALC_PERIOD_S
        for name, amount in record.tres.items():
            self.held[name] = self.held.get(name, 0) + sign * amount
            self.ends[name] = self.ends.get(name, 0.0) + sign * amount * end_s
            if late_s > 0:
                self.since[name] = self.since.get(name, 0.0) + sign * amount * late_s

    def spend(self, record: JobRecord, seconds: float) -> None:
        """Count what a job may use when it starts; at its end what it has used less than that."""
        for name, amount in record.tres.items():
            self.spent[name] = self.spent.get(name, 0.0) + amount * seconds

    def minutes(self, name: str) -> int:
        """Amount × minutes that were used, or that running jobs may use."""
        return int(self.spent.get(name, 0.0)) // _MINUTE_S

    def run_minutes(self, name: str, period: int) -> int:
        """Amount × minutes that are left of the limits of what holds this TRES."""
        late = self.since.get(name, 0.0) if period == self.period else 0.0
        passed_s = period * CALC_PERIOD_S - self.base_s
        left = self.ends.get(name, 0.0) - self.held.get(name, 0) * passed_s - late
        return max(0, int(left)) // _MINUTE_S


@dataclass(frozen=True)
class _Check:
    """One limit: of which TRES, how much, who counts against it, of what, and Slurm's reason."""

    name: str
    limit: int
    use: Use
    of: _Of
    reason: str


class ModelLimits:
    """The limits in force and what counts against them."""

    def __init__(
        self, accounts: Mapping[str, str], shares: Mapping[str, int], start_s: float
    ) -> None:
        self.accounts = {
            name: AccountLimits(parent, share=shares.get(name, 1))
            for name, parent in accounts.items()
        }
        self.qos: dict[str, QosLimits] = {}
        self._removed: set[str] = set()
        self._qos_use: dict[str, Use] = {}
        self._account_use: dict[str, Use] = {}
        self._qos_account_use: dict[tuple[str, str], Use] = {}
        self._checks: dict[tuple[str, str], tuple[_Check, ...]] = {}
        self._chains: dict[tuple[str, str], tuple[Use, ...]] = {}
        self._base_s = start_s
        self.counts_minutes = self.counts_spent = False

    def set_qos(self, name: str, limits: QosLimits) -> None:
        """Add a QOS or change it."""
        self.qos[name] = limits
        self._removed.discard(name)
        self._changed()

    def remove_qos(self, name: str) -> None:
        """Delete a QOS: its waiting jobs wait until they get another one."""
        self.qos.pop(name, None)
        self._removed.add(name)
        self._changed()

    def set_account(self, name: str, limits: AccountLimits) -> None:
        """Add an account or change it; its place in the tree only while none of its jobs run."""
        before = self.accounts.get(name)
        self.accounts[name] = limits
        if before is None or before.parent != limits.parent:
            self._chains.clear()
        self._changed()

    def of_qos(self, name: str) -> QosLimits:
        """The QOS of this name; one that was never set limits nothing."""
        return self.qos.get(name, _NO_QOS)

    def line_of(self, account: str) -> tuple[str, ...]:
        """The account and its parents, without root."""
        line: list[str] = []
        while account not in {"", "root"} and account not in line:
            line.append(account)
            account = self.accounts[account].parent if account in self.accounts else ""
        return tuple(line)

    def blocking(self, record: JobRecord, now_s: float) -> str:
        """Slurm's reason why limits keep the job from its start now; "" if none does."""
        if record.qos in self._removed:
            return INVALID_QOS
        tres = record.tres
        for check in self._checks_of(record.qos, record.request.account):
            asked = tres.get(check.name, 0)
            if not asked:
                continue
            if check.of == "minutes":
                asked *= _minutes(record.limit_s)
                used = check.use.minutes(check.name)
            elif check.of == "run minutes":
                period = int(now_s // CALC_PERIOD_S)
                asked *= _minutes(record.limit_s)
                used = check.use.run_minutes(check.name, period)
            else:
                used = check.use.held.get(check.name, 0)
            if asked + used > check.limit:
                return check.reason
        return ""

    def begin(self, record: JobRecord, now_s: float) -> None:
        """Count a job that starts."""
        limit_s = _minutes(record.limit_s) * _MINUTE_S
        for use in self._uses(record.qos, record.request.account):
            use.add(record, 1, int(now_s // CALC_PERIOD_S))
            if self.counts_spent:
                use.spend(record, limit_s)

    def end(self, record: JobRecord, now_s: float) -> None:
        """Count a job no longer."""
        unused_s = (record.start_s or now_s) + _minutes(record.limit_s) * _MINUTE_S - now_s
        for use in self._uses(record.qos, record.request.account):
            use.add(record, -1, int(now_s // CALC_PERIOD_S))
            if self.counts_spent:
                use.spend(record, -unused_s)

    def _changed(self) -> None:
        self._checks.clear()
        minutes = [qos.grp_run_mins for qos in self.qos.values()]
        minutes += [account.grp_run_mins for account in self.accounts.values()]
        self.counts_minutes = any(minutes)
        self.counts_spent |= any(account.grp_tres_mins for account in self.accounts.values())

    def _uses(self, qos: str, account: str) -> tuple[Use, ...]:
        chain = self._chains.get((qos, account))
        if chain is None:
            chain = self._chains[qos, account] = (
                self._qos_use.setdefault(qos, Use(self._base_s)),
                self._qos_account_use.setdefault((qos, account), Use(self._base_s)),
                *(
                    self._account_use.setdefault(account_name, Use(self._base_s))
                    for account_name in self.line_of(account)
                ),
            )
        return chain

    def _checks_of(self, qos: str, account: str) -> tuple[_Check, ...]:
        checks = self._checks.get((qos, account))
        if checks is None:
            checks = self._checks[qos, account] = tuple(self._listed(qos, account))
        return checks

    def _listed(self, qos: str, account: str) -> list[_Check]:
        limits = self.of_qos(qos)
        uses = self._uses(qos, account)
        checks = _checks(limits.grp_tres, uses[0], "QOSGrp", ())
        checks += _checks(limits.grp_run_mins, uses[0], "QOSGrp", (), of="run minutes")
        checks += _checks(limits.max_tres_per_account, uses[1], "Max", ())
        for name, use in zip(self.line_of(account), uses[2:], strict=True):
            own = self.accounts.get(name)
            if own is None:
                continue
            checks += _checks(own.grp_tres_mins, use, "AssocGrp", (), of="minutes")
            checks += _checks(own.grp_tres, use, "AssocGrp", limits.grp_tres)
            of_qos = limits.grp_run_mins
            checks += _checks(own.grp_run_mins, use, "AssocGrp", of_qos, of="run minutes")
        return checks


def _checks(
    limits: Mapping[str, int],
    use: Use,
    whose: str,
    but: Mapping[str, int] | tuple[()],
    *,
    of: _Of = "held",
) -> list[_Check]:
    names = sorted(limits, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    return [
        _Check(name, limits[name], use, of, _reason(whose, name, of))
        for name in names
        if name not in but
    ]


def _reason(whose: str, tres: str, of: _Of) -> str:
    """Slurm's word for the reason, whose spellings follow no rule."""
    word = _WORDS.get(tres, "GRES")
    if whose == "Max":
        return f"Max{'Memory' if word == 'Mem' else word}PerAccount"
    if of == "minutes":
        return f"{whose}CPUMinutesLimit" if word == "Cpu" else f"{whose}{word}Minutes"
    if of == "run minutes" and word == "Cpu":
        return f"{whose}CPURunMinutesLimit"
    if of == "run minutes":
        name = "Memory" if word == "Mem" and whose == "QOSGrp" else word
        return f"{whose}{name}RunMinutes"
    return f"{whose}{word}Limit" if word in {"Cpu", "Mem", "Node"} else f"{whose}{word}"


def _minutes(limit_s: float) -> int:
    return _UNLIMITED_MINUTES if limit_s == inf else -(-int(limit_s) // _MINUTE_S)
