"""Checks etc/slicewise.rules.yml: that the pages of alerts and runbooks say the same, that it uses
metrics that there are, and that alerts fire.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from metric_checks import recorded, rules, unknown

ROOT = Path(__file__).parents[2]
FIRED = ROOT / "tests" / "assets" / "slicewise.rules.test.yml"
FIRED_IN_HOURS = FIRED.with_name("slicewise.rules.hours.test.yml")
_ROW = re.compile(r"^\| `(Slicewise\w+)` \| `(.+?)` \| (.+) \| (\d+[mh]) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^]]+)\]\([^)]*\)")
_WHOSE = re.compile(r"^\{\{ .* \}\}: ")


def alerts() -> Iterator[Mapping[str, Any]]:
    return (one for one in rules() if "alert" in one)


def page(name: str) -> str:
    return (ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8")


def test_the_page_and_the_rules_say_the_same():
    rows = _ROW.findall(_LINK.sub(r"\1", page("alerts.md")))
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
        for file in (FIRED, FIRED_IN_HOURS)
        for test in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]
        for case in test.get("alert_rule_test", ())
    ]
    # Once while its fault is there, and once after it.
    assert sorted(tried) == sorted(one["alert"] for one in alerts() for _ in range(2))


def test_rules_use_metrics_that_are_served_and_series_that_are_recorded():
    text = "\n".join(one["expr"] for one in rules())
    assert unknown(text, recorded()) == unknown(page("alerts.md"), recorded()) == set()
    assert unknown("rate(slicewise_nothing_total[5m])", recorded()) == {"slicewise_nothing_total"}
    tried = "".join(one.read_text(encoding="utf-8") for one in (FIRED, FIRED_IN_HOURS))
    listed = page("alerts.md").partition("## Recording rules")[2]
    for name in recorded():
        assert f"- expr: {name}" in tried
        assert f"`{name}`" in listed
    assert set(re.findall(r"`(\w+:\w+:\w+)`", listed)) == recorded()


def test_each_alert_has_a_runbook_and_the_reverse():
    written = re.findall(r"^## (Slicewise\w+)$", page("runbooks.md"), re.MULTILINE)
    assert written == [one["alert"] for one in alerts()]
    for one in alerts():
        place = f"/usr/share/doc/slicewise/how-to/runbooks.md#{one['alert'].lower()}"
        assert one["annotations"]["runbook_url"] == place
        assert f"[`{one['alert']}`](runbooks.md#{one['alert'].lower()})" in page("alerts.md")


PARTS = ("What it means", "What users notice", "Look", "Mend", "Escalate")


def test_each_runbook_has_all_its_parts():
    for text in page("runbooks.md").split("\n## ")[1:]:
        assert re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE) == list(PARTS), text[:60]
        assert "\n```sh\n" in text, text[:60]


COMMANDS = {"grep", "haproxy", "journalctl", "pg_isready", "sacctmgr", "scontrol"}
COMMANDS |= {"sdiag", "sinfo", "slicewise", "squeue", "systemctl", "timedatectl", "uptime"}
OTHERS = {"haproxy", "postgresql", "slurmctld", "slurmdbd"}
"""Units that are not ours."""


def test_each_command_of_a_runbook_exists():
    """Those of Slicewise itself: test_docs.py."""
    text = page("runbooks.md")
    lines = [
        line
        for one in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for line in one.splitlines()
    ]
    assert {line.split()[0] for line in lines} == COMMANDS
    units = {one.stem for one in (ROOT / "etc").glob("slicewise-*.service")} | OTHERS
    named = re.findall(r"(?:systemctl \w+|journalctl -u) ([\w-]+)", "\n".join(lines))
    assert set(named) <= units
    events = (ROOT / "docs" / "reference" / "log-events.md").read_text(encoding="utf-8")
    sought = re.findall(r"--grep '?([\w|]+)", "\n".join(lines))
    assert [one for each in sought for one in each.split("|") if f"`{one}`" not in events] == []
    assert len(sought) > 5
