"""Tests what the launcher remembers of the gateway's word about starts."""

from slicewise.launcher.process.start_watch import StartWatch
from slicewise.launcher.rules.gateway.start_lines import StartLine


def test_of_a_burst_the_first_request_counts_and_the_first_answer_of_each_replica():
    watch = StartWatch()
    for at_s in (100.0, 100.1, 101.9, 150.0, 150.5):
        watch.hear(StartLine("triton1", at_s))
        watch.hear(StartLine("triton1", at_s, "aa"))
        if at_s == 101.9:
            assert watch.heard.held_s == {"triton1": 100.0}
            assert watch.heard.answered_s == {("triton1", "aa"): 100.0}
    watch.hear(StartLine("triton2", 150.6, "aa"))
    assert watch.heard.held_s == {"triton1": 150.0}
    assert watch.heard.answered_s == {("triton1", "aa"): 150.0, ("triton2", "aa"): 150.6}


def test_a_clock_that_was_set_back_hides_no_request():
    watch = StartWatch()
    for at_s in (5000.0, 100.0):
        watch.hear(StartLine("triton1", at_s))
    assert watch.heard.held_s == {"triton1": 100.0}


def test_a_bounded_number_of_replicas_is_remembered():
    """Those that were heard of last."""
    watch = StartWatch()
    for number in range(2000):
        watch.hear(StartLine("triton1", 5.0, f"{number}"))
        watch.hear(StartLine("triton1", 5.0 * number, "often"))
    assert len(watch.heard.answered_s) == 1000
    assert {("triton1", "1999"), ("triton1", "often")} <= watch.heard.answered_s.keys()
