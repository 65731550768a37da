"""Tests figures in an engine's metrics: a tenant's program writes them."""

import math

import pytest

from slicewise.launcher.rules.autoscale.crowding import room_of
from slicewise.launcher.rules.engines.engine import (
    FIRST_TOKEN_S,
    BatchingEngine,
    TokenCounts,
    TokenEngine,
)
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp
from slicewise.launcher.rules.engines.load import CountsSeen, EngineCounts, EngineLoad, servers_load
from slicewise.launcher.rules.engines.metrics_text import figures, histogram
from slicewise.launcher.rules.engines.sglang import SGLang
from slicewise.launcher.rules.engines.triton import Triton
from slicewise.launcher.rules.engines.vllm import Vllm

LLAMA = b"""\
# HELP llamacpp:prompt_seconds_total Prompt process time
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 1.5
llamacpp:tokens_predicted_total 300
llamacpp:tokens_predicted_seconds_total 6.25
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
llamacpp:prompt_tokens_total 40
"""


def test_llama_server_s_counters_are_read():
    engine = LlamaCpp()
    assert isinstance(engine, TokenEngine)
    assert engine.token_counts(LLAMA) == TokenCounts(1.5, 300.0, 6.25)
    assert not isinstance(Triton(), TokenEngine)


def test_llama_server_says_what_it_works_on():
    found = LlamaCpp().engine_load(LLAMA)
    counts = EngineCounts(prompt_tokens=40.0, output_tokens=300.0)
    assert found == EngineLoad(2.0, 1.0, None, counts, counts_cached=False)


VLLM = b"""\
vllm:num_requests_running{engine="0",model_name="tiny"} 4.0
vllm:num_requests_running{engine="1",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.75
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.5
vllm:num_preemptions_total{engine="0",model_name="tiny"} 9.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.79e+09
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 33.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1702.0
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 35.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 16.0
"""
SGLANG = b"""\
sglang:num_running_reqs{tp_rank="0"} 7.0
sglang:num_queue_reqs{tp_rank="0"} 2.0
sglang:token_usage{tp_rank="0"} 0.75
sglang:num_retracted_reqs{tp_rank="0"} 3.0
sglang:num_retracted_requests_total{tp_rank="0"} 9.0
sglang:prompt_tokens_total{model_name="tiny"} 33.0
sglang:generation_tokens_total{model_name="tiny"} 1702.0
sglang:cached_tokens_total{cache_source="device"} 10.0
sglang:cached_tokens_total{cache_source="host"} 6.0
"""


@pytest.mark.parametrize(
    ("engine", "said", "looked_up"), [(Vllm(), VLLM, 35.0), (SGLang(), SGLANG, 33.0)]
)
def test_vllm_and_sglang_say_what_they_work_on(engine: TokenEngine, said: bytes, looked_up: float):
    assert isinstance(engine, BatchingEngine)
    counts = EngineCounts(9.0, 33.0, 1702.0, looked_up, 16.0)
    assert engine.engine_load(said) == EngineLoad(7.0, 2.0, 0.75, counts)
    hostile = engine.engine_load(said.replace(b" 0.75", b" 1.01").replace(b" 9.0", b" -9"))
    assert (hostile.kv_cache, hostile.counts.preemptions) == (None, None)
    with pytest.raises(ValueError, match="num_"):
        engine.engine_load(said.replace(b"num_", b"numb_"))


@pytest.mark.parametrize(("engine", "name"), [(Vllm(), "vllm"), (SGLang(), "sglang")])
def test_histograms_of_vllm_and_sglang_are_read(engine: TokenEngine, name: str):
    """As vLLM 0.32.0 writes them; SGLang has one for streams and one for others."""
    said = f"""\
# TYPE {name}:time_to_first_token_seconds histogram
{name}:time_to_first_token_seconds_bucket{{engine="0",le="0.5"}} 9.0
{name}:time_to_first_token_seconds_count{{engine="0",stream="true"}} 10.0
{name}:time_to_first_token_seconds_count{{engine="0",stream="false"}} 2.0
{name}:time_to_first_token_seconds_sum{{engine="0",model_name="tiny"}} 4.5
{name}:inter_token_latency_seconds_count{{engine="0",model_name="tiny"}} 1692.0
{name}:inter_token_latency_seconds_sum{{engine="0",model_name="tiny"}} 4.25
"""
    assert engine.token_counts(said.encode()) == TokenCounts(4.5, 1692.0, 4.25, 12.0)
    with pytest.raises(ValueError, match=f"{name}:inter_token_latency_seconds_sum"):
        engine.token_counts(said.replace("latency_seconds_sum", "latency_seconds_add").encode())


@pytest.mark.parametrize("said", [b"", b"404", LLAMA.replace(b"300", b"many"), b"\xff\n" * 9])
def test_what_is_no_counters_is_refused(said: bytes):
    with pytest.raises(ValueError, match="no "):
        LlamaCpp().token_counts(said)


FIRST = "time_to_first_token_seconds"


@pytest.mark.parametrize(("engine", "name"), [(Vllm(), "vllm"), (SGLang(), "sglang")])
def test_first_tokens_are_counted_by_their_time(engine: TokenEngine, name: str):
    """SGLang has one histogram for streams and one for others."""
    one, other = (
        "".join(
            f'{name}:{FIRST}_bucket{{le="{le}",stream="{stream}"}} {count}\n'
            for le, count in (("0.25", few), ("0.5", some), ("1.0", many), ("+Inf", many + 1))
        )
        for stream, few, some, many in (("true", 0, 6, 10), ("false", 2, 2, 2))
    )
    between = f"{name}:inter_token_latency_seconds"
    sums = f"{name}:{FIRST}_sum 9\n{name}:{FIRST}_count 14\n{between}_sum 1\n{between}_count 9\n"
    firsts = engine.token_counts((one + sums + other).encode()).firsts
    found = dict(zip((*FIRST_TOKEN_S, math.inf), firsts, strict=True))
    assert sum(firsts) == pytest.approx(14)
    assert found[0.5] + found[0.4] == pytest.approx(6)
    assert found[0.4] == pytest.approx(6 * (0.4 - 0.25) / 0.25)
    assert sum(count for edge_s, count in found.items() if edge_s <= 0.25) == pytest.approx(2)
    # Above the last bound: directly above it.
    assert found[2.0] == pytest.approx(2)


BUCKETS = b'h_bucket{m="x y",le="1"} 2\nh_bucket{le="2",m="z"} 5\nh_bucket{le="+Inf"} 6\n'


def test_a_histogram_is_read_by_its_bounds():
    assert histogram(BUCKETS, "h", (1.0, 1.5, 2.0, 3.0)) == (2.0, 1.5, 1.5, 1.0, 0.0)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"h_bucket 7\n",
        b'h_bucket{le="+Inf"} 6\n',
        BUCKETS.replace(b"} 5", b"} 7"),
        BUCKETS.replace(b"} 6", b"} nan"),
        BUCKETS.replace(b"} 6", b"} inf"),
        BUCKETS.replace(b"+Inf", b"-1"),
        BUCKETS.replace(b"+Inf", b"1e"),
        BUCKETS + b"".join(b'h_bucket{le="%d"} 6\n' % bound for bound in range(3, 200)),
        BUCKETS.replace(b"} 6", b"} 1e15") * 20,
    ],
    ids=["", "no bound", "one", "falls", "nan", "inf", "below 0", "no number", "many", "too much"],
)
def test_a_histogram_that_can_t_be_one_is_left_out(said: bytes):
    assert histogram(said, "h", (1.0, 2.0)) == ()


def test_labels_are_added_up_and_what_is_no_figure_is_left_out():
    said = b'a{m="x y"} 1\na{m="z"} 2.5 1700000000\nb nan\nc -1\nd inf\ne\nab 7\n'
    assert figures(said, set("abcde")) == {"a": 3.5}


def test_what_no_server_counts_is_left_out_and_so_is_its_sum():
    """An infinite figure could not be saved, nor subtracted from the next one."""
    many = b'c{m="x"} 6e14\n' * 2
    assert figures(b"a 1e308\na 1e308\nb 1e15\nd 2e15\n" + many, set("abcd")) == {"b": 1e15}


@pytest.mark.parametrize("share_in_use", [b"5e-324", b"1e-300", b"1e-10"])
def test_a_figure_that_nothing_can_be_divided_by_is_left_out(share_in_use: bytes):
    said = b"vllm:num_requests_running 30\nvllm:num_requests_waiting 0\n"
    cache = b"vllm:kv_cache_usage_perc %s\n"
    told = servers_load([Vllm().engine_load(said + cache % share_in_use)], CountsSeen())
    assert told is not None
    assert room_of(told) is None
    nearly_none = b"".join(b"%s %s\n" % (name, share_in_use) for name in (b"a", b"b"))
    assert figures(nearly_none + b"c 0\nd 1e-9\n", set("abcd")) == {"c": 0.0, "d": 1e-9}


def test_no_more_lines_are_read_than_an_engine_has():
    assert figures(b"x 1\n" * 50_000 + b"a 1\n", {"a"}) == {}
