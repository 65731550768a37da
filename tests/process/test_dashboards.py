"""Checks etc/grafana and etc/prometheus.yml: that Grafana and Prometheus take them."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from metric_checks import needs_promtool, promtool

ROOT = Path(__file__).parents[2]
ETC = ROOT / "etc"
FILES = sorted((ETC / "grafana" / "dashboards").iterdir())
"""Links to dashboards have them: they stay."""
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def queries(board: Mapping[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


@needs_promtool
def test_prometheus_can_read_each_query(tmp_path: Path):
    found = [query for file in FILES for query in queries(read(file))]
    plain = [_VARIABLE.sub(".*", one.replace("$__rate_interval", "1m")) for one in found]
    rules = [{"record": f"q:{n}", "expr": one} for n, one in enumerate(plain)]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"SUCCESS: {len(found)} rules found" in promtool("check", "rules", file)


@needs_promtool
def test_prometheus_takes_the_example_of_its_configuration(tmp_path: Path):
    example = (ETC / "prometheus.yml").read_text(encoding="utf-8")
    rules = "/usr/share/slicewise/slicewise.rules.yml"
    assert rules in example
    file = tmp_path / "prometheus.yml"
    file.write_text(example.replace(rules, str(ETC / "slicewise.rules.yml")))
    assert "SUCCESS" in promtool("check", "config", file)
