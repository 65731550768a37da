"""Batches of usage on the wire."""

from slicewise.cluster.rpc.messages import REQUEST_LIMIT
from slicewise.cluster.rpc.usage_messages import (
    MOST_RECORDS,
    MOST_RUNS,
    MOST_SUBJECTS,
    AllowancesRequest,
    EngineCounters,
    EngineCountersRequest,
    PoolUse,
    PoolUsesRequest,
    UsagePostRequest,
    UsageRecord,
    WantedAllowance,
)

LARGEST = 2**53 - 1
SERVICE = f"{'o' * 64}/{'s' * 63}"


def test_a_batch_of_the_longest_records_fits_into_a_body() -> None:
    record = UsageRecord(
        number=LARGEST,
        payer="p" * 64,
        person="q" * 128,
        key_id="k" * 12,
        service=SERVICE,
        array_job_id=2**32 - 1,
        index=2**32 - 1,
        run_start_s=9_999_999_999,
        start_ms=9_999_999_999_999,
        end_ms=9_999_999_999_999,
        prompt_tokens=2**31,
        cached_prompt_tokens=2**31,
        output_tokens=2**31,
        first_token_ms=2**31,
        outcome="failed",
    )
    batch = UsagePostRequest(boot="b" * 64, records=(record,) * MOST_RECORDS)
    assert len(batch.sent()[1]) <= REQUEST_LIMIT


def test_so_do_the_longest_counters_and_wishes() -> None:
    run = EngineCounters(
        array_job_id=2**32 - 1,
        index=2**32 - 1,
        run_start_s=9_999_999_999,
        service=SERVICE,
        prompt_tokens=LARGEST,
        output_tokens=LARGEST,
        seen_s=1_000_000_000.123457,
    )
    counters = EngineCountersRequest(runs=(run,) * MOST_RUNS)
    assert len(counters.sent()[1]) <= REQUEST_LIMIT
    use = PoolUse(
        array_job_id=2**32 - 1,
        index=2**32 - 1,
        run_start_s=9_999_999_999,
        service=SERVICE,
        hour_s=9_999_997_200,
        used_ms=3_600_000,
    )
    uses = PoolUsesRequest(seen_by="b" * 64, uses=(use,) * MOST_RUNS)
    assert len(uses.sent()[1]) <= REQUEST_LIMIT
    wish = WantedAllowance(tenant="t" * 64, person="p" * 128, tokens=LARGEST)
    allowances = AllowancesRequest(boot="b" * 64, wanted=(wish,) * MOST_SUBJECTS)
    assert len(allowances.sent()[1]) <= REQUEST_LIMIT


def test_the_wire_takes_a_bad_record_with_good_ones() -> None:
    fields = {"payer": "?", "service": "", "start_ms": 5, "end_ms": 1, "output_tokens": -1}
    request = UsagePostRequest.model_validate(
        {"boot": "b", "records": [{"number": -1, "prompt_tokens": 10**30, **fields}]}
    )
    assert request.records[0].prompt_tokens == 10**30
