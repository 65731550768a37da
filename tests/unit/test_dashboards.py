"""Checks etc/grafana and etc/prometheus.yml: that Grafana and Prometheus take them."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from metric_checks import recorded, series, unknown

from docs import dashboards
from slicewise.launcher.process.metric_catalogue import METRICS as OF_LAUNCHER
from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS as OF_DAEMON

ROOT = Path(__file__).parents[2]
ETC = ROOT / "etc"
FILES = sorted((ETC / "grafana" / "dashboards").iterdir())
UIDS = ["slicewise-cluster", "slicewise-internals", "slicewise-services", "slicewise-tenants"]
"""Links to dashboards have them: they stay."""
_SELECTED = re.compile(r"(?<![\w:])((?:\w+:)?slicewise_\w+(?::\w+)?|ALERTS)(\{[^}]*\})?")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def queries(board: Mapping[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def labels_of(name: str) -> set[str]:
    """Labels of a series that select: those of its metric, or of what is recorded by its level."""
    level, _, rest = name.partition(":")
    if rest:
        return {"cluster": set(), "tenant": {"tenant"}, "service": {"tenant", "service"}}[level]
    catalogued = {**OF_DAEMON, **OF_LAUNCHER}
    plain = re.sub(r"_(bucket|sum|count)$", "", name)
    found = catalogued.get(name) or catalogued.get(plain)
    return set(found.labels) if found is not None else set()


def test_the_files_are_those_that_are_written_from_the_code():
    """If not: python -m docs.generate, or make docs."""
    assert {one.name: one.read_text(encoding="utf-8") for one in FILES} == dashboards.files()
    assert [read(one)["uid"] for one in FILES] == UIDS == [one.stem for one in FILES]


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.stem)
def test_grafana_s_own_schema_knows_all_that_is_in_them(file: Path):
    """What it does not know it leaves out."""
    plugins.register_default_plugins()
    board = read(file)
    understood = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert list(lost(board, understood)) == []
    assert list(lost({**board, "colour": "red"}, understood)) == [".colour"]


def lost(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Places of what ``kept`` has otherwise than ``given``; it may have more."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept.get(key), f"{place}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{place}[{number}]")
    elif given != kept and given:
        yield place


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.stem)
def test_queries_use_what_is_served_or_recorded_and_each_is_selected_by_the_variables(file: Path):
    board = read(file)
    variables = {one["name"] for one in board["templating"]["list"]}
    known = {"cluster", "tenant", "service"} & variables
    asked = list(queries(board))
    assert len(asked) > 10
    assert unknown("\n".join(asked), recorded()) == set()
    for query in asked:
        for name, selector in _SELECTED.findall(query):
            wanted = {"cluster"} | (labels_of(name) & known)
            for label in wanted:
                assert f'{label}=~"${label}"' in selector, query
        assert set(_VARIABLE.findall(query)) <= {*variables, "__rate_interval"}


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.stem)
def test_variables_ask_for_labels_that_their_metrics_have(file: Path):
    source, *others = read(file)["templating"]["list"]
    assert (source["name"], source["type"]) == ("datasource", "datasource")
    before: set[str] = set()
    for one in others:
        form = r"label_values\((\w+)(?:\{(.*)\})?, (\w+)\)"
        name, selector, label = re.fullmatch(form, one["query"]["query"]).groups()
        assert name in series()
        assert label == one["name"]
        assert label in labels_of(name) | {"cluster"}
        # Each variable is narrowed by those before it, and by none after it.
        assert set(_VARIABLE.findall(selector or "")) == before
        assert (one["includeAll"], one["allValue"]) == (True, ".*")
        before.add(label)


def test_no_two_panels_overlap_and_ids_tell_them_apart():
    for file in FILES:
        taken: set[tuple[int, int]] = set()
        panels = read(file)["panels"]
        assert len({one["id"] for one in panels}) == len(panels)
        for at in (one["gridPos"] for one in panels):
            place = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not place & taken
            assert at["x"] + at["w"] <= 24
            taken |= place


def test_provisioning_names_what_the_wheel_brings():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for file in (*ETC.glob("grafana/**/*.*"), ETC / "prometheus.yml"):
        name = str(file.relative_to(ROOT))
        assert wheel[name] == f"share/slicewise/{file.relative_to(ETC)}"
    (provider,) = yaml.safe_load(
        (ETC / "grafana/provisioning/dashboards/slicewise.yml").read_text()
    )["providers"]
    assert provider["options"] == {"path": "/usr/share/slicewise/grafana/dashboards"}
    (source,) = yaml.safe_load(
        (ETC / "grafana/provisioning/datasources/slicewise.yml").read_text()
    )["datasources"]
    scraped = yaml.safe_load((ETC / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scraped
