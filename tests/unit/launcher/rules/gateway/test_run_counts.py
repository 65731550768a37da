from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad
from slicewise.launcher.rules.gateway.run_counts import RunCounts

COUNTS = st.integers(0, 1000)


def load(prompt: float | None, output: float | None) -> EngineLoad:
    return EngineLoad(0, 0, counts=EngineCounts(prompt_tokens=prompt, output_tokens=output))


@given(st.lists(st.lists(COUNTS, min_size=1).map(sorted)))
def test_counts_of_each_start_within_a_run_are_added_up(starts: Sequence[Sequence[int]]):
    """As far as a start can be told: the engine says less than before."""
    counts, last, total = RunCounts(), 0, 0
    for said in (one for start in starts for one in start):
        counts = counts.later(load(said, 2 * said), 1.0)
        total += said - last if said >= last else said
        last = said
    assert (counts.prompt_tokens, counts.output_tokens) == (total, 2 * total)


def test_what_an_engine_does_not_say_is_as_before():
    counts = RunCounts()
    for prompt, output in ((5, 7), (None, 9), (6, None)):
        counts = counts.later(load(prompt, output), 1.0)
    assert (counts.prompt_tokens, counts.output_tokens) == (6, 9)
