"""Tests what is read of HAProxy's counters of answers."""

import pytest

from slicewise.launcher.rules.gateway.timings import BUCKETS, CAME, ERRORS, Timings, timings_of

SHOWN = """\
# table: timings, type: string, size:20480, used:2
0x55591dd83ba0: key=vision/bert use=0 exp=86399919 conn_cur=3 gpc0=2 gpc1=5 {errors} {came}
0x55591dd83bb0: key=nlp/chat use=0 exp=1 conn_cur=0 gpc0=0

"""


def test_counters_are_read_by_service() -> None:
    found = timings_of(SHOWN.format(errors=f"gpc{ERRORS}=4", came=f"gpc{CAME}=11"))
    bert = found["vision/bert"]
    assert bert == Timings((2, 5, *[0] * (BUCKETS - 2)), errors=4, came=11, now=3)
    assert (bert.answered, bert.unanswered) == (7, 1)
    assert found["nlp/chat"] == Timings()


@pytest.mark.parametrize(
    ("tags", "slowest_ms"),
    [
        ("gpt0=100 gpt1=7 gpt2=99 gpt3=41", 41),
        ("gpt0=100 gpt1=70 gpt2=101 gpt3=41", 70),
        # Of long ago: figures cover ten minutes at most.
        ("gpt0=100 gpt1=7 gpt2=97 gpt3=4100", 7),
        ("gpt0=0 gpt1=0 gpt2=101 gpt3=0", 0),
        ("gpt0=0 gpt1=0 gpt2=0 gpt3=0", None),
    ],
)
def test_the_slowest_answer_is_that_of_the_last_spans(tags: str, slowest_ms: int | None) -> None:
    shown = SHOWN.format(errors=tags, came="")
    assert timings_of(shown)["vision/bert"].slowest_ms == slowest_ms


def test_a_configuration_of_before_has_none() -> None:
    assert timings_of("No such table\n\n") == {}
