"""Looks at files of this host as the doctor does."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from stand_ins.scripted import settings

from slicewise.cluster.language.file_access import EVERY_USER, unmet
from slicewise.cluster.runtime import host_look
from slicewise.cluster.runtime.host_look import file_system
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.cli.commands import this_host
from slicewise.slurm_plugin.cli.commands.this_host import (
    device_needs,
    host_facts,
    namespace_bars,
    node_cache_facts,
    node_spaces,
)
from slicewise.slurm_plugin.rules.site.facts import FileFacts, HostFacts
from slicewise.slurm_plugin.rules.site.host_checks import host_checks, node_cache_checks


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


@pytest.mark.parametrize("needs_munge", [True, False])
def test_munge_is_missed_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs_munge: bool
):
    """With auth/slurm its unit may be here, and off."""
    (tmp_path / "munge.service").touch()
    monkeypatch.setattr(host_look, "_UNITS", (tmp_path,))
    monkeypatch.setattr(host_look, "_SYSTEMD", tmp_path)
    found = host_facts(
        settings(), tmp_path / "lua", {}, is_controller=True, needs_munge=needs_munge
    )
    assert found.disabled == (("munge.service",) if needs_munge else ())


def test_devices_that_gres_conf_names_and_the_node_lacks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("SLURM_CONF", raising=False)
    conf = tmp_path / "etc" / "slurm" / "gres.conf"
    conf.parent.mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "cap1"):
        (tmp_path / "dev" / name).touch()
    conf.write_text(
        "AutoDetect=off\n"
        "nodename=gpu[06-07] Name=gpu Type=a File=/dev/nvidia[0-2]  # all\n"
        "NodeName=gpu08 Name=gpu File=/dev/nvidia5\n"
        "NodeName=gpu07 Name=gpu Type=b \\\n  MultipleFiles=/dev/nvidia1,/dev/cap1,/dev/cap9\n"
        "Name=nic File=/dev/[ \n"
    )

    def lost(node: str, **config: str) -> list[tuple[str, str]]:
        needs = device_needs(config, node, tmp_path)
        return [(one.code, one.what.removeprefix(str(tmp_path))) for one in unmet(needs)]

    missing = [("SW-FILE-MISSING", f"/dev/{name} is not there") for name in ("nvidia2", "cap9")]
    assert lost("gpu07") == missing
    assert lost("gpu09") == []
    assert lost("gpu07", SLURM_CONF="/opt/slurm.conf") == []
    fetched = tmp_path / "run" / "slurm" / "conf"
    fetched.parent.mkdir(parents=True)
    conf.parent.rename(fetched)
    assert lost("gpu06", SLURM_CONF="/opt/slurm.conf") == missing[:1]


def test_each_setting_that_bars_users_from_namespaces_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(this_host, "_SYSCTL", tmp_path)
    assert namespace_bars() == {}
    for folder, name, text in (
        ("user", "max_user_namespaces", "15000\n"),
        ("kernel", "apparmor_restrict_unprivileged_userns", "1\n"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    assert namespace_bars() == {"kernel.apparmor_restrict_unprivileged_userns": "0"}
    (tmp_path / "user" / "max_user_namespaces").write_text("0\n")
    assert list(namespace_bars().values()) == ["15000", "0"]


def on_controller(site: Settings, place: Path, **config: str) -> HostFacts:
    return host_facts(site, place / "lua", config, is_controller=True, needs_munge=False)


def test_files_that_decide_what_root_runs_and_tokens_are_looked_at(tmp_path: Path):
    conf, token = tmp_path / "slurm.conf", tmp_path / "token"
    for file in (conf, token):
        file.touch(0o666)
        file.chmod(0o666)
    prolog = tmp_path / "prolog.sh"
    prolog.touch()
    prolog.chmod(0o757)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    known = settings()
    daemon = known.daemon.model_copy(update={"slurmrestd_token": token})
    site = known.model_copy(update={"daemon": daemon})
    found = on_controller(site, tmp_path, SLURM_CONF=str(conf), StateSaveLocation=str(state))
    duties = {one.way.asked: one.duty for one in found.files}
    assert (duties[str(conf)], duties[str(token)]) == ("own", "secret")
    said = [one.what for one in host_checks(found, frozenset())]
    assert {f"{one} has mode 0666" for one in (conf, token)} <= set(said)
    assert f"{state} has mode 0777" in said
    node = host_facts(
        known, tmp_path, {"Prolog[0]": str(prolog)}, is_controller=False, needs_munge=False
    )
    said = [one.what for one in host_checks(node, frozenset())]
    assert f"{prolog} has mode 0757" in said
    assert str(conf) not in {one.way.asked for one in on_controller(site, tmp_path).files}


def test_the_slurm_conf_of_units_is_compared_with_this_shells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(this_host, "has_systemd", lambda: True)
    monkeypatch.setattr(this_host, "_ENVIRONMENT", tmp_path / "environment")
    monkeypatch.setenv("SLURM_CONF", "/opt/new/slurm.conf")
    usual = "/etc/slurm/slurm.conf"
    assert on_controller(settings(), tmp_path).confs == ("/opt/new/slurm.conf", usual)
    (tmp_path / "environment").write_text('SLURM_CONF="/opt/old/slurm.conf"\n')
    confs = on_controller(settings(), tmp_path).confs
    assert confs == ("/opt/new/slurm.conf", "/opt/old/slurm.conf")
    monkeypatch.delenv("SLURM_CONF")
    at_usual = on_controller(settings(), tmp_path, SLURM_CONF=usual)
    assert at_usual.confs == (usual, "/opt/old/slurm.conf")


def test_a_slurm_built_for_another_folder_needs_no_variable_in_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Or the line that `slicewise setup` proposes for units would be replaced by a wrong one."""
    monkeypatch.setattr(this_host, "has_systemd", lambda: True)
    monkeypatch.setattr(this_host, "_ENVIRONMENT", tmp_path / "environment")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    built_for = "/opt/slurm/etc/slurm.conf"
    for text in ("", f"SLURM_CONF={built_for}\n"):
        (tmp_path / "environment").write_text(text)
        for config in ({"SLURM_CONF": built_for}, {}):
            here, of_units = on_controller(settings(), tmp_path, **config).confs
            assert here == of_units


def test_the_line_for_units_keeps_other_variables(tmp_path: Path):
    environment = tmp_path / "environment"
    environment.write_text("SLURM_CONF=/old\nA=1")
    (found,) = host_checks(HostFacts(confs=("/opt/new", "/old")), frozenset())
    line = found.mends[0].line.replace("/etc/slicewise/environment", str(environment))
    subprocess.run(["sh", "-c", line], check=True)
    assert environment.read_text() == "A=1\nSLURM_CONF=/opt/new\n"


def test_the_folder_of_copies_is_seen_with_what_users_have_put_there(tmp_path: Path):
    folder = tmp_path / "cache"
    assert node_cache_facts(folder).inode is None
    folder.mkdir()
    folder.chmod(0o1777)
    for name in ("7", "lost+found"):
        (folder / name).mkdir()
    (folder / "8").symlink_to("/root")
    seen = node_cache_facts(folder)
    assert seen.inode is not None
    assert (seen.inode.mode & 0o7777, set(seen.homes)) == (0o1777, {"7", "8"})
    assert seen.size_mib == -(-shutil.disk_usage(folder).total >> 20)
    total = re.search(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())
    assert total is not None
    assert seen.memory_mib == int(total[1]) >> 10
    found = list(node_cache_checks(seen, None))
    # Neither is its user's.
    assert {finding.code for finding in found} == {"SW-NODE-CACHE"}
    assert [mend.line for finding in found for mend in finding.mends] == [
        f"rm -rf {folder}/7",
        f"rm -rf {folder}/8",
    ]


def test_file_systems_have_the_kernels_names():
    assert file_system(Path("/proc")) == "proc"
    assert file_system(Path("/none")) == ""
