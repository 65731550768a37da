"""Tests how the page draws a service's starts."""

import re

from slicewise.cluster.language.starts import StartTrace
from slicewise.cluster.rpc.read_messages import ServiceStarts
from slicewise.slurm_plugin.rules.pages.starts import class_words, phases_shown, starts_shown

SHORT = StartTrace(814, 0, {"desired": 10.0, "released": 10.5, "ready": 12.0}, "ready")
LONG = StartTrace(814, 1, {"desired": 20.0, "released": 21.0, "ended": 24.0}, "ended", node="<gpu>")
SERVICES = (
    ServiceStarts(tenant="nlp", name="chat", starts=(LONG,)),
    ServiceStarts(tenant="vision", name="chat", starts=(SHORT, LONG)),
)


def widths(markup: str) -> list[float]:
    return [float(width) for width in re.findall(r'width="([0-9.]+)"', markup)]


def test_bars_have_one_scale_and_the_newest_start_comes_first():
    newest, oldest = starts_shown(SERVICES, "vision")
    assert (newest.trace, oldest.trace) == (LONG, SHORT)
    assert widths(newest.bar) == [250.0, 750.0]
    assert widths(oldest.bar) == [125.0, 375.0]
    assert 'aria-label="grant 1.00 s, ended 3.00 s"' in newest.bar
    assert newest.words == "ended 3.00 s, grant 1.00 s"


def test_the_legend_has_the_phases_that_are_drawn():
    shown = starts_shown(SERVICES, "vision")
    assert [phase for phase, _ in phases_shown(shown)] == ["grant", "check", "ended"]
    assert class_words(shown) == (
        "remote: of 1 start that became ready half took 2.00 s at most, 95 % 2.00 s",
    )


def test_of_a_service_without_starts_there_is_nothing():
    assert starts_shown((), "vision") == []
    assert (phases_shown(()), class_words(())) == ([], ())
