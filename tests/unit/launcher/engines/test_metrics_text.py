"""Tests figures in an engine's metrics: a tenant's program writes them."""

import pytest

from launcher.engines.engine import TokenCounts, TokenEngine
from launcher.engines.llamacpp import LlamaCpp
from launcher.engines.metrics_text import figures
from launcher.engines.sglang import SGLang
from launcher.engines.triton import Triton
from launcher.engines.vllm import Vllm

LLAMA = b"""\
# HELP llamacpp:prompt_seconds_total Prompt process time
# TYPE llamacpp:prompt_seconds_total counter
llamacpp:prompt_seconds_total 1.5
llamacpp:tokens_predicted_total 300
llamacpp:tokens_predicted_seconds_total 6.25
llamacpp:requests_processing 2
"""


def test_llama_server_s_counters_are_read():
    engine = LlamaCpp()
    assert isinstance(engine, TokenEngine)
    assert engine.token_counts(LLAMA) == TokenCounts(1.5, 300.0, 6.25)
    assert not isinstance(Triton(), TokenEngine)


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


def test_labels_are_added_up_and_what_is_no_figure_is_left_out():
    said = b'a{m="x y"} 1\na{m="z"} 2.5 1700000000\nb nan\nc -1\nd inf\ne\nab 7\n'
    assert figures(said, set("abcde")) == {"a": 3.5}


def test_what_no_server_counts_is_left_out_and_so_is_its_sum():
    """An infinite figure could not be saved, nor subtracted from the next one."""
    many = b'c{m="x"} 6e14\n' * 2
    assert figures(b"a 1e308\na 1e308\nb 1e15\nd 2e15\n" + many, set("abcd")) == {"b": 1e15}


def test_no_more_lines_are_read_than_an_engine_has():
    assert figures(b"x 1\n" * 50_000 + b"a 1\n", {"a"}) == {}
