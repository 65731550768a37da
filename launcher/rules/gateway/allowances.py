"""What subjects with a limit of tokens have taken at the gateway, and may take."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.rpc.usage_messages import (
    MOST_SUBJECTS,
    TokenAllowance,
    WantedAllowance,
)

MOST_HELD_TOKENS = 8192
"""Tokens that one request takes at most before its answer: a longer one must not lock a small
limit, and what it uses beyond that is taken at its end."""
_SUBJECT = re.compile(r"[A-Za-z0-9_./@+-]{1,200}")
_HEADROOM_REQUESTS = 4
"""Requests for which a subject shall find tokens until it is asked for again."""


def subjects_of(payer: str, person: str, key_id: str) -> tuple[str, ...]:
    """Return whose limits a request may meet, by the names that the gateway's maps have."""
    named = [payer]
    named += [f"{payer}/{person}"] if person != NOBODY else []
    named += [f"{payer}//{key_id}"] if key_id != NOBODY else []
    return tuple(named)


@dataclass(frozen=True)
class TakenTokens:
    """Tokens of a subject since HAProxy's process began.

    Attributes:
        ended: of requests that have ended, as they used them.
        held: of those that have not.
    """

    ended: int
    held: int


def parse_taken(shown: Mapping[str, str]) -> Mapping[str, TakenTokens]:
    """Add up what each thread has taken. Raises ValueError for anything else."""
    sums: dict[str, TakenTokens] = {}
    for key, value in shown.items():
        subject, (ended, held) = key.rpartition("@")[0], map(int, value.split("/"))
        before = sums.get(subject, TakenTokens(0, 0))
        sums[subject] = TakenTokens(before.ended + ended, before.held + held)
    return sums


def wanted(
    taken: Mapping[str, TakenTokens], unposted: Mapping[str, int]
) -> tuple[WantedAllowance, ...]:
    """Return what the gateway wants to hold of each subject that has taken something."""
    return tuple(
        WantedAllowance(
            **_named(subject),
            tokens=of_subject.held
            + unposted.get(subject, 0)
            + _HEADROOM_REQUESTS * MOST_HELD_TOKENS,
        )
        for subject, of_subject in list(taken.items())[:MOST_SUBJECTS]
    )


def _named(subject: str) -> Mapping[str, str]:
    tenant, has_key, key_id = subject.partition("//")
    if has_key:
        return {"tenant": tenant, "key_id": key_id}
    tenant, _, person = subject.partition("/")
    return {"tenant": tenant, "person": person}


def bounds(
    allowances: Iterable[TokenAllowance],
    taken: Mapping[str, TakenTokens],
    unposted: Mapping[str, int],
    until_s: int,
    boot: str,
) -> Mapping[str, str]:
    """Return the entries of the gateway's map: how much may have been taken in all, until when.

    What has ended and is not unposted was posted: the ledger has taken it off what is left. A
    subject with a name that can be none is left out. ``boot`` names the process that has taken.
    """
    entries = {}
    for allowance in allowances:
        subject = _subject(allowance)
        if not _SUBJECT.fullmatch(subject):
            continue
        ended = taken.get(subject, TakenTokens(0, 0)).ended
        posted = max(0, ended - unposted.get(subject, 0))
        limit = allowance.why.partition(":")[0] or "tokens"
        entries[subject] = (
            f"{posted + allowance.tokens}/{until_s}/{'exact' if allowance.is_exact else 'open'}"
            f"/{allowance.retry_s or 1}/{limit}/{boot}"
        )
    return entries


def expired(entries: Mapping[str, str]) -> Mapping[str, str]:
    """Return what HAProxy begins with: limits of which nothing is set aside yet."""
    parts = {subject: entry.split("/") for subject, entry in entries.items()}
    return {subject: f"0/0/{part[2]}/1/tokens/-" for subject, part in parts.items()}


def _subject(allowance: TokenAllowance) -> str:
    if allowance.key_id:
        return f"{allowance.tenant}//{allowance.key_id}"
    return f"{allowance.tenant}/{allowance.person}" if allowance.person else allowance.tenant
