"""Tests that the READMEs name each study, and that their links lead somewhere."""

import re
from pathlib import Path

STUDIES = Path(__file__).parents[1]


def test_each_study_that_is_a_target_stands_in_the_table():
    makefile = (STUDIES / "targets.mk").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    targets = re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE)
    assert sorted(targets) == sorted(phony.split())
    readme = (STUDIES / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`make (.*?)`\]", readme, re.MULTILINE)
    assert sorted(rows) == sorted(name for name in targets if name != "studies-test")


def test_every_link_leads_somewhere():
    missing = [
        (path.name, target)
        for path in STUDIES.rglob("*.md")
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8"))
        if not (path.parent / target).exists()
    ]
    assert missing == []
