"""Checks etc/slicewise.rules.yml: that each alert fires and has a runbook, and its metrics."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from metric_checks import recorded, rules, unknown

ROOT = Path(__file__).parents[2]
FIRED = ROOT / "tests" / "assets" / "slicewise.rules.test.yml"
FIRED_IN_HOURS = FIRED.with_name("slicewise.rules.hours.test.yml")
_RUNBOOK = re.compile(r"^## (Slicewise\w+)$", re.MULTILINE)


def alerts() -> Iterator[Mapping[str, Any]]:
    return (one for one in rules() if "alert" in one)


def page(name: str) -> str:
    return (ROOT / "docs" / "how-to" / name).read_text(encoding="utf-8")


def test_each_alert_says_what_it_means_and_where_to_look():
    """No page repeats it: whoever is called has the alert, and its runbook."""
    assert len([*alerts()]) > 20
    for alert in alerts():
        notes = alert["annotations"]
        assert notes["summary"].endswith("."), alert["alert"]
        assert notes["look"], alert["alert"]
    summaries = [alert["annotations"]["summary"] for alert in alerts()]
    assert len({*summaries}) == len(summaries)


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
    assert unknown(text, recorded()) == unknown(page("monitoring.md"), recorded()) == set()
    assert unknown("rate(slicewise_nothing_total[5m])", recorded()) == {"slicewise_nothing_total"}
    tried = "".join(one.read_text(encoding="utf-8") for one in (FIRED, FIRED_IN_HOURS))
    listed = page("monitoring.md").partition("### Recording rules")[2]
    for name in recorded():
        assert f"- expr: {name}" in tried
        assert f"`{name}`" in listed
    assert set(re.findall(r"`(\w+:\w+:\w+)`", listed)) == recorded()


def test_each_alert_has_a_runbook_and_the_reverse():
    written = _RUNBOOK.findall(page("runbooks.md"))
    assert written == [one["alert"] for one in alerts()]
    for one in alerts():
        place = f"/usr/share/doc/slicewise/how-to/runbooks.md#{one['alert'].lower()}"
        assert one["annotations"]["runbook_url"] == place


def test_each_runbook_says_where_to_look_and_what_mends_it():
    """Or of which other one it is a case."""
    _, *parts = _RUNBOOK.split(page("runbooks.md"))
    names, texts = parts[::2], parts[1::2]
    places = {f"(#{name.lower()})" for name in names}
    whole = [name for name, text in zip(names, texts, strict=True) if "\n```sh\n" in text]
    for name, text in zip(names, texts, strict=True):
        if name in whole:
            assert re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE) == ["Mend"], name
        else:
            assert text.startswith("\n\nAs ["), name
            assert any(place in text for place in places - {f"(#{name.lower()})"}), name
    assert len(whole) > 20


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
