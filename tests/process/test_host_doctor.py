"""Looks at files of this host as the doctor does."""

from pathlib import Path

import pytest
from stand_ins.scripted import settings

from cluster.language.file_access import EVERY_USER
from slurm_plugin.doctor.facts import FileFacts
from slurm_plugin.doctor.this_host import host_facts, node_spaces


def environment(place: Path, text: str, mode: int, monkeypatch: pytest.MonkeyPatch) -> FileFacts:
    """What is seen of the variables that units read."""
    monkeypatch.setenv("SLICEWISE_CONFIG", str(place / "slicewise.toml"))
    file = place / "environment"
    file.write_text(text)
    file.chmod(mode)
    found = host_facts(settings(), place / "lua", {}, is_controller=False, needs_munge=False)
    (seen,) = [one for one in found.files if one.way.asked == str(file)]
    return seen


@pytest.mark.parametrize(
    "text",
    [
        "SLURM_CONF=/x\nSLICEWISE_DATABASE_URL=postgresql://slicewise:geheim@db/slicewise\n",
        "SLICEWISE_DATABASE_URL='postgresql://:geh:eim@db/slicewise'",
        "PGPASSWORD=geheim",
        "SLICEWISE_DATABASE_URL=postgresql://slicewise@db/slicewise?x=1&password=geheim",
    ],
)
def test_a_password_in_the_variables_of_all_units_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
):
    seen = environment(tmp_path, text, 0o644, monkeypatch)
    assert seen.way.target is not None
    assert (seen.holds_password, seen.duty) == (True, "secret")
    assert seen.way.target.mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "text",
    [
        "SLURM_CONF=/etc/slurm/slurm.conf\n",
        "SLICEWISE_DATABASE_URL=postgresql://slicewise@db:5432/slicewise",
        "# SLICEWISE_DATABASE_URL=postgresql://slicewise:PASSWORD@db/slicewise",
        "",
    ],
)
def test_variables_without_a_password_are_the_owners_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
):
    seen = environment(tmp_path, text, 0o666, monkeypatch)
    assert (seen.holds_password, seen.duty, seen.owners) == (False, "own", ("root",))


def test_the_spool_of_the_node_is_looked_at_where_its_name_is_in_the_path(tmp_path: Path):
    (tmp_path / "gpu07").mkdir()
    found = node_spaces({"SlurmdSpoolDir": f"{tmp_path}/%n"}, "gpu07")
    assert str(tmp_path / "gpu07") in {one.path for one in found}


def test_every_user_must_reach_munge(tmp_path: Path):
    known = settings()
    daemon = known.daemon.model_copy(update={"munge_socket": tmp_path / "munge"})
    site = known.model_copy(update={"daemon": daemon})
    found = host_facts(site, tmp_path / "lua", {}, is_controller=False, needs_munge=False)
    (need,) = [one for one in found.needs if one.way.asked == str(tmp_path / "munge")]
    assert (need.person, need.may_be_missing) == (EVERY_USER, True)
