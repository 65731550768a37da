"""What subjects with a limit of tokens have taken at the gateway, and may take."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.rpc.usage_messages import (
    MOST_SUBJECTS,
    TokenAllowance,
    WantedAllowance,
)
from slicewise.launcher.rules.gateway.subjects import can_be, named, subject_of

MOST_HELD_TOKENS = 8192
"""Tokens that one request takes at most before its answer: a longer one must not lock a small
limit, and what it uses beyond that is taken at its end."""
_HEADROOM_REQUESTS = 4
"""Requests for which a subject shall find tokens until it is asked for again."""


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
        _wanted(subject, of_subject.held + unposted.get(subject, 0))
        for subject, of_subject in list(taken.items())[:MOST_SUBJECTS]
    )


def _wanted(subject: str, used: int) -> WantedAllowance:
    tenant, person, key_id = named(subject)
    tokens = used + _HEADROOM_REQUESTS * MOST_HELD_TOKENS
    return WantedAllowance(tenant=tenant, person=person, key_id=key_id, tokens=tokens)


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
    Behind the second of the next try stand the limit, whose budget it is, and until when nobody has
    any of it: ``-`` for what is not so, ``?`` for a date that is not known.
    """
    entries = {}
    for allowance in allowances:
        subject = subject_of(allowance.tenant, allowance.person, allowance.key_id)
        if not can_be(subject):
            continue
        ended = taken.get(subject, TakenTokens(0, 0)).ended
        posted = max(0, ended - unposted.get(subject, 0))
        limit, payer = allowance.limit or "tokens", "-"
        if can_be(allowance.payer) and "/" not in allowance.payer:
            payer = allowance.payer
        until = "-" if allowance.used_up_until is None else allowance.used_up_until or "?"
        entries[subject] = (
            f"{posted + allowance.tokens}/{until_s}/{'exact' if allowance.is_exact else 'open'}"
            f"/{allowance.retry_s or 1}/{limit}/{payer}/{until}/{boot}"
        )
    return entries


def expired(entries: Mapping[str, str]) -> Mapping[str, str]:
    """Return what HAProxy begins with: limits of which nothing is set aside yet."""
    parts = {subject: entry.split("/") for subject, entry in entries.items()}
    return {subject: f"0/0/{part[2]}/1/tokens/-/-/-" for subject, part in parts.items()}
