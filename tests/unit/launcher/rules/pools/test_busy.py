"""Whose requests replicas of pools worked on between two looks."""

import pytest

from slicewise.launcher.rules.pools.busy import GAP_S, NOTHING_BUSY, PoolLook, Used, used_ms

RUN = (7, 0, 1000)
GPT, CLIP = "vision/gpt", "vision/clip"


def look(at_s: float, **parts: float) -> PoolLook:
    return PoolLook(at_s, {RUN: {f"vision/{name}": part for name, part in parts.items()}})


def test_what_a_look_has_seen_counts_for_half_of_the_time_to_the_other() -> None:
    assert used_ms(look(100, gpt=1), look(101, gpt=1)) == {Used(RUN, 0, GPT): 1000}
    assert used_ms(look(100, gpt=0.5), look(101, clip=0.25)) == {
        Used(RUN, 0, GPT): 250,
        Used(RUN, 0, CLIP): 125,
    }
    assert used_ms(PoolLook(100, {}), look(101, gpt=1)) == {Used(RUN, 0, GPT): 500}


def test_each_hour_has_what_was_used_in_it() -> None:
    found = used_ms(look(3599.5, gpt=1), look(3601, gpt=1))
    assert found == {Used(RUN, 0, GPT): pytest.approx(500), Used(RUN, 3600, GPT): 1000}


@pytest.mark.parametrize("gap_s", [GAP_S + 0.1, 0.0, -1.0, -4000.0])
def test_a_gap_counts_for_nobody_and_so_does_a_clock_that_goes_back(gap_s: float) -> None:
    assert used_ms(look(5000, gpt=1), look(5000 + gap_s, gpt=1)) == {}


def test_the_first_look_counts_for_nothing() -> None:
    assert used_ms(NOTHING_BUSY, look(1e9, gpt=1)) == {}
