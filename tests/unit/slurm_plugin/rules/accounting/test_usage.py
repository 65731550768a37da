"""Which records of usage are booked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.cluster.rpc.usage_messages import UsageRecord
from slicewise.slurm_plugin.rules.accounting.usage import OLDEST_S, checked, fault

NOW_S = 1_764_450_000.0
NOW_MS = int(NOW_S * 1000)
GOOD = UsageRecord(
    number=1,
    payer="vision",
    person="alice@site.org",
    key_id="0123456789ab",
    service="science/chat",
    array_job_id=814,
    index=3,
    run_start_s=1_764_000_000,
    start_ms=NOW_MS - 2000,
    end_ms=NOW_MS,
    prompt_tokens=100,
    cached_prompt_tokens=40,
    output_tokens=7,
    first_token_ms=200,
)


def changed(**fields: object) -> UsageRecord:
    return GOOD.model_copy(update=fields)


@pytest.mark.parametrize(
    "record",
    [
        GOOD,
        changed(person="-", key_id="-"),
        changed(array_job_id=None, index=None, run_start_s=None, first_token_ms=None),
        changed(prompt_tokens=0, cached_prompt_tokens=0, output_tokens=0, outcome="failed"),
        changed(end_ms=NOW_MS + 60_000),
    ],
)
def test_what_is_in_bounds_is_booked(record: UsageRecord):
    assert fault(record, NOW_S) == ""


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("payer", ""),
        ("payer", "-"),
        ("payer", "vision\x00"),
        ("payer", "v" * 65),
        ("person", "alice'; DROP"),
        ("person", "--"),
        ("key_id", "x" * 33),
        ("service", "chat"),
        ("service", "science/chat/more"),
        ("number", -1),
        ("number", 2**63),
        ("prompt_tokens", -1),
        ("prompt_tokens", 2**31),
        ("output_tokens", 10**30),
        ("cached_prompt_tokens", 101),
        ("array_job_id", -1),
        ("index", 2**63),
        ("start_ms", NOW_MS + 1),
        ("start_ms", -1),
        ("end_ms", NOW_MS + 7_200_000),
        ("end_ms", NOW_MS - (OLDEST_S + 1) * 1000),
        ("first_token_ms", -1),
    ],
)
def test_what_is_not_is_refused_by_itself(field: str, bad: object):
    good = changed(number=2)
    batch = checked((changed(**{field: bad}), good), NOW_S)
    assert batch.good == (good,)
    (refused,) = batch.refused
    assert refused.why


def test_of_two_records_with_one_number_the_first_counts():
    batch = checked((GOOD, GOOD, changed(output_tokens=9)), NOW_S)
    assert batch.good == (GOOD,)
    assert [one.number for one in batch.refused] == [1]


@given(st.lists(st.integers(0, 9).map(lambda number: changed(number=number))))
def test_they_are_booked_in_the_order_of_their_numbers(records: list[UsageRecord]):
    numbers = [record.number for record in checked(records, NOW_S).good]
    assert numbers == sorted(set(numbers))
    assert set(numbers) == {record.number for record in records}
