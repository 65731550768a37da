"""The ledger's policy as settings in slurmdbd, and where Slurm's are other ones."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from cluster.billing import MILLISLICES, BillingUnit
from cluster.errors import InvalidInputError
from cluster.jobs import ALLOTTED, JobState, JobView, PartitionView
from cluster.slurm.interface import Association, Qos
from cluster.units import Millislices
from slurm_plugin.decide.budget_parts import Claims, Part, Runs, drawn_on, parts, runs_of
from slurm_plugin.decide.ceilings import Ceiling, less_elsewhere
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import is_managed
from slurm_plugin.decide.policy import ROOT_ACCOUNT, KnownLimit, LimitKey, Policy, Quota
from slurm_plugin.decide.qos_names import (
    GATE_QOS,
    SHARED_QOS,
    borrowed_qos,
    can_have_qos,
    is_ours,
    qos_name,
)
from slurm_plugin.decide.tenants import downward, parent

BILLING, RUN_MINUTES = "grptres=billing", "grptresrunmins=billing"
TYPE = "grptres=gres/gpu:"
PER_ACCOUNT = "maxtresperaccount=billing"
"""Once a tenant's own QOS was limited so, and its account by BILLING."""
EXEMPT, PREEMPT_MODE, FLAGS = "preemptexempttime", "preemptmode", "flags"
QOS_LIST, DEFAULT_QOS, PREEMPT, NAME = "qos", "defaultqos", "preempt", "name"
"""Fields of settings."""

INHERITED = "inherited"
"""As a list of QOS: none of its own. ``qos-=`` would leave a trace of what is taken out."""

_NEAR_MILLISLICE_MIN = 1000
_NEAR_SHARE = 100
OVER_PARTITION = "overpartqos"
"""The flag by which a QOS' own limits count, and not those of the partition's QOS."""
_REQUEUE = "requeue"
"""What becomes of borrowed jobs, whatever slurm.conf says of all others."""


@dataclass(frozen=True)
class Found:
    """What Slurm has of one cluster.

    Attributes:
        tres: what accounting counts (AccountingStorageTRES): there can be limits on no others.
        in_use: what jobs do to limits.
        billing: in what limits of slices and budgets are. All texts of settings are in it.
    """

    cluster: str
    accounts: Mapping[str, Association] = field(hash=False)
    users: tuple[Association, ...]
    qos: Mapping[str, Qos] = field(hash=False)
    tres: frozenset[str]
    in_use: "InUse"
    billing: BillingUnit = MILLISLICES

    @property
    def is_gated(self) -> bool:
        """Whether no job gets billed GPUs of a managed partition but in one of our QOS."""
        gate = self.qos.get(GATE_QOS)
        return gate is not None and gate.grp_tres.get("billing") == 0 and self.in_use.is_gated


@dataclass(frozen=True)
class InUse:
    """What partitions and jobs do to limits.

    Attributes:
        is_gated: whether every managed partition has the gate.
        sharing: accounts with jobs in the QOS that all tenants shared once.
        held: millislices that running jobs hold, by account and QOS.
        runs: what jobs take of budgets, if there are any.
    """

    is_gated: bool = False
    sharing: frozenset[str] = frozenset()
    held: Mapping[tuple[str, str], int] = field(default_factory=dict, hash=False)
    runs: Runs = field(default_factory=Runs)


@dataclass(frozen=True)
class Allowed:
    """What the ledger allows now.

    Attributes:
        run_minutes: millislice-minutes that running jobs may still take, by tenant with a budget.
        costs: millislices of an instance by GRES type; models: its GPU model.
        term_s: so long what runs on borrowed quota may not be preempted; 0 is not looked after.
        capacity_millislices: the cluster's; None is not known.
    """

    policy: Policy = field(hash=False)
    ceilings: Mapping[str, Ceiling] = field(hash=False)
    run_minutes: Mapping[str, int] = field(hash=False)
    costs: Mapping[str, int] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    term_s: int = 0
    capacity_millislices: int | None = None


@dataclass(frozen=True)
class Setting:
    """What a setting should be, as text, "" is not set; and why.

    Attributes:
        least: of a part of a budget: less is not good enough, however near it is.
    """

    value: str
    why: str
    least: int = 0


Settings = Mapping[LimitKey, Setting]


@dataclass(frozen=True)
class Wanted:
    """Every setting that Slicewise looks after, and our QOS that each account may use."""

    settings: Settings = field(hash=False)
    lists: Mapping[str, str] = field(hash=False)

    @property
    def our_qos(self) -> frozenset[str]:
        """Of the tenants."""
        return frozenset(",".join(self.lists.values()).split(",")) - {""}


@dataclass(frozen=True)
class Difference:
    """A setting that is not as it should be.

    Attributes:
        user: of a user's own QOS list or default in the key's account; else "".
        partition: if that is the user's for one partition alone.
    """

    key: LimitKey
    now: str
    wanted: str
    why: str
    user: str = ""
    partition: str = ""

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
) -> Found:
    """Slurm's replies, by name.

    Raises InvalidInputError (SW-CLUSTER-NAME) if they are another cluster's: the ledger has no
    tenants by a wrong name, and all limits would look right.
    """
    named = config.get("ClusterName", cluster)
    # slurmdbd writes it in small letters.
    if cluster not in {named, named.lower()}:
        raise InvalidInputError(
            "SW-CLUSTER-NAME",
            f"[cluster] name is {cluster!r}, but slurmctld's ClusterName is {named!r}.",
            f'Write in slicewise.toml: [cluster] name = "{named.lower()}"; start the daemon again.',
        )
    rows = tuple(row for row in associations if row.cluster == cluster)
    return Found(
        cluster,
        {row.account: row for row in rows if not row.user},
        tuple(row for row in rows if row.user),
        {one.name: one for one in qos},
        frozenset(config.get("AccountingStorageTRES", "").split(",")),
        in_use,
        billing,
    )


def in_use(
    partitions: Iterable[PartitionView],
    jobs: Iterable[JobView],
    managed: Collection[str],
    costs: Mapping[str, Millislices],
    *,
    now_s: float,
    has_budgets: bool,
) -> InUse:
    """That, of the ``managed`` partitions. Without budgets nothing is taken of them."""
    jobs, names = tuple(jobs), frozenset(managed)
    ours = [job for job in jobs if is_managed(job, names)]
    gates = {view.name: view.qos for view in partitions}
    held: Counter[tuple[str, str]] = Counter()
    for job in ours:
        if job.state in ALLOTTED:
            held[job.account, job.qos] += run_cost(job.gpus, costs)
    return InUse(
        is_gated=bool(managed) and all(gates.get(name) == GATE_QOS for name in managed),
        sharing=frozenset(
            job.account for job in jobs if job.qos == SHARED_QOS and job.state != JobState.ENDED
        ),
        held=+held,
        runs=runs_of(ours, costs, now_s) if has_budgets else Runs(),
    )


def wanted(allowed: Allowed, found: Found, known: Mapping[LimitKey, KnownLimit]) -> Wanted:
    """What the ledger's policy is in Slurm.

    The managed partitions' QOS, the gate, lets nothing through that is billed. What a tenant may
    hold is the limit of its two QOS, whose flag lets them through (docs/decisions/0021): of
    ``slicewise_<tenant>`` its own part less what it lends, of ``slicewise_<tenant>_borrowed`` what
    is lent to it (``ceilings.by_use`` has moved some from the one to the other). So the limits of
    all tenants together are no more than there is, whoever stands above whom, and no account and no
    other partition is limited. What a tenant's jobs hold in other QOS, in which they ran before, is
    taken off both. The own QOS may preempt the borrowed one of every tenant that borrows, once what
    runs there is older than its term; its jobs are requeued. Accounts may use their tenant's two
    QOS beside those that they have, and no tenant above it. A QOS whose tenant is gone allows
    nothing. The QOS that all tenants shared once has no limit, and stays for as long as jobs are in
    it.

    Budgets are limits of the QOS that draw on them, in parts (``budget_parts``). A tenant's account
    is limited to so many instances of a type. What is no longer looked after (such a limit that was
    taken away, a term) goes back to what it was before. So do the slices and default QOS of
    accounts, which were limits once, when the gate stands, and their budgets when all QOS that draw
    on them have their parts, too.
    """
    tenants = frozenset(filter(can_have_qos, allowed.policy)) & found.accounts.keys()
    tenants -= {ROOT_ACCOUNT}
    settings: dict[LimitKey, Setting] = {}
    lists = {name: _listed(name, tenants, found) for name in found.accounts}
    for name in sorted(found.accounts.keys() - {ROOT_ACCOUNT}):
        if name in tenants:
            settings |= _tenant_account(name, allowed, found)
        else:
            settings |= _other_account(name, lists[name], found, known)
    settings |= _qos_settings(tenants, allowed, found, known)
    back = _handed_back(known, settings, found, allowed)
    return Wanted({**back, **settings}, lists)


def _listed(account: str, tenants: Collection[str], found: Found) -> str:
    row: Association | None = found.accounts[account]
    while row is not None and row.account not in tenants:
        row = found.accounts.get(row.parent)
    if row is None:
        return ""
    shared = {SHARED_QOS} if account in found.in_use.sharing else set()
    return _text({qos_name(row.account), borrowed_qos(row.account)} | shared)


def _tenant_account(name: str, allowed: Allowed, found: Found) -> Settings:
    fields = {QOS_LIST: Setting(_listed(name, (name,), found), "its own QOS, and its borrowed one")}
    limits = type_limits(allowed.policy[name].quota, allowed.costs, allowed.models)
    for gres_type, count in limits.items():
        if f"gres/gpu:{gres_type}" in found.tres:
            fields[TYPE + gres_type] = Setting(str(count), "limit on the type or its model")
    return {LimitKey("account", name, field): setting for field, setting in fields.items()}


def type_limits(
    quota: Quota, costs: Mapping[str, int], models: Mapping[str, str]
) -> Mapping[str, int]:
    """Instances by type at most. A limit on a model binds each of its types by itself."""
    bounds = dict(quota.type_limits)
    for gres_type, model in models.items():
        if model in quota.model_limits:
            most = quota.model_limits[model] // costs[gres_type]
            bounds[gres_type] = min(most, bounds.get(gres_type, most))
    return bounds


def binding_type_limits(
    policy: Policy, costs: Mapping[str, int], models: Mapping[str, str]
) -> Mapping[str, Mapping[str, int]]:
    """Instances by type that each tenant, and every tenant above it, may have at most."""
    bounds: dict[str, dict[str, int]] = {}
    for name in downward(policy):
        bounds[name] = dict(bounds.get(parent(policy, name), {}))
        for kind, most in type_limits(policy[name].quota, costs, models).items():
            bounds[name][kind] = min(most, bounds[name].get(kind, most))
    return bounds


def _other_account(
    name: str, listed: str, found: Found, known: Mapping[LimitKey, KnownLimit]
) -> Settings:
    """It inherits our QOS, or has them in its own list: Slurm refuses a tenant's default to which
    an account below it, or a user, has no access.
    """
    row = found.accounts[name]
    settings: dict[LimitKey, Setting] = {}
    above = _ours(found.accounts[row.parent].qos) if row.parent in found.accounts else set()
    if row.own_qos or _ours(row.qos) != above:
        listed = INHERITED if only_ours_differ(row, found) else listed
        settings[LimitKey("account", name, QOS_LIST)] = Setting(listed, "as above it")
    if is_ours(row.own_default_qos):
        key = LimitKey("account", name, DEFAULT_QOS)
        settings[key] = Setting(known[key].before if key in known else "", "no tenant any more")
    return settings


def only_ours_differ(row: Association, found: Found) -> bool:
    """Whether an account's QOS list would be the one above it, were it not for our QOS."""
    above = found.accounts.get(row.parent)
    return (
        above is not None
        and row.own_qos == _ours(row.own_qos)
        and row.qos - _ours(row.qos) == above.qos - _ours(above.qos)
    )


def _qos_settings(
    tenants: Collection[str],
    allowed: Allowed,
    found: Found,
    known: Mapping[LimitKey, KnownLimit],
) -> Settings:
    elsewhere = _elsewhere(tenants, found, found.in_use.held)
    limits = less_elsewhere({name: allowed.ceilings[name] for name in tenants}, elsewhere)
    of_budgets = _parts(limits, allowed, found)
    shared = {SHARED_QOS} if tenants and found.in_use.sharing else set()
    borrowers = _borrowers(tenants, allowed, found)
    preempted = Setting(_text({*map(borrowed_qos, borrowers), *shared}), "guaranteed goes first")
    gate = {BILLING: Setting("0", "nothing in other QOS")}
    settings = dict(_qos(GATE_QOS, "QOS of the managed partitions", gate))
    for tenant, limit in sorted(limits.items()):
        name, on_loan = qos_name(tenant), borrowed_qos(tenant)
        own = found.billing.limit(limit.own_limit_millislices)
        borrowed = found.billing.limit(limit.borrowed_limit_millislices)
        fields = {**_limit(own, f"own part of {tenant}, less what it lends"), PREEMPT: preempted}
        fields |= _minutes(of_budgets.get(name), found.billing)
        settings |= _qos(name, f"for guaranteed jobs of {tenant}", fields)
        fields = {**_limit(borrowed, f"lent to {tenant}"), **_on_loan(allowed.term_s)}
        fields |= _minutes(of_budgets.get(on_loan), found.billing)
        settings |= _qos(on_loan, f"for borrowed jobs of {tenant}", fields)
    for name in shared:
        settings |= _qos(name, "until the last of its jobs has ended", _on_loan(allowed.term_s))
    wanted_names = {key.name for key in settings}
    seen = _seen_qos(found, known) & found.qos.keys()
    for name in sorted(seen - wanted_names - {SHARED_QOS}):
        settings |= _qos(name, "", _limit(0, "its tenant is gone"))
    return settings


def _borrowers(tenants: Collection[str], allowed: Allowed, found: Found) -> frozenset[str]:
    """Who may borrow, or has jobs that do: sacctmgr prints all of them for each tenant, 26 MB in
    five seconds of a thousand tenants.
    """
    held = {qos for _, qos in found.in_use.held}
    return frozenset(
        tenant
        for tenant in tenants
        if allowed.policy[tenant].quota.borrowing_limit_millislices
        or allowed.ceilings[tenant].borrowed_limit_millislices
        or borrowed_qos(tenant) in held
    )


def _limited(tenants: Iterable[str]) -> Collection[str]:
    return {name for tenant in tenants for name in (qos_name(tenant), borrowed_qos(tenant))}


def _elsewhere(
    tenants: Collection[str], found: Found, amounts: Mapping[tuple[str, str], int]
) -> Mapping[str, int]:
    """What of the ``amounts`` by account and QOS each tenant's jobs have, and those of accounts
    without a quota below it, in QOS that are no tenant's: those of a tenant are limited themselves.
    """
    limited = _limited(tenants)
    held: Counter[str] = Counter()
    for (account, qos), amount in amounts.items():
        if qos in limited:
            continue
        row = found.accounts.get(account)
        while row is not None and row.account not in tenants:
            row = found.accounts.get(row.parent)
        if row is not None:
            held[row.account] += amount
    return held


def _paid_elsewhere(
    tenants: Collection[str], may_take: Mapping[tuple[str, str], int]
) -> Mapping[str, int]:
    """What each tenant's own jobs may still take in QOS that are no tenant's."""
    limited = _limited(tenants)
    found: Counter[str] = Counter()
    for (account, qos), amount in may_take.items():
        if account in tenants and qos not in limited:
            found[account] += amount
    return found


def _parts(limits: Mapping[str, Ceiling], allowed: Allowed, found: Found) -> Mapping[str, Part]:
    """Of budgets, by QOS; ``limits`` are of both QOS of each tenant."""
    of_qos: dict[str, int] = {}
    for tenant, limit in limits.items():
        of_qos[qos_name(tenant)] = limit.own_limit_millislices
        of_qos[borrowed_qos(tenant)] = limit.borrowed_limit_millislices
    runs = found.in_use.runs
    claims = Claims(
        _by_qos(runs.may_take),
        _paid_elsewhere(limits.keys(), runs.may_take),
        runs.waiting,
        of_qos,
        _by_qos(found.in_use.held),
    )
    return parts(allowed.policy, allowed.run_minutes, limits, claims)


def _by_qos(amounts: Mapping[tuple[str, str], int]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for (_, qos), amount in amounts.items():
        found[qos] += amount
    return found


def _minutes(part: Part | None, billing: BillingUnit) -> Mapping[str, Setting]:
    if part is None:
        return {}
    of = f"budget of {', '.join(part.budgets)}: {part.minutes / 60_000:.2f} slice-hours of it"
    limit = str(billing.limit(part.minutes))
    return {RUN_MINUTES: Setting(limit, of, billing.limit(part.least))}


def _limit(amount: int, why: str) -> Mapping[str, Setting]:
    """It counts in place of the gate's, and of the account's, which Slicewise once set."""
    return {
        BILLING: Setting(str(amount), why),
        PER_ACCOUNT: Setting("", "the QOS itself is limited"),
        FLAGS: Setting(OVER_PARTITION, "lets it through the gate"),
    }


def _on_loan(term_s: int) -> Mapping[str, Setting]:
    term = {EXEMPT: Setting(str(term_s), "term of what is borrowed, in s")} if term_s else {}
    return {PREEMPT_MODE: Setting(_REQUEUE, "its jobs are to run again"), **term}


def _qos(name: str, why: str, fields: Mapping[str, Setting]) -> Settings:
    fields = {NAME: Setting(name, why), **fields}
    return {LimitKey("qos", name, field): one for field, one in fields.items()}


def _seen_qos(found: Found, known: Mapping[LimitKey, KnownLimit]) -> set[str]:
    """Ours of this cluster: another one on the same slurmdbd may have QOS of such names, too."""
    listed = {name for row in found.accounts.values() for name in _ours(row.qos)}
    return listed | {key.name for key in known if key.entity == "qos"}


def _handed_back(
    known: Mapping[LimitKey, KnownLimit],
    settings: Settings,
    found: Found,
    allowed: Allowed,
) -> Settings:
    once = {BILLING, DEFAULT_QOS} if found.is_gated else set()
    kept = _not_divided(settings, found, allowed) if found.is_gated else allowed.run_minutes

    def goes_back(key: LimitKey) -> bool:
        if key.entity == "qos":
            return key.field in {EXEMPT, RUN_MINUTES} and key.name in found.qos
        is_over = key.field.startswith(TYPE) or key.field in once
        is_over |= key.field == RUN_MINUTES and key.name not in kept
        return is_over and key.name in found.accounts

    return {
        key: Setting(limit.before, "no longer limited")
        for key, limit in known.items()
        if key not in settings and limit.last != limit.before and goes_back(key)
    }


def _not_divided(settings: Settings, found: Found, allowed: Allowed) -> Collection[str]:
    """Budgets of which a QOS that draws on them has no part in Slurm yet."""
    draws = drawn_on(allowed.policy, allowed.run_minutes, allowed.policy)
    keys = {qos: LimitKey("qos", qos, RUN_MINUTES) for qos in draws}
    return {
        budget
        for qos, key in keys.items()
        if key in settings and not value_now(found, key)
        for budget in draws[qos]
    }


def value_now(found: Found, key: LimitKey) -> str:
    """What Slurm has for that setting; of lists only our QOS."""
    return _account_value(found, key) if key.entity == "account" else _qos_value(found, key)


def _account_value(found: Found, key: LimitKey) -> str:
    row, (word, _, tres) = found.accounts[key.name], key.field.partition("=")
    match word:
        case "grptres":
            return str(row.grp_tres.get(tres, ""))
        case "grptresrunmins":
            return str(row.grp_tres_run_mins.get(tres, ""))
        case "qos":
            return _text(_ours(row.qos))
        case _:
            return row.own_default_qos


def _qos_value(found: Found, key: LimitKey) -> str:
    row, (word, _, tres) = found.qos.get(key.name), key.field.partition("=")
    if row is None:
        return ""
    match word:
        case "grptres":
            return str(row.grp_tres.get(tres, ""))
        case "maxtresperaccount":
            return str(row.max_tres_per_account.get(tres, ""))
        case "grptresrunmins":
            return str(row.grp_tres_run_mins.get(tres, ""))
        case _ if word == PREEMPT:
            return _our_names(row.preempt)
    texts = {
        NAME: row.name,
        PREEMPT_MODE: row.preempt_mode,
        EXEMPT: "" if row.preempt_exempt_s is None else str(row.preempt_exempt_s),
        FLAGS: _text(row.flags & {OVER_PARTITION}),
    }
    return texts[key.field]


def differences(wanted: Wanted, found: Found) -> tuple[Difference, ...]:
    """Where Slurm is not as wanted; () if it has it all.

    What is left of a budget moves all the time: a part of it is good enough within one percent or
    one slice-minute, unless it is to be zero, or a waiting job could not start with it.
    """
    now = {key: value_now(found, key) for key in wanted.settings}
    return (
        *(
            Difference(key, now[key], value, setting.why)
            for key, setting in wanted.settings.items()
            if now[key] != (value := _with_others(key, now[key], setting.value))
            and not _near(key, now[key], setting, found.billing)
        ),
        *_user_differences(wanted.lists, found),
    )


def _with_others(key: LimitKey, now: str, value: str) -> str:
    """What is preempted is only added to: another cluster's tenants may have QOS of the same names,
    and what they preempt besides goes with the QOS that are.
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


def _user_differences(lists: Mapping[str, str], found: Found) -> Iterator[Difference]:
    """Users inherit their account's list and default, unless they have their own."""
    for row in found.users:
        may = lists[row.account]
        if row.own_qos and _text(_ours(row.qos)) != may:
            key = LimitKey("account", row.account, QOS_LIST)
            now, why = _text(_ours(row.qos)), "a list of the user's own"
            yield Difference(key, now, may, why, row.user, row.partition)
        if is_ours(row.own_default_qos) and row.own_default_qos not in may.split(","):
            key = LimitKey("account", row.account, DEFAULT_QOS)
            now, why = row.own_default_qos, "not allowed any more"
            yield Difference(key, now, "", why, row.user, row.partition)


@lru_cache(maxsize=8)
def _our_names(names: frozenset[str]) -> str:
    """Of lists that are the same for a thousand tenants, a thousand names each."""
    return _text(_ours(names))


def _ours(names: Iterable[str]) -> set[str]:
    return {name for name in names if is_ours(name)}


def _text(names: Iterable[str]) -> str:
    return ",".join(sorted(names))
