"""Checks etc/slicewise.rules.yml: that the pages of alerts and runbooks say the same, that it uses
metrics that there are, and that alerts fire.
"""

from pathlib import Path

import pytest
from metric_checks import RULES, needs_promtool, promtool

ROOT = Path(__file__).parents[2]
FIRED = ROOT / "tests" / "assets" / "slicewise.rules.test.yml"
FIRED_IN_HOURS = FIRED.with_name("slicewise.rules.hours.test.yml")
"""Units that are not ours."""


@needs_promtool
@pytest.mark.parametrize(
    ("verb", "file"), [("check", RULES), ("test", FIRED), ("test", FIRED_IN_HOURS)]
)
def test_prometheus_takes_the_rules_and_each_alert_fires_and_clears(verb: str, file: Path):
    assert "SUCCESS" in promtool(verb, "rules", file)
