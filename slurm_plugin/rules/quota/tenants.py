"""The tree of tenants: which changes are valid, and what follows from the tree's shape."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import eq, is_
from typing import Literal

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import BUDGETED, SLICES
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.service import OPENAI_NAME
from slicewise.cluster.language.units import Millislices, slices_text
from slicewise.slurm_plugin.rules.common.known_names import names_text
from slicewise.slurm_plugin.rules.common.qos_names import can_have_qos, qos_name
from slicewise.slurm_plugin.rules.quota.attributes import ATTRIBUTES, numbers
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
    ROOT_ACCOUNT,
    Budget,
    Policy,
    Quota,
    Tenant,
    TenantUpdate,
)

_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_TYPE_OR_MODEL = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9_.+/-]{0,62}")
_MAX_WORDS = 500


def changed(policy: Policy, update: TenantUpdate) -> Policy:
    """The policy after an update. An unknown tenant is added, at the top unless a parent is given.

    Raises InvalidInputError: SW-VALUE for an amount, a name or a word that can't be;
    SW-TENANT-UNKNOWN if an unknown tenant is to be removed, or the parent is no tenant;
    SW-TENANT-CHILDREN if one with tenants below it is to be removed, or would be below itself;
    SW-QUOTA-TREE if a tenant's nominal would fall short of the sum below it, or further short of
    it than before.
    """
    after, refused = changed_together(policy, (update,))
    for error in refused.values():
        raise error
    return after


def changed_together(
    policy: Policy, updates: Sequence[TenantUpdate]
) -> tuple[Policy, Mapping[str, InvalidInputError]]:
    """Apply several updates, one per tenant. Returns the policy, and the refusals by tenant.

    Refusals are the errors that ``changed`` raises. The updates may come in any order, except that
    a new tenant comes after its parent: only the tree that results from all updates must be valid.
    """
    after = policy
    refused: dict[str, InvalidInputError] = {}
    for update in updates:
        try:
            after = _alone(after, update)
        except InvalidInputError as error:
            refused[update.tenant] = error
    moved = [
        update.tenant
        for update in updates
        if update.tenant in after and update.tenant not in refused
    ]
    return after, {**refused, **dict(_tree_faults(policy, after, moved))}


def _alone(policy: Policy, update: TenantUpdate) -> Policy:
    """The policy after one update, without checking nominals against the tree."""
    if update.removed:
        return _without(policy, update.tenant)
    _check_name(update.tenant)
    if update.tenant not in policy:
        _check_qos(update.tenant)
    tenant = policy.get(update.tenant, Tenant(update.tenant, "", Quota(Millislices(0))))
    tenant = updated(tenant, update)
    if update.parent is not None:
        _check_parent(policy, tenant)
    _check_quota(tenant.quota)
    for meter in BUDGETED:
        _check_budget(tenant.budget_on(meter))
    return {**policy, tenant.name: tenant}


def check_words(author: str, reason: str) -> None:
    """Check that texts can be shown as one line.

    Raises InvalidInputError (SW-VALUE) for a text that is too long or has unprintable characters.
    """
    for words in (author, reason):
        if len(words) > _MAX_WORDS:
            raise InvalidInputError(
                Code.VALUE, f"The text has {len(words)} characters.", f"At most {_MAX_WORDS}."
            )
        if not words.isprintable():
            raise InvalidInputError(
                Code.VALUE, f"{words!r} has characters that can't be printed.", "Write plain text."
            )


class _Shape:
    """What follows from a policy alone, each computed once, when it is first asked for."""

    def __init__(self, policy: Policy) -> None:
        self._policy = dict(policy)
        self._names, self._tenants = tuple(policy), tuple(policy.values())

    def is_of(self, policy: Policy) -> bool:
        """Whether the policy has the very same tenants; they never change themselves."""
        return (
            len(policy) == len(self._names)
            and all(map(is_, policy.values(), self._tenants))
            and all(map(eq, policy, self._names))
        )

    @cached_property
    def by_parent(self) -> Mapping[str, tuple[str, ...]]:
        below: dict[str, list[str]] = {}
        for name in sorted(self._policy):
            below.setdefault(parent(self._policy, name), []).append(name)
        return {name: tuple(children) for name, children in below.items()}

    @cached_property
    def downward(self) -> tuple[str, ...]:
        return _downward(self.by_parent, self.by_parent.get("", ()))

    @cached_property
    def upward(self) -> Mapping[str, tuple[str, ...]]:
        return {name: (name, *ancestors(self._policy, name)) for name in self._policy}

    @cached_property
    def nominal(self) -> Mapping[str, int]:
        policy = self._policy
        sums: dict[str, int] = dict.fromkeys(policy, 0)
        nominal: dict[str, int] = {}
        for name in reversed(self.downward):
            nominal[name] = max(policy[name].quota.nominal_millislices, sums[name])
            if above := parent(policy, name):
                sums[above] += nominal[name]
        return nominal

    @cached_property
    def guaranteed(self) -> Mapping[str, int]:
        own = dict(self.nominal)
        for name in self._policy:
            if above := parent(self._policy, name):
                own[above] -= self.nominal[name]
        return own

    @cached_property
    def limits_models(self) -> bool:
        return any(tenant.quota.model_limits for tenant in self._tenants)

    @cached_property
    def nominal_types(self) -> Mapping[str, Counter[str]]:
        type_sums: dict[str, Counter[str]] = {}
        for name in reversed(self.downward):
            sums = Counter[str]()
            for child in self.by_parent.get(name, ()):
                sums += type_sums[child]
            type_sums[name] = sums | Counter(self._policy[name].quota.type_nominals)
        return type_sums

    @cached_property
    def guaranteed_types(self) -> Mapping[str, Mapping[str, int]]:
        policy, below = self._policy, self.by_parent
        if not any(tenant.quota.type_nominals for tenant in policy.values()):
            return {}
        due = self.nominal_types
        named: dict[str, frozenset[str]] = {"": frozenset()}
        limits: dict[str, Mapping[str, int]] = {"": {}}
        own: dict[str, Mapping[str, int]] = {}
        for name in self.downward:
            above, quota = parent(policy, name), policy[name].quota
            kinds = named[name] = named[above] | quota.type_nominals.keys()
            limits[name] = lesser(limits[above], quota.type_limits)
            children = below.get(name, ())
            left = {
                gres_type: due[name][gres_type] - sum(due[child][gres_type] for child in children)
                for gres_type in sorted(kinds)
            }
            own[name] = {
                gres_type: min(n, limits[name].get(gres_type, n)) for gres_type, n in left.items()
            }
        return {name: of for name, of in own.items() if of}


_SHAPES = 8
"""So many policies are remembered. A round asks what follows from the same one dozens of times."""
_shapes: dict[int, _Shape] = {}


def _shape(policy: Policy) -> _Shape:
    shape = _shapes.get(id(policy))
    if shape is None or not shape.is_of(policy):
        if len(_shapes) >= _SHAPES:
            _shapes.clear()
        shape = _shapes[id(policy)] = _Shape(policy)
    return shape


def by_parent(policy: Policy) -> Mapping[str, tuple[str, ...]]:
    """Children of each tenant that has any, sorted by name; "" has the tenants at the top."""
    return _shape(policy).by_parent


def parent(policy: Policy, name: str) -> str:
    """The tenant directly above a tenant; "" if there is none."""
    above = policy[name].parent
    return above if above in policy else ""


def children(policy: Policy, name: str) -> tuple[str, ...]:
    """Tenants directly below a tenant, sorted by name; for "" the tenants at the top."""
    return by_parent(policy).get(name, ())


def ancestors(policy: Policy, name: str) -> tuple[str, ...]:
    """All tenants above a tenant, nearest first."""
    above: list[str] = []
    while name := parent(policy, name):
        above.append(name)
    return tuple(above)


def upward(policy: Policy) -> Mapping[str, tuple[str, ...]]:
    """Each tenant with all tenants above it, nearest first."""
    return _shape(policy).upward


def subtree(policy: Policy, name: str) -> tuple[str, ...]:
    """The tenant and all tenants below it; parents come before their children."""
    return _downward(by_parent(policy), [name])


def downward(policy: Policy) -> tuple[str, ...]:
    """All tenants; parents come before their children."""
    return _shape(policy).downward


def _downward(below: Mapping[str, tuple[str, ...]], first: Iterable[str]) -> tuple[str, ...]:
    order = list(first)
    for name in order:  # grows as it goes
        order.extend(below.get(name, ()))
    return tuple(order)


def effective_nominal(policy: Policy) -> Mapping[str, int]:
    """Millislices guaranteed to each tenant together with the tenants below it.

    That is its nominal, or the sum over its children if that is larger: a group's nominal is 0.
    """
    return _shape(policy).nominal


def guaranteed_quota(policy: Policy) -> Mapping[str, int]:
    """Millislices of each tenant's guaranteed quota: its effective nominal less those of its
    children.
    """
    return _shape(policy).guaranteed


def nominal_types(policy: Policy) -> Mapping[str, Mapping[str, int]]:
    """Instances by GRES type that each tenant's quota names, or those below it if they are more."""
    return _shape(policy).nominal_types


def guaranteed_types(policy: Policy) -> Mapping[str, Mapping[str, int]]:
    """Most instances by GRES type that each tenant's guaranteed quota covers.

    That is what its quota names of the type, less what its children are due of it. A tenant below
    one that names a type is guaranteed only what it names itself. Types that neither the tenant nor
    one above it names are left out, as are tenants without any: only slices bound these. Limits on
    a type, of the tenant and of those above it, bound it, too; those on models
    ``type_limits.own_type_limits`` adds, which says what Slurm enforces.
    """
    return _shape(policy).guaranteed_types


def limits_models(policy: Policy) -> bool:
    """Whether any quota limits a GPU model."""
    return _shape(policy).limits_models


def lesser(some: Mapping[str, int], others: Mapping[str, int]) -> Mapping[str, int]:
    """Bounds by name of both; of those in both, the smaller one."""
    both = {name: min(some[name], others[name]) for name in some.keys() & others.keys()}
    return {**some, **others, **both}


def payers(policy: Policy, meter: str = SLICES.name) -> Mapping[str, str]:
    """The tenant that pays for each tenant's runs with its budget on a meter.

    That is ``budget_payers``; the tenant itself if none has a budget.
    """
    budgeted = budget_payers(policy, meter)
    return {name: budgeted.get(name, name) for name in downward(policy)}


def budget_payers(policy: Policy, meter: str) -> Mapping[str, str]:
    """The nearest tenant with a budget on a meter, from each tenant itself upwards.

    Tenants for which no budget pays are left out.
    """
    budgeted: dict[str, str] = {}
    for name in downward(policy):
        own = policy[name].budget_on(meter) is not None
        if payer := name if own else budgeted.get(parent(policy, name)):
            budgeted[name] = payer
    return budgeted


def require_tenant(policy: Policy, name: str) -> Tenant:
    """Return the tenant; raises InvalidInputError (SW-TENANT-UNKNOWN) if ``name`` is none."""
    if name not in policy:
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"{name!r} is not a tenant.",
            f"Tenants: {names_text(name, policy)}. Create it: slicewise tenant create NAME",
        )
    return policy[name]


def _without(policy: Policy, name: str) -> Policy:
    if name not in policy:
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"There is no tenant {name!r}.",
            "slicewise tenant list shows all.",
        )
    if below := children(policy, name):
        raise InvalidInputError(
            Code.TENANT_CHILDREN,
            f"Tenant {name!r} has tenants below it: {_some(below)}.",
            "Delete or move them first: slicewise tenant delete NAME.",
        )
    return {other: tenant for other, tenant in policy.items() if other != name}


def updated(tenant: Tenant, update: TenantUpdate) -> Tenant:
    """Return the tenant with the update's values, unchecked."""
    given = {one.field: getattr(update, one.field) for one in ATTRIBUTES}
    quota = replace(tenant.quota, **{k: value for k, value in given.items() if value is not None})
    return replace(
        tenant,
        parent=tenant.parent if update.parent is None else update.parent,
        quota=quota,
        budget=_budget_after(tenant.budget, update.budget),
        token_budget=_budget_after(tenant.token_budget, update.token_budget),
    )


def _budget_after(before: Budget | None, change: Budget | Literal["off"] | None) -> Budget | None:
    if change is None:
        return before
    return None if change == "off" else change


def _check_name(name: str) -> None:
    if not _TENANT.fullmatch(name) or name in {ROOT_ACCOUNT, OPENAI_NAME}:
        raise InvalidInputError(
            Code.VALUE,
            f"{name!r} can't be a tenant.",
            "A tenant is a Slurm account other than root, of letters, digits, '_', '.', '-'. "
            f"/{OPENAI_NAME} is the gateway's address of all shared models.",
        )


def _check_qos(name: str) -> None:
    if not can_have_qos(name):
        raise InvalidInputError(
            Code.VALUE,
            f"{name!r} can't be a tenant: Slicewise uses QOS {qos_name(name)} for something else.",
            "Give the account another name: not gate, and none that ends in _borrowed.",
        )


def _check_parent(policy: Policy, tenant: Tenant) -> None:
    if tenant.parent == "":
        return
    if tenant.parent not in {tenant.name, *policy}:
        raise InvalidInputError(
            Code.TENANT_UNKNOWN,
            f"{tenant.parent!r} is not a tenant, so {tenant.name!r} can't be below it.",
            "Create it first: slicewise tenant create PARENT.",
        )
    if tenant.parent == tenant.name or tenant.name in ancestors(policy, tenant.parent):
        raise InvalidInputError(
            Code.TENANT_CHILDREN,
            f"{tenant.name!r} can't be below {tenant.parent!r}, which is itself or below it.",
            "Move the other one first; slicewise tenant list shows the tree.",
        )


def _check_quota(quota: Quota) -> None:
    for attribute, name, number in numbers(quota):
        if name is not None and not _TYPE_OR_MODEL.fullmatch(name):
            raise InvalidInputError(
                Code.VALUE,
                f"{name!r} is not a GPU type or model.",
                "Write a GRES type such as 3g.40gb, or a model such as H200-141GB.",
            )
        if not attribute.least <= number <= attribute.most:
            text, of = attribute.number_text, "" if name is None else f", {name}:"
            raise InvalidInputError(
                Code.VALUE,
                f"{attribute.noun}{of} {text(number)} is out of range.",
                f"Give {text(attribute.least)} to {text(attribute.most)}.",
            )


def check_slices(what: str, millislices: int) -> None:
    """Check that an amount of quota is in range. Raises InvalidInputError (SW-VALUE)."""
    if not 0 <= millislices <= MAX_NOMINAL_MILLISLICES:
        raise InvalidInputError(
            Code.VALUE,
            f"{what} of {slices_text(millislices)} slices is out of range.",
            f"Give 0 to {slices_text(MAX_NOMINAL_MILLISLICES)}; a GPU has 7.",
        )


def _check_budget(budget: Budget | None) -> None:
    if budget is None:
        return
    if budget.period not in tuple(Period):
        raise InvalidInputError(
            Code.VALUE,
            f"There is no period {budget.period!r}.",
            f"Give one of {', '.join(Period)}.",
        )
    meter = BUDGETED[budget.meter]
    amounts = {
        "A budget": budget.amount,
        "A carry-over": budget.carry_over,
        "An overdraft": budget.overdraft,
    }
    for what, amount in amounts.items():
        if not 0 <= amount <= MAX_BUDGET_MILLISLICE_S:
            raise InvalidInputError(
                Code.VALUE,
                f"{what} of {meter.text(amount)} {meter.unit} is out of range.",
                f"Give 0 to {meter.text(MAX_BUDGET_MILLISLICE_S)} {meter.unit}.",
            )


def _tree_faults(
    before: Policy, after: Policy, names: Iterable[str]
) -> Iterator[tuple[str, InvalidInputError]]:
    """Report once each tenant whose nominal falls short of the sum below it, with the error.

    The error goes to the first of ``names`` that is this tenant or is below it. Only a
    worse shortfall than before is an error.
    """
    nominal = effective_nominal(after)
    was, now = missing(before), missing(after)
    worse = {name for name in after if now[name] > was.get(name, 0)}
    for name in names:
        path = (name, *ancestors(after, name))
        for below, tenant in zip(("", *path), path, strict=False):
            if tenant in worse:
                worse.remove(tenant)
                yield name, _too_small(after, tenant, below, nominal)
                break
    types_before, types_now = missing_types(before), missing_types(after)
    fewer = {
        (name, gres_type)
        for name, kinds in types_now.items()
        for gres_type, count in kinds.items()
        if count > types_before.get(name, {}).get(gres_type, 0)
    }
    for name in names:
        path = (name, *ancestors(after, name))
        if fewest := min((short for short in fewer if short[0] in path), default=None):
            fewer = {short for short in fewer if short[0] not in path}
            yield name, _too_few(after, *fewest)


def missing(policy: Policy) -> Mapping[str, int]:
    """Millislices by which each tenant's nominal falls short of its children's sum.

    A group has a nominal of 0 and never falls short.
    """
    own = {name: int(tenant.quota.nominal_millislices) for name, tenant in policy.items()}
    nominal = effective_nominal(policy)
    return {name: nominal[name] - own[name] if own[name] else 0 for name in policy}


def missing_types(policy: Policy) -> Mapping[str, Mapping[str, int]]:
    """Instances of each type that a tenant names by which it falls short of its children's sum."""
    needed = nominal_types(policy)
    shrunk = {
        name: {
            gres_type: needed[name][gres_type] - n
            for gres_type, n in tenant.quota.type_nominals.items()
        }
        for name, tenant in policy.items()
        if tenant.quota.type_nominals
    }
    return {
        name: {gres_type: n for gres_type, n in of.items() if n > 0} for name, of in shrunk.items()
    }


def _too_few(policy: Policy, tenant: str, gres_type: str) -> InvalidInputError:
    has, needed = (
        policy[tenant].quota.type_nominals[gres_type],
        nominal_types(policy)[tenant][gres_type],
    )
    return InvalidInputError(
        Code.QUOTA_TREE,
        f"{tenant} is guaranteed {has} instances of {gres_type}; with these changes the tenants"
        f" below it need {needed}.",
        f"Give {tenant} more of {gres_type}, or those below it less.",
    )


def _too_small(
    policy: Policy, tenant: str, below: str, nominal: Mapping[str, int]
) -> InvalidInputError:
    """Build the SW-QUOTA-TREE error of a tenant whose nominal is too small.

    ``below`` is the child that needs too much; "" if the tenant's own nominal was set too low.
    """
    has, needed = policy[tenant].quota.nominal_millislices, nominal[tenant]
    if not below:
        return InvalidInputError(
            Code.QUOTA_TREE,
            f"{tenant} can't have {slices_text(has)} slices: the tenants below it have "
            f"{slices_text(needed)} ({_some(children(policy, tenant))}).",
            f"Give it {slices_text(needed)} or more, or 0: then it has exactly what they have.",
        )
    wanted, left = nominal[below], max(0, has - needed + nominal[below])
    return InvalidInputError(
        Code.QUOTA_TREE,
        f"{below} needs {slices_text(wanted)} slices; {tenant} has {slices_text(left)} of its"
        f" {slices_text(has)} left.",
        f"First: slicewise tenant-quota set {tenant} --nominal {slices_text(needed)}",
    )


def _some(names: tuple[str, ...]) -> str:
    """The first five names as text, with "..." if there are more."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")  # noqa: PLR2004


def overcommitted_millislices(policy: Policy, capacity_millislices: int) -> int:
    """Millislices by which the nominals at the top exceed the cluster's capacity; 0 if they fit."""
    nominal = effective_nominal(policy)
    top = sum(nominal[name] for name in children(policy, ""))
    return max(0, top - capacity_millislices)


def overcommitted_types(policy: Policy, instances: Mapping[str, int]) -> Mapping[str, int]:
    """Instances that the quotas at the top guarantee, of types of which there are fewer now.

    ``instances`` are those that the cluster has, by GRES type.
    """
    due = Counter[str]()
    for name in children(policy, ""):
        due.update(nominal_types(policy)[name])
    return {gres_type: n for gres_type, n in sorted(due.items()) if n > instances.get(gres_type, 0)}


def newly_overcommitted_types(
    before: Policy, after: Policy, instances: Mapping[str, int]
) -> Mapping[str, int]:
    """The same after a change, of types of which more are guaranteed than before it."""
    was, then = (overcommitted_types(policy, instances) for policy in (before, after))
    return {gres_type: n for gres_type, n in then.items() if n > was.get(gres_type, 0)}
