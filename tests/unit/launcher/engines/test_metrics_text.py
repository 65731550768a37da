"""Tests figures in an engine's metrics: a tenant's program writes them."""

import pytest

from launcher.engines.engine import TokenCounts, TokenEngine
from launcher.engines.llamacpp import LlamaCpp
from launcher.engines.metrics_text import figures
from launcher.engines.triton import Triton

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


@pytest.mark.parametrize("said", [b"", b"404", LLAMA.replace(b"300", b"many"), b"\xff\n" * 9])
def test_what_is_no_counters_is_refused(said: bytes):
    with pytest.raises(ValueError, match="no "):
        LlamaCpp().token_counts(said)


def test_labels_are_added_up_and_what_is_no_figure_is_left_out():
    said = b'a{m="x y"} 1\na{m="z"} 2.5 1700000000\nb nan\nc -1\nd inf\ne\nab 7\n'
    assert figures(said, set("abcde")) == {"a": 3.5}


def test_no_more_lines_are_read_than_an_engine_has():
    assert figures(b"x 1\n" * 50_000 + b"a 1\n", {"a"}) == {}
