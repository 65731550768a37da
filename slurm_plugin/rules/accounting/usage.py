"""Which records of usage can be booked: what a client or an engine had a say in is checked here."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from slicewise.cluster.language.persons import NOBODY
from slicewise.cluster.rpc.usage_messages import RefusedRecord, UsageRecord

OLDEST_S = 30 * 86_400
"""A request that ended longer ago is not booked: records are deleted some day, and one that was
deleted must not be booked again. Far less than the least time for which they are kept."""
_AHEAD_S = 3600
"""Clocks of hosts may differ a little."""
_MOST_TOKENS = 2**31 - 1
_MOST = 2**53
_MOST_FIRST_MS = OLDEST_S * 1000

_TENANT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,63}")
_PERSON = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,127}")
_KEY_ID = re.compile(r"[A-Za-z0-9]{1,32}")
_SERVICE = re.compile(r"[A-Za-z0-9_.@+-]{1,64}/[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True)
class CheckedBatch:
    """A batch's records that can be booked, in the order of their numbers, and the others."""

    good: tuple[UsageRecord, ...]
    refused: tuple[RefusedRecord, ...]


def checked(records: Iterable[UsageRecord], now_s: float) -> CheckedBatch:
    """Part a batch; of two records with one number the first counts."""
    good: dict[int, UsageRecord] = {}
    refused = []
    for record in records:
        why = fault(record, now_s)
        if not why and good.get(record.number, record) != record:
            why = "another record of this batch has the same number"
        if why:
            refused.append(RefusedRecord(number=record.number, why=why))
        else:
            good[record.number] = record
    return CheckedBatch(tuple(good[number] for number in sorted(good)), tuple(refused))


def fault(record: UsageRecord, now_s: float) -> str:
    """Why a record can't be booked; "" if it can."""
    return _fault_of_names(record) or _fault_of_times(record, now_s) or _fault_of_amounts(record)


def _fault_of_names(record: UsageRecord) -> str:
    if not _TENANT.fullmatch(record.payer):
        return "payer: this is no tenant's name"
    if record.person != NOBODY and not _PERSON.fullmatch(record.person):
        return "person: this is no person's name"
    if record.key_id != NOBODY and not _KEY_ID.fullmatch(record.key_id):
        return "key_id: this is no key's id"
    if not _SERVICE.fullmatch(record.service):
        return "service: this is not OWNER/NAME"
    return ""


def _fault_of_times(record: UsageRecord, now_s: float) -> str:
    if not 0 <= record.start_ms <= record.end_ms:
        return "end_ms: it ended before it started"
    if record.end_ms > (now_s + _AHEAD_S) * 1000:
        return "end_ms: it ended in the future; compare the hosts' clocks"
    if record.end_ms < (now_s - OLDEST_S) * 1000:
        return f"end_ms: it ended more than {OLDEST_S // 86_400} days ago"
    if not 0 <= (record.first_token_ms or 0) <= _MOST_FIRST_MS:
        return "first_token_ms: out of range"
    return ""


def _fault_of_amounts(record: UsageRecord) -> str:
    if not 0 <= record.number < _MOST:
        return "number: out of range"
    run = (record.array_job_id, record.index, record.run_start_s)
    if not all(0 <= (part or 0) < _MOST for part in run):
        return "array_job_id, index, run_start_s: out of range"
    if not (
        0 <= record.prompt_tokens <= _MOST_TOKENS and 0 <= record.output_tokens <= _MOST_TOKENS
    ):
        return f"tokens: there are 0 to {_MOST_TOKENS:,} in a request"
    if not 0 <= record.cached_prompt_tokens <= record.prompt_tokens:
        return "cached_prompt_tokens: not a part of the prompt's"
    return ""
