"""The ledger's policy as settings in slurmdbd, and where Slurm's are other ones."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cluster.errors import InvalidInputError
from cluster.slurm.interface import Association, Qos
from cluster.units import slices_text
from slurm_plugin.decide.ceilings import Ceiling
from slurm_plugin.decide.policy import ROOT_ACCOUNT, KnownLimit, LimitKey, Policy, Quota
from slurm_plugin.decide.tenants import downward, parent

QOS_PREFIX = "slicewise_"
"""Only QOS of this prefix are ever changed, and the next one."""

BORROWED_QOS = "slicewise-borrowed"
"""Of all jobs on borrowed quota; no tenant's QOS can have that name."""

BILLING, RUN_MINUTES = "grptres=billing", "grptresrunmins=billing"
GUARANTEE = "maxtresperaccount=billing"
TYPE = "grptres=gres/gpu:"
EXEMPT = "preemptexempttime"
QOS_LIST, DEFAULT_QOS, PREEMPT, NAME = "qos", "defaultqos", "preempt", "name"
"""Fields of settings."""

INHERITED = "inherited"
"""As a list of QOS: none of its own. ``qos-=`` would leave a trace of what is taken out."""

_NEAR_MILLISLICE_MIN = 1000
_NEAR_SHARE = 100


@dataclass(frozen=True)
class Found:
    """What Slurm has of one cluster.

    Attributes:
        tres: what accounting counts (AccountingStorageTRES): there can be limits on no others.
    """

    cluster: str
    accounts: Mapping[str, Association] = field(hash=False)
    users: tuple[Association, ...]
    qos: Mapping[str, Qos] = field(hash=False)
    tres: frozenset[str]


@dataclass(frozen=True)
class Allowed:
    """What the ledger allows now.

    Attributes:
        run_minutes: millislice-minutes that running jobs may still take, by tenant with a budget.
        costs: millislices of an instance by GRES type; models: its GPU model.
        term_s: so long what runs on borrowed quota may not be preempted; 0 is not looked after.
    """

    policy: Policy = field(hash=False)
    ceilings: Mapping[str, Ceiling] = field(hash=False)
    run_minutes: Mapping[str, int] = field(hash=False)
    costs: Mapping[str, int] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    term_s: int = 0


@dataclass(frozen=True)
class Setting:
    """What a setting should be, as text, "" is not set; and why."""

    value: str
    why: str


Settings = Mapping[LimitKey, Setting]


@dataclass(frozen=True)
class Wanted:
    """Every setting that Slicewise looks after, and our QOS that each account may use."""

    settings: Settings = field(hash=False)
    lists: Mapping[str, str] = field(hash=False)


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


def qos_name(tenant: str) -> str:
    """The tenant's own QOS: its guaranteed jobs run in it."""
    return QOS_PREFIX + tenant


def is_ours(qos: str) -> bool:
    """Whether that QOS is Slicewise's."""
    return qos.startswith(QOS_PREFIX) or qos == BORROWED_QOS


def found_of(
    cluster: str,
    associations: Iterable[Association],
    qos: Iterable[Qos],
    config: Mapping[str, str],
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
    )


def wanted(allowed: Allowed, found: Found, known: Mapping[LimitKey, KnownLimit]) -> Wanted:
    """What the ledger's policy is in Slurm.

    A tenant's account is limited to its ceiling, which binds every job in it and below it,
    whatever its QOS; to so many instances of a type; and to what is left of its budget. QOS
    ``slicewise_<tenant>`` is its default and limited to its guarantee per account, which, other
    than GrpTRES of a QOS, does not hide the account's limit (docs/decisions/0005). It may preempt
    the borrowed QOS, once what runs there is older than its term; every tenant may use that one,
    and it has no limit of its own. A tenant may not use another's QOS, though it stood above it. An
    account without a tenant has the sum of the ceilings below it, 0 if there are none, and the QOS
    of the tenant above. A QOS whose tenant is gone allows nothing.

    What is no longer looked after (a limit on a type that was taken away, a term, the default QOS
    of a former tenant) goes back to what it was before.
    """
    tenants = frozenset(allowed.policy) & found.accounts.keys() - {ROOT_ACCOUNT}
    settings: dict[LimitKey, Setting] = {}
    sums = _sums(tenants, allowed.ceilings, found.accounts)
    lists = {name: _listed(name, tenants, found) for name in found.accounts}
    for name in sorted(found.accounts.keys() - {ROOT_ACCOUNT}):
        if name in tenants:
            settings |= _tenant_account(name, allowed, found)
        else:
            settings |= _other_account(name, sums.get(name, 0), lists[name], found, known)
    settings |= _qos_settings(tenants, allowed, found, known)
    return Wanted({**_handed_back(known, settings, found), **settings}, lists)


def _listed(account: str, tenants: Collection[str], found: Found) -> str:
    row: Association | None = found.accounts[account]
    while row is not None and row.account not in tenants:
        row = found.accounts.get(row.parent)
    return _text({qos_name(row.account), BORROWED_QOS}) if row is not None else ""


def _tenant_account(name: str, allowed: Allowed, found: Found) -> Settings:
    ceiling = allowed.ceilings[name]
    fields = {
        BILLING: Setting(str(ceiling.ceiling_millislices), _ceiling_words(ceiling)),
        QOS_LIST: Setting(_listed(name, (name,), found), "its own QOS, and the borrowed"),
        DEFAULT_QOS: Setting(qos_name(name), "its own QOS"),
    }
    limits = type_limits(allowed.policy[name].quota, allowed.costs, allowed.models)
    for gres_type, count in limits.items():
        if f"gres/gpu:{gres_type}" in found.tres:
            fields[TYPE + gres_type] = Setting(str(count), "limit on the type or its model")
    if name in allowed.run_minutes:
        minutes = allowed.run_minutes[name]
        fields[RUN_MINUTES] = Setting(str(minutes), f"budget: {minutes / 60_000:.2f} slice-hours")
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


def _ceiling_words(ceiling: Ceiling) -> str:
    parts = (("lent", ceiling.lent_millislices), ("borrowed", ceiling.borrowed_millislices))
    moved = [f"{slices_text(amount)} {word}" for word, amount in parts if amount]
    return ", ".join(("ceiling", *moved))


def _other_account(
    name: str, below: int, listed: str, found: Found, known: Mapping[LimitKey, KnownLimit]
) -> Settings:
    """It inherits our QOS, or has them in its own list: Slurm refuses a tenant's default to which
    an account below it, or a user, has no access.
    """
    row = found.accounts[name]
    settings = {LimitKey("account", name, BILLING): Setting(str(below), _sum_words(below))}
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


def _sums(
    tenants: Collection[str],
    ceilings: Mapping[str, Ceiling],
    accounts: Mapping[str, Association],
) -> Mapping[str, int]:
    """Millislices of the topmost tenants below each account that has some."""
    sums: dict[str, int] = {}
    for tenant in tenants:
        above = accounts.get(accounts[tenant].parent)
        while above is not None and above.account not in tenants:
            sums[above.account] = sums.get(above.account, 0) + ceilings[tenant].ceiling_millislices
            above = accounts.get(above.parent)
    return sums


def _sum_words(below: int) -> str:
    return "no tenant: the sum of those below it" if below else "no tenant, and none below it"


def _qos_settings(
    tenants: Collection[str],
    allowed: Allowed,
    found: Found,
    known: Mapping[LimitKey, KnownLimit],
) -> Settings:
    """A GrpTRES of our own would hide the account's limit from its jobs."""
    settings: dict[LimitKey, Setting] = {}
    if tenants:
        settings |= _qos(BORROWED_QOS, _borrowed(allowed.term_s))
    for tenant in sorted(tenants):
        guarantee = str(allowed.ceilings[tenant].guarantee_millislices)
        fields = {
            NAME: Setting(qos_name(tenant), f"for guaranteed jobs of {tenant}"),
            GUARANTEE: Setting(guarantee, f"guarantee of {tenant}"),
            PREEMPT: Setting(BORROWED_QOS, "guaranteed before borrowed"),
        }
        settings |= _qos(qos_name(tenant), fields)
    wanted_names = {key.name for key in settings}
    for name in sorted(_seen_qos(found, known) & found.qos.keys() - wanted_names - {BORROWED_QOS}):
        settings |= _qos(name, {GUARANTEE: Setting("0", "its tenant is gone")})
    return settings


def _borrowed(term_s: int) -> Mapping[str, Setting]:
    term = {EXEMPT: Setting(str(term_s), "term of what is borrowed, in s")} if term_s else {}
    return {NAME: Setting(BORROWED_QOS, "for borrowed jobs"), **term}


def _qos(name: str, fields: Mapping[str, Setting]) -> Settings:
    unlimited = {BILLING: Setting("", "it would hide the account's limit")}
    return {LimitKey("qos", name, field): one for field, one in {**fields, **unlimited}.items()}


def _seen_qos(found: Found, known: Mapping[LimitKey, KnownLimit]) -> set[str]:
    """Ours of this cluster: another one on the same slurmdbd may have QOS of such names, too."""
    listed = {name for row in found.accounts.values() for name in _ours(row.qos)}
    return listed | {key.name for key in known if key.entity == "qos"}


def _handed_back(
    known: Mapping[LimitKey, KnownLimit], settings: Settings, found: Found
) -> Settings:
    return {
        key: Setting(limit.before, "no longer limited")
        for key, limit in known.items()
        if key not in settings and _may_be_handed_back(key, found) and limit.last != limit.before
    }


def _may_be_handed_back(key: LimitKey, found: Found) -> bool:
    if key.entity == "qos":
        return key.field == EXEMPT and key.name in found.qos
    return key.field.startswith((TYPE, RUN_MINUTES)) and key.name in found.accounts


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
        case "preempt":
            return _text(_ours(row.preempt))
        case "preemptexempttime":
            return "" if row.preempt_exempt_s is None else str(row.preempt_exempt_s)
        case _:
            return row.name


def differences(wanted: Wanted, found: Found) -> tuple[Difference, ...]:
    """Where Slurm is not as wanted; () if it has it all.

    What is left of a budget moves all the time: a limit on it is good enough within one percent
    or one slice-minute, unless it is or was zero.
    """
    now = {key: value_now(found, key) for key in wanted.settings}
    return (
        *(
            Difference(key, now[key], setting.value, setting.why)
            for key, setting in wanted.settings.items()
            if now[key] != setting.value and not _near(key, now[key], setting.value)
        ),
        *_user_differences(wanted.lists, found),
    )


def _near(key: LimitKey, now: str, value: str) -> bool:
    if key.field != RUN_MINUTES or {now, value} & {"", "0"}:
        return False
    apart = abs(int(now) - int(value))
    return apart <= _NEAR_MILLISLICE_MIN or apart * _NEAR_SHARE <= int(value)


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


def _ours(names: Iterable[str]) -> set[str]:
    return {name for name in names if is_ours(name)}


def _text(names: Iterable[str]) -> str:
    return ",".join(sorted(names))
