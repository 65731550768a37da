"""Proposes quotas for accounts that another tool, or Slurm itself, limits already.

Slurm's ``GrpTRES`` is a limit: the limits of all accounts below one may exceed its own, because
they are not used up at the same time. A nominal is a guarantee, and the nominals below a tenant
must fit into its own. So where limits exceed the one above them, each account is guaranteed its
share of that, and may borrow up to its limit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.gres import gpu_types_of_tres, tres_name
from slicewise.cluster.language.slurm.account_dump import DumpedAccount
from slicewise.cluster.language.units import slices_text
from slicewise.slurm_plugin.rules.quota.accounts import Accounts
from slicewise.slurm_plugin.rules.quota.types import ROOT_ACCOUNT, Policy

Words = Mapping[str, object]
"""A table of a file of quotas: its keys and values."""

_ANY_GPU = "gres/gpu"
_MILLISLICE_MIN_PER_SLICE_HOUR = 60_000


@dataclass(frozen=True)
class QuotaProposal:
    """What to set for an account, and what to say of it.

    Attributes:
        words: {} if only the notes are of interest, as for limits that can't be read.
        notes: what was left out of ``words``, or assumed for them.
    """

    tenant: str
    words: Words = field(hash=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Part:
    """What an account's limits mean in slices; None where it has no such limit."""

    limit_millislices: int | None
    budget_millislice_min: int | None
    types: Mapping[str, int] = field(hash=False)
    notes: tuple[str, ...]


def proposals(
    accounts: Sequence[DumpedAccount],
    policy: Policy,
    costs: Mapping[str, int],
    gpu_millislices: int,
) -> tuple[QuotaProposal, ...]:
    """Propose a quota for every account, each after the account above it.

    The accounts' places are left to Slurm. ``gpu_millislices`` is what one ``gres/gpu`` without a
    type stands for. Raises InvalidInputError (SW-INPUT-FILE) if an account is above itself.
    """
    known = {account.account: account for account in accounts if account.account != ROOT_ACCOUNT}
    parts = {name: _part(account, costs, gpu_millislices) for name, account in known.items()}
    parents = {name: account.parent for name, account in known.items()}
    depths = {name: _depth(name, parents) for name in parents}
    downwards = sorted(parents, key=lambda name: (depths[name], name))
    limits = {
        name: part.limit_millislices
        for name, part in parts.items()
        if part.limit_millislices is not None
    }
    nominals = _nominals(downwards, parents, limits)
    return tuple(
        QuotaProposal(
            name,
            {
                **_quota(
                    parts[name],
                    nominals.get(name),
                    is_new=name not in policy and not known[name].unread,
                ),
                **_budget(parts[name], name, policy),
            },
            parts[name].notes,
        )
        for name in downwards
    )


def _part(account: DumpedAccount, costs: Mapping[str, int], gpu_millislices: int) -> _Part:
    if account.unread:
        note = f"its limits can't be read: {', '.join(map(repr, account.unread))}"
        return _Part(None, None, {}, (note,))
    held = gpu_types_of_tres({name: str(count) for name, count in account.grp_tres.items()})
    others = sorted(
        {"billing", *map(tres_name, held.keys() - costs.keys())} & account.grp_tres.keys()
    )
    notes = [f"its limit on {name} is not taken over" for name in others]
    if "billing" in account.grp_tres_mins:
        notes.append("its minutes of billing are not taken over")
    return _Part(
        _slices(account.grp_tres, costs, gpu_millislices),
        _slices(account.grp_tres_mins, costs, gpu_millislices),
        {gres_type: count for gres_type, count in held.items() if gres_type in costs},
        tuple(notes),
    )


def _slices(tres: Mapping[str, int], costs: Mapping[str, int], gpu_millislices: int) -> int | None:
    """Return the millislices of the GPUs; None without a limit on any.

    Where all GPUs and some types are limited, both limits hold.
    """
    typed = gpu_types_of_tres({name: str(count) for name, count in tres.items()})
    bounds = [
        sum(count * costs[gres_type] for gres_type, count in typed.items() if gres_type in costs)
    ]
    if not typed.keys() & costs.keys():
        bounds = []
    if _ANY_GPU in tres:
        bounds.append(tres[_ANY_GPU] * gpu_millislices)
    return min(bounds, default=None)


def _nominals(
    downwards: Sequence[str], parents: Accounts, limits: Mapping[str, int]
) -> Mapping[str, int]:
    """Return what each account with a limit is guaranteed, in millislices."""
    below: dict[str, list[str]] = {}
    for name, parent in parents.items():
        below.setdefault(parent if parent in parents else "", []).append(name)
    wanted: dict[str, int] = {}
    for name in reversed(downwards):
        wanted[name] = limits.get(name, sum(wanted[child] for child in below.get(name, ())))
    given = {name: wanted[name] for name in below.get("", ())}
    for name in downwards:
        children = below.get(name, ())
        asked = sum(wanted[child] for child in children)
        for child in children:
            fits = asked <= given[name]
            given[child] = wanted[child] if fits else wanted[child] * given[name] // asked
    return {name: given[name] for name in limits}


def _quota(part: _Part, nominal: int | None, *, is_new: bool) -> Words:
    if nominal is None or part.limit_millislices is None:
        return {"nominal": "0"} if is_new else {}
    words: dict[str, object] = {"nominal": slices_text(nominal)}
    if rest := part.limit_millislices - nominal:
        words["borrowing_limit"] = slices_text(rest)
    if part.types:
        words["limits"] = dict(sorted(part.types.items()))
    return words


def _budget(part: _Part, name: str, policy: Policy) -> Words:
    """Return a budget that is given once; one that a tenant has in periods stays."""
    before = policy[name].budget if name in policy else None
    if part.budget_millislice_min is None or (before is not None and before.period != "none"):
        return {}
    hundredths = part.budget_millislice_min * 100 // _MILLISLICE_MIN_PER_SLICE_HOUR
    amount = f"{hundredths // 100}.{hundredths % 100:02d}".removesuffix(".00")
    return {"budget": {"period": "none", "amount": amount}}


def _depth(name: str, parents: Accounts) -> int:
    above: list[str] = []
    while name in parents:
        if name in above:
            raise InvalidInputError(
                Code.INPUT_FILE, f"Account {name} is above itself.", "Mend its parent there."
            )
        above.append(name)
        name = parents[name]
    return len(above)


def absent(accounts: Iterable[DumpedAccount], policy: Policy) -> tuple[str, ...]:
    """Return the tenants for which the file has no account."""
    return tuple(sorted(policy.keys() - {account.account for account in accounts}))
