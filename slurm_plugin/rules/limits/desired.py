"""Translates the ledger's policy into settings in slurmdbd, and compares them with Slurm's."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

from pydantic import Field, computed_field

from slicewise.cluster.language.billing import MILLISLICES, BillingUnit
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.documents import HIDDEN
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gres import SHARED, tres_name
from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.slurm.interface import Association, Qos
from slicewise.slurm_plugin.rules.common.qos_names import (
    GATE_QOS,
    borrowed_qos,
    can_have_qos,
    holder,
    is_ours,
    qos_name,
)
from slicewise.slurm_plugin.rules.limits.budget_parts import (
    BudgetPart,
    Claims,
    Runs,
    may_still_take,
    minutes_left,
    parts,
    runs_of,
)
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder
from slicewise.slurm_plugin.rules.quota.standings import Standing, less_elsewhere, less_uncounted
from slicewise.slurm_plugin.rules.quota.type_limits import own_type_limits, type_limits
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT, KnownLimit, LimitKey, Policy

BILLING, RUN_MINUTES = "grptres=billing", "grptresrunmins=billing"
_TYPE = "grptres=gres/gpu:"
_SHARED_TYPES = frozenset(f"grptres={tres_name(name)}" for name in SHARED)
EXEMPT, PREEMPT_MODE, FLAGS = "preemptexempttime", "preemptmode", "flags"
QOS_LIST, DEFAULT_QOS, PREEMPT, NAME = "qos", "defaultqos", "preempt", "name"
"""Fields of settings, in sacctmgr's words."""

INHERITED = "inherited"
"""In place of a QOS list: no list of its own. ``qos-=`` would leave a trace of removed QOS."""

_KEYS = 1 << 14
"""So many QOS' keys and settings are remembered: the same ones are asked for at each round."""
_NEAR_MILLISLICE_MIN = 1000
_NEAR_SHARE = 100
OVER_PARTITION = "overpartqos"
"""The flag that makes a QOS' own limits count instead of those of the partition's QOS."""
_REQUEUE = "requeue"
"""Preempted borrowed jobs are requeued, whatever slurm.conf says for other jobs."""


@dataclass(frozen=True)
class SlurmLimits:
    """What Slurm has for one cluster.

    Attributes:
        accounts: the accounts' associations, by account.
        users: the users' associations.
        qos: all QOS of slurmdbd, by name.
        tres: the TRES that accounting counts (AccountingStorageTRES); only these can be limited.
        in_use: what jobs hold and use of the limits.
        billing: the unit of limits on slices and budgets, also in all texts of settings.
    """

    cluster: str
    accounts: Mapping[str, Association] = field(hash=False)
    users: tuple[Association, ...]
    qos: Mapping[str, Qos] = field(hash=False)
    tres: frozenset[str]
    in_use: "InUse"
    billing: BillingUnit = MILLISLICES


@dataclass(frozen=True)
class Uncounted:
    """What running jobs hold and Slurm's limits do not count, by account and QOS.

    Slurm counts of a run what it bills for it, by the types and weights that it knew when the run
    began. Of a completing run it counts nothing: others start in its place.

    Attributes:
        millislices: held beyond what is billed.
        minutes: millislice-minutes that may still be taken beyond what is billed.
        gpus: instances by GPU type.
    """

    millislices: Mapping[tuple[str, str], int] = field(default_factory=dict, hash=False)
    minutes: Mapping[tuple[str, str], int] = field(default_factory=dict, hash=False)
    gpus: Mapping[tuple[str, str], Mapping[str, int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class InUse:
    """What jobs mean for the limits.

    Attributes:
        held: millislices that running jobs hold, by account and QOS.
        runs: what jobs take of budgets; empty if there are no budgets.
        uncounted: what of both Slurm's limits do not count.
    """

    held: Mapping[tuple[str, str], int] = field(default_factory=dict, hash=False)
    runs: Runs = field(default_factory=Runs)
    uncounted: Uncounted = field(default_factory=Uncounted)


@dataclass(frozen=True)
class Allowed:
    """What the ledger allows now.

    Attributes:
        run_minutes: millislice-minutes that jobs may still take, by tenant with a budget.
        costs: millislices of an instance, by GRES type.
        models: the GPU model, by GRES type.
        term_s: seconds for which a job on borrowed quota may not be preempted; with 0 Slicewise
            does not manage the term.
        capacity_millislices: the cluster's capacity; None if it is not known.
    """

    policy: Policy = field(hash=False)
    standings: Mapping[str, Standing] = field(hash=False)
    run_minutes: Mapping[str, int] = field(hash=False)
    costs: Mapping[str, int] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    term_s: int = 0
    capacity_millislices: int | None = None


@dataclass(frozen=True)
class Setting:
    """What a setting should be, and why.

    Attributes:
        value: the setting as text; "" means not set.
        least: for a part of a budget, the smallest value that is near enough to be left alone.
    """

    value: str
    why: str
    least: int = 0


LimitSettings = Mapping[LimitKey, Setting]


@dataclass(frozen=True)
class DesiredLimits:
    """Every setting that Slicewise manages.

    Attributes:
        lists: Slicewise's QOS that each account may use, comma-separated, by account.
    """

    settings: LimitSettings = field(hash=False)
    lists: Mapping[str, str] = field(hash=False)

    @property
    def our_qos(self) -> frozenset[str]:
        """The tenants' QOS."""
        return frozenset(",".join(self.lists.values()).split(",")) - {""}


@dataclass(frozen=True)
class KeyedSetting:
    """A setting of Slurm; its JSON has what its key has."""

    key: Annotated[LimitKey, HIDDEN]

    @computed_field
    @property
    def entity(self) -> str:
        """What has it."""
        return self.key.entity

    @computed_field
    @property
    def name(self) -> str:
        """Name of the account, QOS or node."""
        return self.key.name

    @computed_field
    @property
    def field(self) -> str:
        """Its name in sacctmgr."""
        return self.key.field


@dataclass(frozen=True)
class Difference(KeyedSetting):
    """A setting that is not as it should be.

    Attributes:
        now, wanted: the values as text; "" means not set.
        user: the user whose own QOS list or default this is, in the key's account; else "".
    """

    now: str
    wanted: Annotated[str, Field(serialization_alias="desired")]
    why: str
    user: str = ""
    partition: Annotated[str, HIDDEN] = ""
    """The partition if the user's association is for one partition; else ""."""

    @computed_field
    @property
    def entity(self) -> str:
        """What has it: also a user, in the account of that name."""
        return "user" if self.user else self.key.entity

    @property
    def text(self) -> str:
        """``qos slicewise_vision grptres=billing: 0 to 6000``."""
        of, now, wanted = self.key, self.now or "none", self.wanted or "none"
        return f"{of.entity} {of.name} {of.field}: {now} to {wanted}"


def found_of(
    cluster: str,
    associations: Iterable[Association],
    qos: Iterable[Qos],
    config: Mapping[str, str],
    in_use: InUse = InUse(),
    *,
    billing: BillingUnit = MILLISLICES,
) -> SlurmLimits:
    """Combine Slurm's replies, keyed by name.

    Raises InvalidInputError (SW-CLUSTER-NAME) if they are from another cluster. Under a wrong name
    the ledger has no tenants, and all limits would look right.
    """
    named = config.get("ClusterName", cluster)
    # slurmdbd stores cluster names in lower case.
    if cluster not in {named, named.lower()}:
        raise InvalidInputError(
            Code.CLUSTER_NAME,
            f"[cluster] name is {cluster!r}, but slurmctld's ClusterName is {named!r}.",
            f'Write in slicewise.toml: [cluster] name = "{named.lower()}"; start the daemon again.',
        )
    rows = tuple(row for row in associations if row.cluster == cluster)
    return SlurmLimits(
        cluster,
        {row.account: row for row in rows if not row.user},
        tuple(row for row in rows if row.user),
        {row.name: row for row in qos},
        frozenset(config.get("AccountingStorageTRES", "").split(",")),
        in_use,
        billing,
    )


def in_use(
    by_holder: JobsByHolder, *, now_s: float, has_budgets: bool, billing: BillingUnit = MILLISLICES
) -> InUse:
    """Sum up what jobs ``there`` hold, and take of budgets if there are any."""
    return InUse(
        held=+Counter(by_holder.held.by_qos),
        runs=runs_of(by_holder, may_still_take(by_holder, now_s)) if has_budgets else Runs(),
        uncounted=_uncounted(by_holder, now_s, billing),
    )


def _uncounted(by_holder: JobsByHolder, now_s: float, billing: BillingUnit) -> Uncounted:
    millislices, minutes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    gpus: dict[tuple[str, str], Counter[str]] = {}
    for job, cost, place in by_holder.held.priced:
        if job.state is JobState.COMPLETING:
            continue
        billed = job.tres.get("billing")
        if billed is not None and int(billed) < billing.held(cost):
            lacks = cost - billing.millislices(int(billed))
            millislices[place] += lacks
            minutes[place] += minutes_left(job, lacks, now_s)
        if job.unnamed:
            gpus.setdefault(place, Counter()).update(job.unnamed)
    return Uncounted(millislices, minutes, gpus)


def desired_limits(
    allowed: Allowed, slurm_limits: SlurmLimits, known_limits: Mapping[LimitKey, KnownLimit]
) -> DesiredLimits:
    """Translate the ledger's policy into settings in Slurm.

    The gate, which is the managed partitions' QOS, lets no billed job start. What a tenant may hold
    is limited by its two QOS, which pass the gate by their flag (docs/decisions/0021):
    ``slicewise_<tenant>`` is limited to the guaranteed quota less what the tenant lends,
    ``slicewise_<tenant>_borrowed`` to what is lent to it (``standings.by_use`` has moved some of
    the guaranteed quota there). So all tenants' limits add up to no more than the cluster has,
    however the tree is shaped, and no account and no other partition is limited. What a tenant's
    jobs hold in other QOS, in which they started earlier, is subtracted from both limits. The own
    QOS may preempt the borrowed QOS of every tenant that borrows, once a job there is older than
    its term; preempted jobs are requeued. Where a quota names types, the own QOS also limits their
    instances to what is guaranteed. An account may use its tenant's two QOS beside its other QOS,
    but not those of tenants above. The QOS of a removed tenant allows nothing.

    Budgets are limits of the QOS that draw on them, in parts (``budget_parts``). Limits on GPU
    types are limits of the tenant's account. A setting that is no longer managed (a type limit that
    was taken away, a term) gets its earlier value back.
    """
    tenants = frozenset(filter(can_have_qos, allowed.policy)) & slurm_limits.accounts.keys()
    tenants -= {ROOT_ACCOUNT}
    settings: dict[LimitKey, Setting] = {}
    lists = {name: _listed(name, tenants, slurm_limits) for name in slurm_limits.accounts}
    for name in sorted(slurm_limits.accounts.keys() - {ROOT_ACCOUNT}):
        if name in tenants:
            settings |= _tenant_account(name, allowed, slurm_limits)
        else:
            settings |= _other_account(name, lists[name], slurm_limits)
    settings |= _qos_settings(tenants, allowed, slurm_limits, known_limits)
    back = _handed_back(known_limits, settings, slurm_limits)
    return DesiredLimits({**back, **settings}, lists)


def _listed(account: str, tenants: Collection[str], slurm_limits: SlurmLimits) -> str:
    row: Association | None = slurm_limits.accounts[account]
    while row is not None and row.account not in tenants:
        row = slurm_limits.accounts.get(row.parent)
    if row is None:
        return ""
    return _text({qos_name(row.account), borrowed_qos(row.account)})


def _tenant_account(name: str, allowed: Allowed, slurm_limits: SlurmLimits) -> LimitSettings:
    fields = {
        QOS_LIST: Setting(_listed(name, (name,), slurm_limits), "its own QOS, and its borrowed one")
    }
    limits = type_limits(allowed.policy[name].quota, allowed.costs, allowed.models)
    taken = _gpus_below(name, slurm_limits) if limits else {}
    for gres_type, count in _less(limits, taken).items():
        if (tres := tres_name(gres_type)) in slurm_limits.tres:
            fields[f"grptres={tres}"] = Setting(str(count), "limit on the type or its model")
    return {LimitKey("account", name, field): setting for field, setting in fields.items()}


def limits_type(field: str) -> bool:
    """Whether a setting limits the instances of one GPU type."""
    return field.startswith(_TYPE) or field in _SHARED_TYPES


def _other_account(name: str, listed: str, slurm_limits: SlurmLimits) -> LimitSettings:
    """Return the settings of an account that is no tenant.

    It inherits Slicewise's QOS or has them in its own list. Slurm refuses a default QOS of a tenant
    to which an account below the tenant, or a user, has no access.
    """
    row = slurm_limits.accounts[name]
    settings: dict[LimitKey, Setting] = {}
    above = (
        _ours(slurm_limits.accounts[row.parent].qos)
        if row.parent in slurm_limits.accounts
        else set()
    )
    if row.own_qos or _ours(row.qos) != above:
        listed = INHERITED if only_ours_differ(row, slurm_limits) else listed
        settings[LimitKey("account", name, QOS_LIST)] = Setting(listed, "as its parent's")
    if is_ours(row.own_default_qos):
        key = LimitKey("account", name, DEFAULT_QOS)
        settings[key] = Setting("", "no longer a tenant")
    return settings


def only_ours_differ(row: Association, slurm_limits: SlurmLimits) -> bool:
    """Whether an account's QOS list differs from its parent's only by Slicewise's QOS."""
    above = slurm_limits.accounts.get(row.parent)
    return (
        above is not None
        and row.own_qos == _ours(row.own_qos)
        and row.qos - _ours(row.qos) == above.qos - _ours(above.qos)
    )


def _qos_settings(
    tenants: Collection[str],
    allowed: Allowed,
    slurm_limits: SlurmLimits,
    known_limits: Mapping[LimitKey, KnownLimit],
) -> LimitSettings:
    elsewhere = _elsewhere(tenants, slurm_limits, slurm_limits.in_use.held)
    limits = less_elsewhere({name: allowed.standings[name] for name in tenants}, elsewhere)
    limits = less_uncounted(limits, _by_qos(slurm_limits.in_use.uncounted.millislices))
    of_budgets = _parts(limits, allowed, slurm_limits)
    borrowers = _borrowers(tenants, allowed, slurm_limits)
    preempted = Setting(_text(map(borrowed_qos, borrowers)), "guaranteed goes first")
    gate = {BILLING: Setting("0", "nothing in other QOS")}
    types = own_type_limits(allowed.policy, allowed.costs, allowed.models)
    uncounted = _gpus_in_qos(slurm_limits.in_use.uncounted.gpus)
    settings = dict(_qos(GATE_QOS, "QOS of the managed partitions", gate))
    for tenant, limit in sorted(limits.items()):
        name, on_loan = qos_name(tenant), borrowed_qos(tenant)
        own = slurm_limits.billing.limit(limit.own_qos_limit_millislices)
        borrowed = slurm_limits.billing.limit(limit.borrowed_qos_limit_millislices)
        settings |= _own_settings(tenant, own, preempted)
        settings |= _minutes(name, of_budgets.get(name), slurm_limits.billing)
        less = uncounted.get(name, {})
        settings |= _guaranteed_types(name, _less(types.get(tenant, {}), less), slurm_limits)
        settings |= _loan_settings(tenant, borrowed, allowed.term_s)
        settings |= _minutes(on_loan, of_budgets.get(on_loan), slurm_limits.billing)
    wanted_names = {key.name for key in settings}
    seen = _seen_qos(slurm_limits, known_limits) & slurm_limits.qos.keys()
    for name in sorted(seen - wanted_names):
        settings |= _qos(name, "", _limit(0, "its tenant is gone"))
    return settings


@lru_cache(maxsize=_KEYS)
def _own_settings(tenant: str, limit: int, preempted: Setting) -> LimitSettings:
    """Return the settings of a tenant's own QOS, but for budgets and types."""
    fields = _limit(limit, f"guaranteed quota of {tenant}, less what it lends")
    why = f"for guaranteed jobs of {tenant}"
    return _qos(qos_name(tenant), why, {**fields, PREEMPT: preempted})


@lru_cache(maxsize=_KEYS)
def _loan_settings(tenant: str, limit: int, term_s: int) -> LimitSettings:
    """Return the settings of a tenant's borrowed QOS, but for budgets."""
    fields = {**_limit(limit, f"lent to {tenant}"), **_on_loan(term_s)}
    return _qos(borrowed_qos(tenant), f"for borrowed jobs of {tenant}", fields)


def _guaranteed_types(
    name: str, types: Mapping[str, int], slurm_limits: SlurmLimits
) -> LimitSettings:
    why = "instances of the type that are guaranteed"
    return {
        _qos_key(name, f"grptres={tres}"): Setting(str(count), why)
        for gres_type, count in types.items()
        if (tres := tres_name(gres_type)) in slurm_limits.tres
    }


def _borrowers(
    tenants: Collection[str], allowed: Allowed, slurm_limits: SlurmLimits
) -> frozenset[str]:
    """Return the tenants that may borrow, or that have jobs on borrowed quota.

    Listing all tenants as preempted would be slow: sacctmgr prints the list for each tenant, which
    took five seconds and 26 MB for a thousand tenants.
    """
    held = {qos for _, qos in slurm_limits.in_use.held}
    return frozenset(
        tenant
        for tenant in tenants
        if allowed.policy[tenant].quota.borrowing_limit_millislices
        or allowed.standings[tenant].borrowed_qos_limit_millislices
        or borrowed_qos(tenant) in held
    )


def _gpus_in_qos(
    gpus: Mapping[tuple[str, str], Mapping[str, int]],
) -> Mapping[str, Mapping[str, int]]:
    guaranteed: dict[str, Counter[str]] = {}
    for (_, qos), counts in gpus.items():
        guaranteed.setdefault(qos, Counter()).update(counts)
    return guaranteed


def _gpus_below(account: str, slurm_limits: SlurmLimits) -> Mapping[str, int]:
    """Instances that limits of the account do not count, of its own jobs and of those below."""
    counts = Counter[str]()
    for (name, _), gpus in slurm_limits.in_use.uncounted.gpus.items():
        row = slurm_limits.accounts.get(name)
        while row is not None and row.account != account:
            row = slurm_limits.accounts.get(row.parent)
        if row is not None:
            counts.update(gpus)
    return counts


def _less(limits: Mapping[str, int], taken: Mapping[str, int]) -> Mapping[str, int]:
    return {
        gres_type: max(0, count - taken.get(gres_type, 0)) for gres_type, count in limits.items()
    }


def _limited(tenants: Iterable[str]) -> Collection[str]:
    return {name for tenant in tenants for name in (qos_name(tenant), borrowed_qos(tenant))}


def _elsewhere(
    tenants: Collection[str], slurm_limits: SlurmLimits, amounts: Mapping[tuple[str, str], int]
) -> Mapping[str, int]:
    """Sum up the ``amounts``, which are by account and QOS, by tenant, outside of tenants' QOS.

    A tenant's amount includes the accounts without a quota below it. Tenants' QOS are left out
    because they have their own limits.
    """
    limited = _limited(tenants)
    held: Counter[str] = Counter()
    for (account, qos), amount in amounts.items():
        if qos in limited:
            continue
        row = slurm_limits.accounts.get(account)
        while row is not None and row.account not in tenants:
            row = slurm_limits.accounts.get(row.parent)
        if row is not None:
            held[row.account] += amount
    return held


def _paid_elsewhere(
    tenants: Collection[str],
    may_take: Mapping[tuple[str, str], int],
    uncounted: Mapping[tuple[str, str], int],
) -> Mapping[str, int]:
    """Return what each tenant's own jobs may still take without being counted in a tenant's QOS."""
    limited = _limited(tenants)
    held: Counter[str] = Counter()
    for (account, qos), amount in may_take.items():
        if account in tenants and qos not in limited:
            held[account] += amount
    for (account, qos), amount in uncounted.items():
        if qos in limited:
            held[holder(account, qos)] += amount
    return held


def _parts(
    limits: Mapping[str, Standing], allowed: Allowed, slurm_limits: SlurmLimits
) -> Mapping[str, BudgetPart]:
    """Divide the budgets into parts by QOS; ``limits`` has the limits of each tenant's two QOS."""
    of_qos: dict[str, int] = {}
    for tenant, limit in limits.items():
        of_qos[qos_name(tenant)] = limit.own_qos_limit_millislices
        of_qos[borrowed_qos(tenant)] = limit.borrowed_qos_limit_millislices
    runs, uncounted = slurm_limits.in_use.runs, slurm_limits.in_use.uncounted
    claims = Claims(
        _counted(runs.may_take, uncounted.minutes),
        _paid_elsewhere(limits.keys(), runs.may_take, uncounted.minutes),
        runs.waiting,
        of_qos,
        _counted(slurm_limits.in_use.held, uncounted.millislices),
    )
    return parts(allowed.policy, allowed.run_minutes, limits, claims)


def _counted(
    amounts: Mapping[tuple[str, str], int], uncounted: Mapping[tuple[str, str], int]
) -> Mapping[str, int]:
    """What Slurm counts of the amounts, by QOS."""
    counted = Counter(_by_qos(amounts))
    counted.subtract(_by_qos(uncounted))
    return counted


def _by_qos(amounts: Mapping[tuple[str, str], int]) -> Mapping[str, int]:
    sums: Counter[str] = Counter()
    for (_, qos), amount in amounts.items():
        sums[qos] += amount
    return sums


def _minutes(name: str, part: BudgetPart | None, billing: BillingUnit) -> LimitSettings:
    if part is None:
        return {}
    of = f"budget of {', '.join(part.budgets)}: {part.minutes / 60_000:.2f} slice-hours of it"
    limit = str(billing.limit(part.minutes))
    return {_qos_key(name, RUN_MINUTES): Setting(limit, of, billing.limit(part.least))}


def _limit(amount: int, why: str) -> Mapping[str, Setting]:
    """Return the settings of a QOS' limit, which counts instead of the gate's."""
    return {BILLING: Setting(str(amount), why), **_BESIDE_LIMITS}


_BESIDE_LIMITS = {FLAGS: Setting(OVER_PARTITION, "lets it through the gate")}


def _on_loan(term_s: int) -> Mapping[str, Setting]:
    term = {EXEMPT: Setting(str(term_s), "term of loans, in s")} if term_s else {}
    return {PREEMPT_MODE: Setting(_REQUEUE, "preempted jobs are requeued"), **term}


def _qos(name: str, why: str, fields: Mapping[str, Setting]) -> LimitSettings:
    fields = {NAME: Setting(name, why), **fields}
    return {_qos_key(name, field): setting for field, setting in fields.items()}


@lru_cache(maxsize=_KEYS)
def _qos_key(name: str, field: str) -> LimitKey:
    return LimitKey("qos", name, field)


def _seen_qos(slurm_limits: SlurmLimits, known_limits: Mapping[LimitKey, KnownLimit]) -> set[str]:
    """Return Slicewise's QOS of this cluster.

    Another cluster on the same slurmdbd may also have QOS with such names.
    """
    listed = {name for row in slurm_limits.accounts.values() for name in _ours(row.qos)}
    return listed | {key.name for key in known_limits if key.entity == "qos"}


def _handed_back(
    known_limits: Mapping[LimitKey, KnownLimit], settings: LimitSettings, slurm_limits: SlurmLimits
) -> LimitSettings:
    def goes_back(key: LimitKey) -> bool:
        if key.entity == "qos":
            goes = key.field in {EXEMPT, RUN_MINUTES} or limits_type(key.field)
            return goes and key.name in slurm_limits.qos
        return limits_type(key.field) and key.name in slurm_limits.accounts

    return {
        key: Setting(limit.before, "no longer limited")
        for key, limit in known_limits.items()
        if key not in settings and limit.last != limit.before and goes_back(key)
    }


def value_now(slurm_limits: SlurmLimits, key: LimitKey) -> str:
    """Return Slurm's value of a setting as text; of QOS lists only Slicewise's QOS."""
    return (
        _account_value(slurm_limits, key)
        if key.entity == "account"
        else _qos_value(slurm_limits, key)
    )


def _account_value(slurm_limits: SlurmLimits, key: LimitKey) -> str:
    row, (word, _, tres) = slurm_limits.accounts[key.name], key.field.partition("=")
    match word:
        case "grptres":
            return str(row.grp_tres.get(tres, ""))
        case "qos":
            return _text(_ours(row.qos))
        case _:
            return row.own_default_qos


def _qos_value(slurm_limits: SlurmLimits, key: LimitKey) -> str:
    row, (word, _, tres) = slurm_limits.qos.get(key.name), key.field.partition("=")
    if row is None:
        return ""
    return str(_QOS_VALUES[word](row).get(tres, "")) if tres else _QOS_TEXTS[word](row)


@lru_cache(maxsize=8)
def _our_names(names: frozenset[str]) -> str:
    """Join Slicewise's QOS of a list. A thousand tenants may all have the same thousand names."""
    return _text(_ours(names))


_QOS_VALUES: Mapping[str, Callable[[Qos], Mapping[str, int]]] = {
    "grptres": lambda row: row.grp_tres,
    "grptresrunmins": lambda row: row.grp_tres_run_mins,
}
_QOS_TEXTS: Mapping[str, Callable[[Qos], str]] = {
    NAME: lambda row: row.name,
    PREEMPT: lambda row: _our_names(row.preempt),
    PREEMPT_MODE: lambda row: row.preempt_mode,
    EXEMPT: lambda row: "" if row.preempt_exempt_s is None else str(row.preempt_exempt_s),
    FLAGS: lambda row: _text(row.flags & {OVER_PARTITION}),
}


def differences(wanted: DesiredLimits, slurm_limits: SlurmLimits) -> tuple[Difference, ...]:
    """Return where Slurm differs from what is wanted; () if nowhere.

    What is left of a budget changes all the time. So a part of a budget is left alone if it is
    within one percent or one slice-minute of the wanted value, unless it should be zero, or is too
    small for a waiting job to start.
    """
    now = {key: value_now(slurm_limits, key) for key in wanted.settings}
    return (
        *(
            Difference(key, now[key], value, setting.why)
            for key, setting in wanted.settings.items()
            if now[key] != (value := _with_others(key, now[key], setting.value))
            and not _near(key, now[key], setting, slurm_limits.billing)
        ),
        *_user_differences(wanted.lists, slurm_limits),
    )


def _with_others(key: LimitKey, now: str, value: str) -> str:
    """Return the value with the QOS that a preempt list already has: it is only ever added to.

    Another cluster's tenants may have QOS of the same names. An entry disappears from the list when
    Slurm removes the QOS that it names.
    """
    if key.field != PREEMPT or now == value:
        return value
    return _text({*now.split(","), *value.split(",")} - {""})


def _near(key: LimitKey, now: str, setting: Setting, billing: BillingUnit) -> bool:
    if key.field != RUN_MINUTES or not now or setting.value in {"", "0"}:
        return False
    has, value = int(now), int(setting.value)
    apart = abs(has - value)
    is_near = apart <= billing.limit(_NEAR_MILLISLICE_MIN) or apart * _NEAR_SHARE <= value
    return is_near and has >= setting.least


def _user_differences(lists: Mapping[str, str], slurm_limits: SlurmLimits) -> Iterator[Difference]:
    """Yield differences of users with a QOS list or default of their own; others inherit both."""
    for row in slurm_limits.users:
        may = lists[row.account]
        if row.own_qos and _text(_ours(row.qos)) != may:
            key = LimitKey("account", row.account, QOS_LIST)
            now, why = _text(_ours(row.qos)), "a list of the user's own"
            yield Difference(key, now, may, why, row.user, row.partition)
        if is_ours(row.own_default_qos) and row.own_default_qos not in may.split(","):
            key = LimitKey("account", row.account, DEFAULT_QOS)
            now, why = row.own_default_qos, "no longer allowed"
            yield Difference(key, now, "", why, row.user, row.partition)


def _ours(names: Iterable[str]) -> set[str]:
    return {name for name in names if is_ours(name)}


def _text(names: Iterable[str]) -> str:
    return ",".join(sorted(names))
