"""Tests what is read of HAProxy's counters of answers."""

from launcher.gateway.timings import BUCKETS, CAME, ERRORS, Timings, timings_of

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


def test_a_configuration_of_before_has_none() -> None:
    assert timings_of("No such table\n\n") == {}
