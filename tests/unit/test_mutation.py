"""Tests which modules are mutated, by which tests, and how the outcome is counted."""

import json
import tomllib
from pathlib import Path

import mutation
import pytest
from mutation import Outcome, Survivor

PYPROJECT = tomllib.loads((mutation.PROJECT / "pyproject.toml").read_text(encoding="utf-8"))


def test_pure_rooms_are_those_of_the_contract_s_places(tmp_path: Path):
    for room in ("a/rules", "a/rules/x", "b/rules", "b/other", "c/words", "c/words/y"):
        (tmp_path / room).mkdir(parents=True, exist_ok=True)
        (tmp_path / room / "__init__.py").touch()
    for module in (
        "a/rules/x/one",
        "b/rules/two",
        "b/other/three",
        "c/words/four",
        "c/words/y/five",
    ):
        (tmp_path / f"{module}.py").touch()
    places = ["slicewise.*.rules", "slicewise.c.words"]
    contracts = [
        {"name": "Decisions are pure: no IO", "source_modules": places},
        {"name": "SQL only in the stores", "source_modules": ["c.store"]},
    ]
    pyproject = {"tool": {"importlinter": {"contracts": contracts}}}
    assert mutation.pure_rooms(pyproject, tmp_path) == {
        "a/rules/x": "slicewise.a.rules.x",
        "b/rules": "slicewise.b.rules",
        "c/words": "slicewise.c.words",
        "c/words/y": "slicewise.c.words.y",
    }


def test_the_project_s_rooms_are_there():
    rooms = mutation.pure_rooms(PYPROJECT, mutation.PROJECT)
    assert "slurm_plugin/rules/quota" in rooms
    for room in rooms.values():
        for pattern in mutation.patterns((room,), mutation.PROJECT):
            assert list(mutation.PROJECT.glob(pattern)), pattern


def test_a_package_s_files_are_meant_or_a_module_s_own(tmp_path: Path):
    (tmp_path / "a" / "room").mkdir(parents=True)
    assert mutation.patterns(["a.room", "a.b.one"], tmp_path) == ["a/room/*", "a/b/one.py"]


def test_tests_are_those_that_name_a_module_or_lie_in_its_room_s_folder(tmp_path: Path):
    for name, text in {
        "unit/a/room/test_indirect.py": "",
        "unit/test_direct.py": "from a.room import x",
        "unit/test_other.py": "import b",
        "unit/a/room/test_text.py": "import ast",
        "property/test_direct.py": "import a.room.x",
        "property/test_fault_simulation.py": "import a.room.x",
        "integration/test_direct.py": "import a.room.x",
    }.items():
        file = tmp_path / "tests" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert mutation.tests_of(["a.room"], tmp_path) == [
        "tests/property/test_direct.py",
        "tests/unit/a/room/test_indirect.py",
        "tests/unit/test_direct.py",
    ]


def test_the_configuration_can_be_read():
    text = mutation.configuration(("slicewise.slurm_plugin.rules.quota",), mutation.PROJECT)
    read = tomllib.loads(text)["tool"]["mutmut"]
    assert read["only_mutate"] == ["slicewise/slurm_plugin/rules/quota/*"]
    assert {"pyproject.toml", "docs", "benchmarks"} <= set(read["also_copy"])
    assert ".venv" not in read["also_copy"]


def test_who_is_not_noticed_has_survived_called_or_not():
    results = """    a.x_f__mutmut_1: killed
    a.x_f__mutmut_2: survived
    a.x_f__mutmut_3: timeout
    a.x_g__mutmut_1: no tests
"""
    found = mutation.outcome(results, {"a.x_f__mutmut_2": "-1\n+2"})
    assert found == Outcome(
        4,
        4,
        2,
        (
            Survivor("a.x_f__mutmut_2", is_called=True, diff="-1\n+2"),
            Survivor("a.x_g__mutmut_1", is_called=False, diff=""),
        ),
    )
    assert found.score == 50.0


def test_a_mutant_that_was_not_tried_is_an_error():
    with pytest.raises(ValueError, match="1 of 2 mutants were not tried"):
        mutation.outcome("  a.x_f__mutmut_1: not checked\n  a.x_f__mutmut_2: killed\n", {})


def test_the_report_keeps_what_other_rooms_had(tmp_path: Path):
    report = tmp_path / "reports" / "mutation.json"
    mutation.keep({"a/room": Outcome(4, 4, 3, ())}, report)
    mutation.keep({"b/x": Outcome(0, 0, 0, ())}, report)
    mutation.keep({"a/room": Outcome(8, 8, 7, (Survivor("m", is_called=True, diff="d"),))}, report)
    assert json.loads(report.read_text()) == {
        "a/room": {
            "score": 87.5,
            "mutants": 8,
            "tried": 8,
            "noticed": 7,
            "survivors": [{"name": "m", "is_called": True, "diff": "d"}],
        },
        "b/x": {"score": 100.0, "mutants": 0, "tried": 0, "noticed": 0, "survivors": []},
    }


def test_a_sample_s_outcome_has_only_what_was_drawn():
    results = "\n".join(f"    a.x_f__mutmut_{number}: not checked" for number in range(1, 100))
    names = mutation.drawn(results, 2)
    assert len(names) == 2
    assert names == mutation.drawn(results, 2)
    for name in names:
        results = results.replace(f"{name}: not checked", f"{name}: killed")
    assert mutation.outcome(results, {}, names) == Outcome(99, 2, 2, ())
    with pytest.raises(ValueError, match="97 of 99 mutants were not tried"):
        mutation.outcome(results, {})


def test_rooms_weigh_by_their_mutants():
    small, large = Outcome(100, 50, 50, ()), Outcome(300, 50, 40, ())
    score, margin = mutation.estimate([small, large])
    assert score == pytest.approx(85.0)
    # sqrt(0.75² · 80 · 20 / 50 · (1 - 1/6)) = 3.87
    assert margin == pytest.approx(2 * 3.873, abs=0.001)
    assert mutation.estimate([Outcome(10, 10, 9, ())]) == (90.0, 0.0)
