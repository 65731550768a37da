"""Checks etc/slicewise.rules.yml: that the page of alerts says the same, and that alerts fire."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "etc" / "slicewise.rules.yml"
FIRED = ROOT / "tests" / "assets" / "slicewise.rules.test.yml"
_ROW = re.compile(r"^\| `(Slicewise\w+)` \| `(.+?)` \| (.+) \| (\d+[mh]) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
_WHOSE = re.compile(r"^\{\{ .* \}\}: ")


def alerts() -> Iterator[Mapping[str, Any]]:
    for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]:
        yield from group["rules"]


def test_the_page_and_the_rules_say_the_same():
    page = (ROOT / "docs" / "how-to" / "alerts.md").read_text(encoding="utf-8")
    rows = _ROW.findall(_LINK.sub(r"\1", page))
    assert len(rows) > 20
    shown, look_before = [], ""
    for name, expression, meaning, hold, look in rows:
        look_before = look_before if look == "the same" else look.replace("`", "")
        shown.append((name, expression, meaning.replace("`", "").lower(), hold, look_before))
    assert shown == [
        (
            one["alert"],
            one["expr"],
            _WHOSE.sub("", one["annotations"]["summary"]).removesuffix(".").lower(),
            one["for"],
            one["annotations"]["look"],
        )
        for one in alerts()
    ]


def test_each_alert_says_how_bad_it_is_and_is_tried():
    assert {one["labels"]["severity"] for one in alerts()} == {"critical", "warning", "info"}
    tried = [
        case["alertname"]
        for test in yaml.safe_load(FIRED.read_text(encoding="utf-8"))["tests"]
        for case in test["alert_rule_test"]
    ]
    # Once while its fault is there, and once after it.
    assert tried == [one["alert"] for one in alerts() for _ in range(2)]


@pytest.mark.nightly
@pytest.mark.parametrize("words", [("check", RULES), ("test", FIRED)])
def test_prometheus_takes_the_rules_and_each_alert_fires_and_clears(words: tuple[str, Path]):
    (verb, file) = words
    done = subprocess.run(
        ("promtool", verb, "rules", file), capture_output=True, text=True, check=False
    )
    assert "SUCCESS" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
