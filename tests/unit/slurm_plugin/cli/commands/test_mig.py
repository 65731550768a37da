"""Tests slicewise node and slicewise mig, on an emulated GPU node."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from builders.nodes import a_node
from builders.settings import SITE_TOML
from stand_ins.emulated_gpus import FaultyDriver, amd_node, gpu_node
from typer.testing import CliRunner, Result

from slicewise.cluster.gpu.nvml import create_instance, read_inventory
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.findings import Finding
from slicewise.cluster.language.gpus.inventory_json import gpu_of, inventory_of
from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.settings.read import load_settings
from slicewise.sandbox.amd_smi.driver import EmulatedAmdDriver, EmulatedAmdGpu
from slicewise.sandbox.nvml.driver import EmulatedGpu
from slicewise.slurm_plugin.cli.commands.mig import mig_app
from slicewise.slurm_plugin.cli.commands.node import node_app, node_findings

CONFIG = """
version: v1
mig-configs:
  halves:
    - {devices: all, device-filter: "0x20B210DE", mig-enabled: true, mig-devices: {3g.40gb: 2}}
  whole:
    - {devices: [0], mig-enabled: false}
  too-much:
    - {devices: all, mig-enabled: true, mig-devices: {3g.40gb: 3}}
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDriver]:
    """An A100 with 3g and 1g, the 1g held by job 88; an H200 that is not cut."""
    (tmp_path / "slicewise.toml").write_text(SITE_TOML)
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    with gpu_node(EmulatedGpu("A100-80GB"), EmulatedGpu("H200-141GB", mig=False)) as driver:
        monkeypatch.setenv("SLICEWISE_HOST_ROOT", str(driver.host_root))
        uuid = read_inventory(driver.host_root).gpus[0].uuid
        create_instance(uuid, Placement("3g.40gb", 4, 4))
        held = create_instance(uuid, Placement("1g.10gb", 1, 1))
        cgroup = driver.host_root / "proc" / "7" / "cgroup"
        cgroup.parent.mkdir()
        cgroup.write_text("0::/system.slice/slurmstepd.scope/job_88/step_batch\n")
        driver.hold(0, held.gi_id, 0, pid=7, memory_mib=900)
        yield driver


def run(app: typer.Typer, *args: str) -> Result:
    return CliRunner().invoke(app, args)


def answer(app: typer.Typer, *args: str) -> Any:
    result = run(app, *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_probe_draws_each_board_and_lists_its_instances(node: FaultyDriver) -> None:
    shown = run(node_app, "probe").stdout
    assert " ·  [1g] ·   ·  [   3g.40gb    ]" in shown
    assert "MIG is off, whole" in shown
    (one_g,) = [line for line in shown.splitlines() if "1:1" in line]
    assert "job 88" in one_g


def test_probe_as_json_has_everything(node: FaultyDriver) -> None:
    shown = answer(node_app, "probe")
    a100, h200 = shown["gpus"]
    assert [one["placement"]["start"] for one in a100["instances"]] == [1, 4]
    assert a100["board"]["profiles"]["3g.40gb"]["starts"] == [0, 4]
    assert h200["instances"] == []
    assert (shown["faults"], shown["notes"]) == ([], [])


def test_probe_says_what_is_wrong(node: FaultyDriver) -> None:
    node.xid("0000:07:00", 79, "GPU has fallen off the bus")
    shown = run(node_app, "probe").stdout
    assert "GPU 0: the kernel logged Xid 79." in shown


def test_gres_prints_both_files_with_the_site_s_types(node: FaultyDriver) -> None:
    lines = run(node_app, "gres", "--node", "gpu07").stdout.splitlines()
    assert lines[0] == "# gres.conf"
    assert lines[1].startswith("NodeName=gpu07 AutoDetect=off Name=gpu Type=1g.10gb MultipleFiles=")
    assert lines[-1] == (
        "NodeName=gpu07 Gres=gpu:1g.10gb:1,gpu:nvidia_a100_3g.40gb:1,gpu:nvidia_h200:1,gpu:pad3:5"
    )


def test_gres_lays_pads_between_types_where_no_job_goes_without_a_type(
    node: FaultyDriver, tmp_path: Path
) -> None:
    with (tmp_path / "slicewise.toml").open("a") as settings:
        settings.write('[daemon]\nmode = "enforce"\n')
    last = run(node_app, "gres", "--node", "gpu07").stdout.splitlines()[-1]
    assert last == (
        "NodeName=gpu07 Gres=gpu:1g.10gb:1,gpu:pad1:1,gpu:nvidia_a100_3g.40gb:1"
        ",gpu:pad3:2,gpu:nvidia_h200:1,gpu:pad6:2"
    )


def test_gres_has_the_files_of_nodes_that_share_a_machine(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLICEWISE_DEVICES", "/fake/%n")
    lines = answer(node_app, "gres", "--node", "gpu07")["gres.conf"]
    assert {line.rpartition("=")[2].split("/nvidia")[0] for line in lines} == {"/fake/gpu07"}


def test_cut_prints_the_gpu_as_it_is_then(node: FaultyDriver) -> None:
    gpu = read_inventory(node.host_root).gpus[0]
    lists = ("--old", "1g.10gb@1,3g.40gb@4", "--new", "1g.10gb@1,2g.20gb@4")
    result = run(node_app, "cut", gpu.uuid, *lists)
    assert gpu_of(result.stdout) == read_inventory(node.host_root).gpus[0]
    assert [one.placement.profile for one in gpu_of(result.stdout).instances] == [
        "1g.10gb",
        "2g.20gb",
    ]


def test_cut_refuses_what_a_job_holds(node: FaultyDriver) -> None:
    gpu = read_inventory(node.host_root).gpus[0]
    lists = ("--old", "1g.10gb@1,3g.40gb@4", "--new", "3g.40gb@0,3g.40gb@4")
    result = run(node_app, "cut", gpu.uuid, *lists)
    assert result.exit_code == 1
    assert "SW-MIG-IN-USE" in str(result.exception)
    assert read_inventory(node.host_root).gpus[0] == gpu


def test_what_probe_prints_is_read_as_the_same_inventory(node: FaultyDriver) -> None:
    there = read_inventory(node.host_root)
    assert inventory_of(run(node_app, "probe", "--json").stdout) == there
    assert inventory_of(answer(node_app, "probe")) == there


@pytest.mark.parametrize("text", ["", "[]", '{"driver": "570", "gpus": [{}], "lost": []}'])
def test_what_is_no_inventory_is_said(text: str) -> None:
    with pytest.raises(OutsideError, match="SW-WIRE"):
        inventory_of(text)


def test_gres_says_what_it_leaves_out(node: FaultyDriver) -> None:
    (node.host_root / "proc/driver/nvidia-caps/mig-minors").unlink()
    first, second, *_, last = run(node_app, "gres", "--node", "gpu07").stdout.splitlines()
    assert first.startswith("# GPU 0: instance 7 (1g.10gb) has no capability device")
    assert second.startswith("# GPU 0: instance 1 (3g.40gb) has no capability device")
    assert last == "NodeName=gpu07 Gres=gpu:nvidia_h200:1,gpu:pad1:7"
    assert len(answer(node_app, "gres")["faults"]) == 2


def test_profiles_show_one_board_or_all() -> None:
    shown = run(mig_app, "profiles", "A30-24GB").stdout
    assert "2g.12gb+me" in shown
    boards = answer(mig_app, "profiles")["boards"]
    assert len(boards) == 16
    assert all(one["sources"] for board in boards for one in board["profiles"].values())


def test_layouts_are_those_that_nothing_can_join() -> None:
    assert len(answer(mig_app, "layouts", "A100-80GB")) == 78
    assert len(answer(mig_app, "layouts", "A100-80GB", "--every")) == 723
    halves = answer(mig_app, "layouts", "A100-80GB", "--with", "3g.40gb", "--with", "3g.40gb")
    assert [[one["start"] for one in layout] for layout in halves] == [[0, 4]]
    assert "2 × 3g.40gb" in run(mig_app, "layouts", "A100-80GB", "--with", "3g.40gb").stdout


def test_a_profile_of_engines_is_shown_where_it_is_asked_for() -> None:
    (first, *_) = answer(mig_app, "layouts", "A100-80GB", "--with", "1g.10gb+me")
    assert "1g.10gb+me" in [one["profile"] for one in first]


def test_a_profile_that_the_board_lacks_is_refused() -> None:
    result = run(mig_app, "layouts", "A100-80GB", "--with", "1g.5gb")
    assert isinstance(result.exception, InvalidInputError)
    assert result.exception.refusal.code == "SW-VALUE"


def test_export_and_import_tell_the_same(node: FaultyDriver, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(run(mig_app, "export", "--config-label", "now").stdout)
    on, off = answer(mig_app, "import", str(file), "--model", "A100-80GB")
    assert (on["config"], on["devices"], on["mig"]) == ("now", [0], True)
    assert sorted(one["profile"] for one in on["layout"]) == ["1g.10gb", "3g.40gb"]
    assert (off["devices"], off["mig"], off["layout"]) == ([1], False, [])


def test_import_places_what_a_file_counts(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    (halves,) = answer(mig_app, "import", str(file), "--selected-config", "halves")
    assert (halves["model"], halves["devices"]) == ("A100-80GB", None)
    assert [one["start"] for one in halves["layout"]] == [0, 4]
    too_much = run(mig_app, "import", str(file), "--selected-config", "too-much")
    assert too_much.exit_code == 1
    assert "does not fit" in too_much.stdout
    # Without a filter it is about every board that has such a profile.
    assert {"A100-80GB", "H100-80GB"} <= set(too_much.stdout.split())


@pytest.mark.parametrize(
    ("entry", "options", "said"),
    [
        ("mig-devices: {1c.3g.40gb: 1}", (), "known to have 1c.3g.40gb"),
        ("mig-devices: {1g.10gb: 1}, device-filter: '0xFFFF10DE'", (), "known to have 1g.10gb"),
        ("mig-devices: {1g.10gb: 1}", ("--model", "A30-24GB"), "has no 1g.10gb"),
    ],
)
def test_import_passes_over_no_entry(
    tmp_path: Path, entry: str, options: tuple[str, ...], said: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        f"{{version: v1, mig-configs: {{a: [{{devices: all, mig-enabled: true, {entry}}}]}}}}"
    )
    result = run(mig_app, "import", str(file), *options)
    assert result.exit_code == 1
    assert said in result.stdout


def test_import_names_what_it_can_t_take(tmp_path: Path) -> None:
    for args in (("/nowhere.yaml",), (__file__,)):
        result = run(mig_app, "import", *args)
        assert isinstance(result.exception, InvalidInputError)
        assert result.exception.refusal.code == "SW-INPUT-FILE"
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    result = run(mig_app, "import", str(file), "--selected-config", "other")
    assert "halves, whole, too-much" in str(result.exception)


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedAmdDriver]:
    """An MI300X of eight partitions, one held, and one that is a single partition."""
    site = SITE_TOML.replace("A100-80GB", "MI300X-192GB").replace('"1g.10gb"', '"cpx.nps4"')
    (tmp_path / "slicewise.toml").write_text(f'{site}whole = ["mi300x"]\n')
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    gpus = (EmulatedAmdGpu("MI300X-192GB", one) for one in ("cpx.nps4", "spx.nps1"))
    with amd_node(*gpus) as driver:
        monkeypatch.setenv("SLICEWISE_HOST_ROOT", str(driver.host_root))
        driver.hold(0, 2, pid=7, memory_mib=900)
        yield driver


@pytest.mark.usefixtures("amd")
def test_probe_shows_amd_s_modes() -> None:
    shown = run(node_app, "probe").stdout
    assert "AMD driver 6.14.14" in shown
    assert "[cp][cp][cp][cp][cp][cp][cp][cp]" in shown
    assert "spx.nps1" in shown
    assert "pid 7" in shown
    found = answer(node_app, "probe")
    assert (found["vendor"], found["faults"], found["notes"]) == ("AMD", [], [])


@pytest.mark.usefixtures("amd")
def test_gres_has_a_line_for_each_of_amd_s_partitions_and_no_pad() -> None:
    found = answer(node_app, "gres", "--node", "gpu07")
    assert found["slurm.conf"] == "gpu:cpx.nps4:8,gpu:mi300x:1"
    assert found["gres.conf"][7:] == [
        f"NodeName=gpu07 AutoDetect=off Name=gpu Type={kind} File={file} Flags=amd_gpu_env"
        for kind, file in (("cpx.nps4", "/dev/dri/renderD135"), ("mi300x", "/dev/dri/renderD136"))
    ]


def test_doctor_compares_amd_s_partitions_with_slurm(amd: EmulatedAmdDriver) -> None:
    def findings(**gpus: int) -> list[Finding]:
        shown = {kind.replace("_", "."): count for kind, count in gpus.items()}
        there = a_node("gpu07", gpus=shown)
        return list(node_findings("gpu07", amd.host_root, load_settings(), [there]))

    assert findings(cpx_nps4=8, mi300x=1) == []
    (fewer,) = findings(cpx_nps4=16, mi300x=1)
    assert (fewer.code, "the node has 8" in fewer.text) == ("SW-NODE-GRES", True)


def test_cut_leaves_amd_s_gpus_alone(amd: EmulatedAmdDriver) -> None:
    uuid = answer(node_app, "probe")["gpus"][1]["uuid"]
    refused = run(node_app, "cut", uuid, "--old", "spx.nps1@0", "--new", "cpx.nps1@0")
    assert isinstance(refused.exception, OutsideError)
    assert refused.exception.refusal.code == "SW-NODE-GPU"
