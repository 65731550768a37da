"""Tests the replay of conversations."""

import json
import lzma
from pathlib import Path

import pytest

from studies.autoscale.traces import TraceError
from studies.prefix_routing import (
    BOUNDED,
    FREE,
    SLOTS,
    Policy,
    Pool,
    Replica,
    Request,
    measured,
    read,
)


def request(at_s: float, conversation: int, *blocks: int) -> Request:
    """Of 512 tokens a block, and an answer of a hundred tokens (3 s)."""
    every = (0, conversation, *blocks)
    return Request(at_s, every, 512 * len(every), 100)


def test_a_prompt_s_beginning_is_kept_and_the_least_recently_used_block_goes():
    replica = Replica(room=4)
    assert replica.cached_tokens(request(0, 1, 2)) == 0
    assert replica.cached_tokens(request(0, 1, 2, 3)) == 3 * 512
    # Its last token is always computed.
    assert replica.cached_tokens(request(0, 1, 2, 3)) == 4 * 512 - 1
    assert replica.cached_tokens(request(0, 9)) == 512
    assert replica.cached_tokens(request(0, 1, 2)) == 512


@pytest.mark.parametrize("policy", [Policy(), Policy(2.0), FREE, BOUNDED])
def test_a_conversation_stays_at_its_replica_while_that_is_not_overloaded(policy: Policy):
    pool = Pool(4, 1000, policy)
    pool.run(request(10.0 * n, 1, n) for n in range(20))
    assert sum(bool(one.kept) for one in pool.replicas) == 1
    spread = Pool(4, 1000, None)
    spread.run(request(0.0, 1, n) for n in range(20))
    assert all(one.kept for one in spread.replicas)


def test_what_its_replica_has_no_place_for_waits_there_or_goes_elsewhere():
    crowd = [request(0.0, 1) for _ in range(SLOTS + 4)]
    waits, goes = Pool(2, 1000, Policy()), Pool(2, 1000, FREE)
    for pool in (waits, goes):
        pool.run(crowd)
    assert max(goes.first_token_s) < 1 < max(waits.first_token_s)
    assert len(goes.first_token_s) == len(waits.first_token_s) == len(crowd)


def test_one_conversation_does_not_fill_its_replica_beside_empty_ones():
    hot = [request(0.0, 1) for _ in range(SLOTS)]
    fills, spreads = Pool(4, 1000, FREE), Pool(4, 1000, BOUNDED)
    for pool in (fills, spreads):
        pool.run(hot)
    assert sum(bool(one.kept) for one in fills.replicas) == 1
    assert sum(bool(one.kept) for one in spreads.replicas) > 1


def test_arrivals_are_spread_over_a_tick_of_the_clock(tmp_path: Path):
    rows = [
        {"timestamp": at, "hash_ids": [0, 1], "input_length": 900, "output_length": 5}
        for at in (0, 0, 3000)
    ]
    path = tmp_path / "trace.jsonl.xz"
    with lzma.open(path, "wt") as text:
        text.writelines(json.dumps(row) + "\n" for row in rows)
    assert [one.at_s for one in read(path)] == [0.0, 1.5, 3.0]
    with pytest.raises(TraceError):
        read(tmp_path / "none")


def test_the_hash_finds_more_of_what_was_computed_than_least_connections():
    """Conversations that come in turn: each finds its prefix where it was before."""
    requests = [
        Request(
            3.0 * turn,
            (0, 100 + talk, *range(1000 * talk + 200, 1000 * talk + 200 + turn)),
            512 * (2 + turn),
            200,
        )
        for turn in range(60)
        for talk in range(10)
    ]
    by_hash, by_least = (
        measured(requests, 8, 8000, name)["prefix_hits"]
        for name in ("hash if free, bound 1.25", "leastconn")
    )
    assert 1 > by_hash > by_least > 0
