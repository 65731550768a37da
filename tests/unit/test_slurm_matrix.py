import json
from pathlib import Path
from xml.etree import ElementTree as ET

from slurm_matrix import Slurm, all_in, keep, merged, outcomes

from docs import slurm_matrix as made

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.integration.test_line" name="test_one" />
<testcase classname="tests.integration.test_line.TestAll" name="test_two[a|b]">
  <failure message="AssertionError: assert 1 == 2&#10;  and more">long</failure></testcase>
<testcase classname="tests.integration.alone.test_last" name="test_it"><skipped /></testcase>
<testcase classname="tests.integration.test_line" name="test_three"><error message="no" />
  </testcase>
</testsuite></testsuites>"""
HOW = {"on": "2026-11-26", "reader": "commands"}
GOOD = {"passed": 3, "failed": 0, "skipped": 0, **HOW, "reasons": {}}


def slurm(**modules: object) -> dict[str, object]:
    versions = {"system": "Debian GNU/Linux 12", "mariadb": "10.11", "haproxy": "2.6", "lua": "5.3"}
    return {**versions, "modules": modules}


def test_outcomes_are_counted_by_module_with_the_reason_of_each_failure() -> None:
    found = outcomes(ET.fromstring(JUNIT).iter("testcase"), **HOW)  # noqa: S314 -- ours
    reasons = {"test_two[a|b]": "AssertionError: assert 1 == 2 and more", "test_three": "no"}
    line = {"passed": 1, "failed": 2, "skipped": 0, **HOW, "reasons": reasons}
    assert found["test_line"] == line
    assert (found["test_last"]["passed"], found["test_last"]["skipped"]) == (0, 1)


def test_a_later_run_replaces_its_own_modules_and_no_others() -> None:
    kept = {"25.11.7": slurm(test_a=GOOD, test_b=GOOD)}
    fresh = {"25.11.7": slurm(test_b={**GOOD, "passed": 9}), "9.5.1 built": slurm(test_a=GOOD)}
    both = merged(kept, fresh)
    assert list(both) == ["9.5.1 built", "25.11.7"]
    assert both["25.11.7"]["modules"] == {"test_a": GOOD, "test_b": {**GOOD, "passed": 9}}


def test_what_is_kept_can_be_added_to(tmp_path: Path) -> None:
    place = tmp_path / "reports" / "runs.json"
    keep(place, {"25.11.7": slurm(test_a=GOOD)})
    keep(place, {"25.11.7": slurm(test_b=GOOD)})
    assert set(json.loads(place.read_text())["25.11.7"]["modules"]) == {"test_a", "test_b"}


def test_the_distribution_s_slurm_comes_first_then_what_is_in_the_cache(tmp_path: Path) -> None:
    for program in ("25.11.7/sbin/slurmctld", ".building-x/sbin/slurmctld", "25.11.7.log"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch()
    tree = tmp_path / "debian-sid"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc" / "debian_version").touch()
    assert list(all_in(tmp_path)) == [Slurm(), Slurm(tmp_path / "25.11.7"), Slurm(tree=tree)]
    assert list(all_in(tmp_path / "none")) == [Slurm()]


def test_the_distribution_s_is_run_even_where_the_variable_names_another() -> None:
    assert Slurm().command(("true",)) == ("env", "SLICEWISE_SANDBOX_SLURM=", "true")


def test_the_page_shows_what_passed_failed_and_was_not_run(tmp_path: Path, monkeypatch) -> None:
    bad = {**GOOD, "failed": 1, "reader": "pyslurm", "reasons": {"test_x[a|b]": "a `b` | c"}}
    kept = {"24.11.5": slurm(test_a=GOOD, test_b=GOOD), "25.11.7": slurm(test_a=bad)}
    (tmp_path / "runs.json").write_text(json.dumps(kept))
    monkeypatch.setattr(made, "KEPT", tmp_path / "runs.json")
    page = made.page()
    assert "| test_a | 3, 11-26 | 3, 1 failed *p*, 11-26 |" in page
    assert "| test_b | 3, 11-26 | – |" in page
    assert "| passed | 6 | 3 |" in page
    assert "| 25.11.7 | test_a | `test_x[a\\|b]` | `a 'b' \\| c` |" in page
