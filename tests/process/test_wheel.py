"""Checks the wheel as a site has it: installed elsewhere, by requirements.lock."""

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from installed_wheel import ROOT, Installed, built, installed
from lock_files import pins


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    prefix = tmp_path_factory.mktemp("site") / "slicewise"
    return installed(wheel, prefix, pins("product"))


def test_on_disk_all_packages_have_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"slicewise", "slicewise-0.1.0.data"}


def test_it_has_all_that_the_clone_has_and_operators_need(site: Installed) -> None:
    code = site.site_packages / "slicewise"
    folders = ("cluster", "launcher", "migrations", "sandbox", "slurm_plugin", "templates")
    kept = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert [one for one in kept if not (code / one).is_file()] == []
    examples = {one.name for one in (ROOT / "etc").iterdir() if one.is_file()}
    assert {one.name for one in site.share.iterdir() if one.is_file()} == examples
    app = {one.name for one in (ROOT / "etc" / "ondemand").iterdir() if one.is_file()}
    assert {one.name for one in (site.share / "ondemand").iterdir()} == app
    ours = {one.name for one in (ROOT / "slurm_plugin" / "lua").glob("slicewise*.lua")}
    assert {one.name for one in (site.share / "lua").iterdir()} == ours


def test_its_commands_run_without_the_clone(site: Installed) -> None:
    version = site.run("slicewise", "--version")
    assert (version.stdout, version.stderr) == ("slicewise 0.1.0\n", "")
    assert "For operators" in site.run("slicewise", "--help").stdout
    config = str(site.share / "slicewise.toml")
    costs = json.loads(
        site.run("slicewise", "mig", "costs", "--json", SLICEWISE_CONFIG=config).stdout
    )
    assert len(costs) > 10
    where = (
        "from slicewise import cluster, launcher, migrations, sandbox, simulation, slurm_plugin;"
        "print(cluster.__file__)"
    )
    printed = site.run("python", "-c", where).stdout
    assert Path(printed.strip()).is_relative_to(site.site_packages / "slicewise")


def test_every_command_loads_with_only_what_the_lock_has(site: Installed) -> None:
    words = (
        "from slicewise.launcher.cli.command_table import COMMANDS;"
        "from slicewise.launcher.main import loaded;"
        "[loaded(name, one) for name, one in COMMANDS.items()]"
    )
    done = site.run("python", "-c", words)
    assert (done.returncode, done.stderr) == (0, "")


def test_models_are_read_without_tritonclient(site: Installed) -> None:
    words = (
        "import importlib.util as u;"
        "from slicewise.launcher.services.config_pbtxt import parse_config;"
        "print(u.find_spec('tritonclient'), parse_config('name: \"sum\"'))"
    )
    assert site.run("python", "-c", words).stdout == "None {'name': 'sum'}\n"


def test_it_renders_the_gateway(site: Installed, tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    places = f'\n[gateway]\ndirectory = "{tmp_path}/gateway"\nidentity = "{tmp_path}/gateway.crt"\n'
    example = (site.share / "slicewise.toml").read_text()
    assert example.count("\n[gateway] ") == 1
    config = tmp_path / "slicewise.toml"
    config.write_text(example.replace("\n[gateway] ", places))
    done = site.run("slicewise", "gateway", "render", SLICEWISE_CONFIG=str(config))
    assert (done.returncode, done.stderr) == (0, "")
    assert {"haproxy.cfg", "hold.lua", "openai.lua"} <= {
        one.name for one in (tmp_path / "gateway").iterdir()
    }


def test_the_path_of_slicewise_lua_holds_no_version_of_python(site: Installed) -> None:
    words = "from slicewise.slurm_plugin.cli.commands import admission; print(admission.MODULE)"
    assert site.run("python", "-c", words).stdout == f"{site.share}/lua/slicewise.lua\n"


def test_slicewise_lua_loads_there(site: Installed) -> None:
    lua = shutil.which("lua5.1") or shutil.which("lua5.3") or shutil.which("lua5.4")
    assert lua, "make packages"
    stub = "slurm = setmetatable({ log_error = print }, { __index = function() return 0 end })"
    words = f"{stub} print(dofile('{site.share}/lua/slicewise.lua').VERSION)"
    done = subprocess.run([lua, "-e", words], capture_output=True, text=True, check=False)
    version = (site.share / "lua" / "slicewise.lua").read_text().partition('M.VERSION = "')[2]
    assert done.stdout.split("\n")[-2] == version.partition('"')[0], done.stderr
