"""``slicewise tenant-quota propose``: quotas out of limits that another tool has set."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.slurm.account_dump import DumpedAccount, parse_account_dump
from slicewise.cluster.language.toml_text import read_toml, toml_key
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.runtime.input_file import input_text
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.limits.drift import KnownLimits, is_ours_alone
from slicewise.slurm_plugin.rules.quota.coldfront import parse_allocations
from slicewise.slurm_plugin.rules.quota.proposals import QuotaProposal, absent, proposals
from slicewise.slurm_plugin.rules.quota.quota_file import FileFaults, table_update
from slicewise.slurm_plugin.rules.quota.tenants import changed, updated
from slicewise.slurm_plugin.rules.quota.types import LimitKey, Policy, TenantUpdate

_QUOTA = "slicewise_quota"
_NUMBER = re.compile(r"(0|[1-9][0-9]*)(\.[0-9]+)?")


def read_accounts(file: Path) -> tuple[DumpedAccount, ...]:
    """Return the accounts of a dump of sacctmgr or of an answer of ColdFront; - is standard input.

    Raises InvalidInputError (SW-INPUT-FILE, SW-VALUE).
    """
    text = input_text(file)
    # A dump begins with a comment or a cluster.
    return (parse_allocations if text.lstrip().startswith("[") else parse_account_dump)(text)


def set_by_others(
    accounts: Sequence[DumpedAccount], known: KnownLimits
) -> tuple[DumpedAccount, ...]:
    """Return the accounts without limits on types that Slicewise made out of its own quotas.

    A dump of the running Slurm has these, too, and they are no other tool's wish.
    """
    return tuple(
        replace(
            account,
            grp_tres={
                name: count
                for name, count in account.grp_tres.items()
                if not is_ours_alone(
                    LimitKey("account", account.account, f"grptres={name}"), str(count), known
                )
            },
        )
        for account in accounts
    )


def proposal_text(
    accounts: Sequence[DumpedAccount],
    policy: Policy,
    settings: Settings,
    gpu_millislices: Millislices | None,
) -> str:
    """Return a file of quotas with a table for each account whose tenant has other ones.

    ``gpu_millislices`` is what one GPU without a type stands for; None: the dearest type. Raises
    InvalidInputError (SW-INPUT-FILE), also for words of the site's own quotas.
    """
    dearest = max(settings.costs.values(), default=0)
    whole = dearest if gpu_millislices is None else gpu_millislices
    faults = FileFaults(_QUOTA)
    own = {account.account: _own_words(account, faults) for account in accounts if account.quota}
    tables, left_out = [], []
    for proposal in proposals(accounts, policy, settings.costs, whole):
        named = replace(proposal, words={**proposal.words, **own.get(proposal.tenant, {})})
        refusal = _refusal(proposal.tenant, policy)
        if refusal is not None:
            left_out.append(_comment(f"{proposal.tenant!r} can't be a tenant: {refusal}"))
        elif named.words and _changes(named, policy, settings, faults):
            tables.append(_table(named))
        else:
            left_out += [_comment(f"{proposal.tenant}: {note}") for note in named.notes]
    faults.check()
    if gone := absent(accounts, policy):
        left_out.append(_comment(f"Tenants that are not in it, and stay: {', '.join(gone)}"))
    head = "# What slicewise tenant-quota apply reads: see there what it would do, and apply it.\n"
    if not tables:
        head = "# Every account's quota is as its limits say: there is nothing to set.\n"
    return head + "".join(left_out) + "".join(f"\n{table}" for table in tables)


def _own_words(account: DumpedAccount, faults: FileFaults) -> Mapping[str, object]:
    """Read the inside of an inline table of TOML; what the file of quotas would not take is noted.

    A tenant's place is Slurm's, and what another tool no longer has is not removed.
    """
    try:
        content = read_toml(f"it = {{ {account.quota} }}", parse_float=str)
    except ValueError as error:
        why = f"{_QUOTA} {account.quota!r} is no TOML: {error}."
    else:
        words = content["it"]
        if len(content) == 1 and not words.keys() & {"parent", "remove"}:
            return dict(words)
        why = f"{_QUOTA} {account.quota!r} may say what tenant-quota set and budget set take."
    faults.add(account.account, InvalidInputError(Code.INPUT_FILE, why))
    return {}


def _refusal(name: str, policy: Policy) -> SlicewiseError | None:
    if name in policy:
        return None
    try:
        changed(policy, TenantUpdate(name))
    except InvalidInputError as error:
        return error
    return None


def _changes(
    proposal: QuotaProposal, policy: Policy, settings: Settings, faults: FileFaults
) -> bool:
    update = table_update(proposal.tenant, dict(proposal.words), policy, settings, faults)
    before = policy.get(proposal.tenant)
    return before is None or updated(before, update) != before


def _table(proposal: QuotaProposal) -> str:
    notes = "".join(map(_comment, proposal.notes))
    lines = "".join(f"{toml_key(key)} = {_value(value)}\n" for key, value in proposal.words.items())
    return f"{notes}[tenants.{toml_key(proposal.tenant)}]\n{lines}"


def _comment(text: str) -> str:
    """Return a comment of one line, whatever another tool has written into ``text``."""
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return f"# {shown}\n"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(k)} = {_value(v)}' for k, v in value.items())} }}"
    text = str(value)
    return text if _NUMBER.fullmatch(text) else json.dumps(text, ensure_ascii=False)
