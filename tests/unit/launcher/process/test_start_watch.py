"""Tests what the launcher remembers of the gateway's word about starts."""

from slicewise.launcher.process.start_watch import StartWatch
from slicewise.launcher.rules.gateway.start_lines import StartLine


def test_of_a_burst_the_first_request_counts_and_of_a_replica_its_first_answer():
    watch = StartWatch()
    for at_s in (100.0, 100.1, 101.9, 150.0, 150.5):
        watch.hear(StartLine("held", "triton1", at_s))
        watch.hear(StartLine("answered", "aa", at_s))
        if at_s == 101.9:
            assert watch.heard.held_s == {"triton1": 100.0}
    assert watch.heard.held_s == {"triton1": 150.0}
    assert watch.heard.answered_s == {"aa": 100.0}


def test_a_clock_that_was_set_back_hides_no_request():
    watch = StartWatch()
    for at_s in (5000.0, 100.0):
        watch.hear(StartLine("held", "triton1", at_s))
    assert watch.heard.held_s == {"triton1": 100.0}


def test_a_bounded_number_of_replicas_is_remembered():
    watch = StartWatch()
    for number in range(2000):
        watch.hear(StartLine("answered", f"{number}", 1.0))
    assert len(watch.heard.answered_s) == 1000
    assert "1999" in watch.heard.answered_s
