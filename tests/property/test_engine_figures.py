"""Property: whatever a replica says of itself, what is read is finite, not negative and bounded."""

from bisect import bisect_left
from dataclasses import astuple
from math import ceil, inf, isfinite

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from slicewise.launcher.rules.autoscale.tokens import TokensDone, learn_tokens
from slicewise.launcher.rules.engines.engine import (
    FIRST_TOKEN_S,
    BatchingEngine,
    TokenCounts,
    TokenEngine,
)
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp
from slicewise.launcher.rules.engines.load import CountsSeen, EngineCounts, servers_load
from slicewise.launcher.rules.engines.metrics_text import histogram
from slicewise.launcher.rules.engines.sglang import SGLang
from slicewise.launcher.rules.engines.vllm import Vllm

ENGINES: tuple[TokenEngine, ...] = (Vllm(), SGLang(), LlamaCpp())
VALUES = st.sampled_from(["0", "3", "2.5", "1e15", "1e16", "1e308", "nan", "+Inf", "-1", "x", ""])
NAMES = st.sampled_from(
    [
        *(
            f"{prefix}:{name}_{kind}"
            for prefix in ("vllm", "sglang")
            for name in ("time_to_first_token_seconds", "inter_token_latency_seconds")
            for kind in ("sum", "count", "bucket")
        ),
        "llamacpp:prompt_seconds_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:tokens_predicted_seconds_total",
    ]
)
LABELS = st.sampled_from(
    ["", '{le="0.1"}', '{le="1",m="a b"}', '{le="+Inf"}', '{le="nan"}', '{le="1e999"}', "{", "} "]
)
LINES = st.tuples(NAMES, LABELS, VALUES).map(lambda parts: f"{parts[0]}{parts[1]} {parts[2]}\n")


@given(st.lists(st.lists(LINES, max_size=30).map("".join), max_size=6))
@settings(max_examples=examples(100))
def test_what_a_hostile_replica_says_leaves_finite_figures(answers: list[str]):
    for engine in ENGINES:
        known = TokensDone()
        for said in answers:
            try:
                counts = engine.token_counts(said.encode())
            except ValueError:
                continue
            assert len(counts.firsts) in {0, len(FIRST_TOKEN_S) + 1}
            known = learn_tokens(known, counts, 1)
            for found in (known.to_first_s, known.first_p95_s, known.per_token_s):
                assert found is None or (isfinite(found) and found >= 0)
            assert all(isfinite(one) and one >= 0 for one in known.firsts)


GAUGES = st.sampled_from(
    [
        *(f"vllm:num_requests_{one}" for one in ("running", "waiting")),
        *(f"sglang:num_{one}_reqs" for one in ("running", "queue")),
        *(f"llamacpp:requests_{one}" for one in ("processing", "deferred")),
        *("vllm:kv_cache_usage_perc", "sglang:token_usage"),
        *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
        *("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),
    ]
)
SAID = st.tuples(GAUGES, LABELS, VALUES).map(lambda parts: f"{parts[0]}{parts[1]} {parts[2]}\n")


@given(st.lists(st.lists(SAID, max_size=40).map("".join), max_size=6))
@settings(max_examples=examples(100))
def test_what_hostile_replicas_say_of_their_load_is_bounded(answers: list[str]):
    for engine in ENGINES:
        assert isinstance(engine, BatchingEngine)
        seen, loads, before = CountsSeen(), [], EngineCounts()
        for said in answers:
            try:
                load = engine.engine_load(said.encode())
            except ValueError:
                continue
            loads.append(load)
            seen, before = seen.later(before, load.counts), load.counts
            found = servers_load(loads, seen)
            assert found is not None
            assert 0 <= found.running <= 2**53 >= found.waiting >= 0
            for share in (found.kv_cache, found.prefix_hits):
                assert share is None or 0 <= share <= 1
            assert all(one is None or 0 <= one <= 2**53 for one in astuple(found.counts))


@given(
    st.lists(st.floats(0.0005, 3000.0), min_size=20, max_size=60),
    st.sets(st.sampled_from(FIRST_TOKEN_S), min_size=1),
)
@settings(max_examples=examples(200))
def test_the_p95_lies_in_the_bucket_that_has_it(times_s: list[float], bounds: set[float]):
    """Whichever of our bounds an engine has."""
    said = "".join(
        f'h_bucket{{le="{"+Inf" if bound == inf else bound}"}} '
        f"{sum(one <= bound for one in times_s)}\n"
        for bound in (*sorted(bounds), inf)
    )
    zeros = TokenCounts(0.0, 0.0, 0.0, 0.0, (0.0,) * (len(FIRST_TOKEN_S) + 1))
    firsts = histogram(said.encode(), "h", FIRST_TOKEN_S)
    now = TokenCounts(sum(times_s), 1.0, 1.0, len(times_s), firsts)
    found = learn_tokens(learn_tokens(TokensDone(), zeros, 0), now, 0).first_p95_s
    assert found is not None
    true_s = sorted(times_s)[ceil(0.95 * len(times_s)) - 1]
    edges = [0.0, *sorted(bounds)]
    at = bisect_left(edges, true_s)
    if at == len(edges):
        # Above all of its bounds: directly above them.
        above = bisect_left(FIRST_TOKEN_S, edges[-1]) + 1
        assert edges[-1] <= found <= FIRST_TOKEN_S[min(above, len(FIRST_TOKEN_S) - 1)]
    else:
        assert edges[at - 1] - 1e-9 <= found <= edges[at] * (1 + 1e-9)
