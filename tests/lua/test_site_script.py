"""Tests etc/job_submit.lua as a site would install it."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from lua_slurmctld import ALICE, DENIED, NOTHING, ROOT_UID, SUCCESS, UNSET, UNSET_16, Interpreter

from slicewise.slurm_plugin.lua.site_script import Wiring, minimal, without_lines

ROOT = Path(__file__).resolve().parents[2]
STUB = """
local cjson = require "cjson"
slurm = {
    SUCCESS = 0, ESLURM_ACCESS_DENIED = 2002, ESLURM_ACCOUNTING_POLICY = 2050,
    ESLURM_INVALID_QOS = 2066,
    log_error = function(format, ...) print("error: " .. string.format(format, ...)) end,
    log_info = function(format, ...) print("info: " .. string.format(format, ...)) end,
    log_user = function(format, ...) print("user: " .. string.format(format, ...)) end,
}
assert(loadfile(arg[1]))()
local call = cjson.decode(arg[2])
local partitions = { gpu = { flag_default = 1 }, cpu = { flag_default = 0 } }
print("submit", slurm_job_submit(call.submit, partitions, call.uid))
print("qos", call.submit.qos)
print("modify", slurm_job_modify(call.modify, call.job, partitions, call.uid))
"""
TAG = "slicewise:1 token=ab12 tenant=vision"
GPU, CPU = {"partition": "gpu"}, {"partition": "cpu"}


def run(tmp_path: Path, module: str, mode: str = "observe", **call: Any) -> str:
    script = (ROOT / "etc" / "job_submit.lua").read_text()
    before = '"/opt/slicewise/share/slicewise/lua/slicewise.lua"'
    assert before in script
    # First: the clone itself may lie in a folder of that name.
    script = script.replace("/run/", f"{tmp_path}/").replace(before, f'"{module}"')
    script = script.replace('"/etc/slicewise/off"', f'"{tmp_path}/off"')
    script = script.replace(
        'partitions = { "gpu" },', 'partitions = { "gpu" }, beside = { "all" },'
    )
    site = tmp_path / "job_submit.lua"
    site.write_text(script.replace('mode = "observe"', f'mode = "{mode}"'))
    stub = tmp_path / "stub.lua"
    stub.write_text(STUB)
    usual = {"submit": {"gres": "gpu:1"}, "modify": {"qos": "x"}, "job": GPU, "uid": ALICE}
    done = subprocess.run(
        [Interpreter.name, str(stub), str(site), json.dumps({**usual, **call})],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_what_is_left_without_slicewise_s_lines_is_a_whole_script(tmp_path: Path) -> None:
    """slurmctld 24.11 ended at a reconfiguration where a function was missing, and stayed down."""
    script = minimal(Wiring(tmp_path / "m.lua", tmp_path / "s", tmp_path / "off", ("gpu",)))
    site, stub = tmp_path / "job_submit.lua", tmp_path / "stub.lua"
    site.write_text(without_lines(script))
    stub.write_text(STUB)
    call = {"submit": {"gres": "gpu:1"}, "modify": {}, "job": GPU, "uid": ALICE}
    command = [Interpreter.name, str(stub), str(site), json.dumps(call)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"submit\t{SUCCESS}\nqos\tnil\nmodify\t{SUCCESS}\n"


def without_module(tmp_path: Path, **call: Any) -> str:
    return run(tmp_path, str(tmp_path / "gone.lua"), "enforce", **call)


def test_with_the_module(tmp_path: Path) -> None:
    output = run(tmp_path, str(ROOT / "slurm_plugin" / "lua" / "slicewise.lua"))
    assert "info: slicewise: no answer" in output
    assert "submit\t0" in output
    assert "error" not in output


@pytest.mark.parametrize("text", [None, "syntax error here", "return 7", "error('boom')"])
def test_without_a_module_that_works_jobs_go_on(tmp_path: Path, text: str | None) -> None:
    module = tmp_path / "module.lua"
    if text is not None:
        module.write_text(text)
    output = run(tmp_path, str(module), job={"admin_comment": TAG})
    assert "error: slicewise is off: " in output
    assert "submit\t0" in output
    assert "modify\t0" in output


@pytest.mark.parametrize(
    ("submission", "code"),
    [
        ({"gres": "gpu:4"}, DENIED),
        ({"gres": "gres/gpu:+4"}, DENIED),
        ({"tres_per_job": "gres:gpu:4"}, DENIED),
        ({"tres_per_task": "gpu:1g.10gb:1," + "x," * 512}, DENIED),
        ({"gres": "gpu:1g.10gb:1,shard:1"}, DENIED),
        ({"gres": "gpu:1g.10gb:0"}, DENIED),
        ({"gres": "gpu:auto:1"}, DENIED),
        ({"gres": "gpu:pad4:1"}, DENIED),
        ({"ntasks_per_tres": 1}, DENIED),
        ({}, DENIED),
        ({"shared": 2}, DENIED),
        ({"gres": "gpu:1g.10gb:1", "shared": 2}, DENIED),
        ({"gres": "gpu:1g.10gb:1"}, SUCCESS),
        ({"gres": "gpu:1g.10gb:1", "shared": 1}, SUCCESS),
        ({"gres": "gpu:1g.10gb:1", "shared": UNSET_16, "ntasks_per_tres": UNSET_16}, SUCCESS),
        ({"shared": 0}, SUCCESS),
        ({"user_id": 0}, SUCCESS),
        ({"partition": "cpu"}, SUCCESS),
        ({"partition": "cpu", "gres": "gpu:4"}, SUCCESS),
        ({"partition": "cpu,gpu", "gres": "gpu:4"}, DENIED),
        # On nodes of managed ones.
        ({"partition": "all"}, SUCCESS),
        ({"partition": "all", "gres": "gpu:1g.10gb:1"}, DENIED),
        ({"partition": "gpu,all", "gres": "gpu:1g.10gb:1"}, DENIED),
        ({"partition": "all", "ntasks_per_tres": 1}, DENIED),
        ({"partition": "all", "shared": 0}, DENIED),
    ],
)
def test_without_the_module_only_what_slurm_counts_is_let_in(
    tmp_path: Path, submission: dict[str, Any], code: int
) -> None:
    """Typed GPUs and whole nodes stay within the limits that are compiled into Slurm."""
    output = without_module(tmp_path, submit=submission, modify={})
    assert f"submit\t{code}" in output
    assert ("user: slicewise.lua can't be loaded" in output) == (code == DENIED)


@pytest.mark.parametrize(
    ("submission", "qos"),
    [
        ({"partition": "all", "default_qos": "slicewise_vision"}, "slicewise_vision_borrowed"),
        ({"partition": "all", "qos": "Slicewise_Vision"}, "slicewise_vision_borrowed"),
        ({"partition": "all", "default_qos": "slicewise_vision", "qos": "normal"}, "normal"),
        ({"partition": "cpu", "qos": "slicewise_vision"}, "slicewise_vision"),
        ({"partition": "gpu", "gres": "gpu:1g.10gb:1", "qos": "normal"}, "normal"),
        # Where jobs without GPUs may run beside those with them.
        ({"partition": "gpu", "qos": "slicewise_vision"}, "slicewise_vision_borrowed"),
        ({"partition": "gpu", "shared": 0, "qos": "slicewise_vision"}, "slicewise_vision"),
        (
            {"partition": "gpu", "gres": "gpu:1g.10gb:1", "qos": "slicewise_vision"},
            "slicewise_vision",
        ),
    ],
)
def test_without_the_module_a_job_beside_preempts_nobody(
    tmp_path: Path, submission: dict[str, Any], qos: str
) -> None:
    assert f"qos\t{qos}\n" in without_module(tmp_path, submit=submission)


@pytest.mark.parametrize(
    ("job", "change", "code"),
    [
        (GPU, {"gres": "gpu:4"}, DENIED),
        (GPU, {"tres_per_node": "gres/gpu:4"}, DENIED),
        (GPU, {"qos": "normal"}, DENIED),
        (GPU, {"account": "nlp"}, DENIED),
        (GPU, {"priority": UNSET + 1}, DENIED),
        (GPU, {"shared": 2}, DENIED),
        (GPU, {"shared": 0}, DENIED),
        (GPU, {"ntasks_per_tres": 1}, DENIED),
        (GPU, {"num_tasks": 8}, DENIED),
        (GPU, {"min_nodes": 4}, DENIED),
        *[(GPU, {"end_time": at}, DENIED if at else SUCCESS) for at in (0, 1_700_000_000)],
        (CPU, {"partition": "gpu"}, DENIED),
        (CPU, {"partition": "cpu,gpu"}, DENIED),
        (CPU, {"reservation": "one,two"}, DENIED),
        # A replica says by its comment how to know it.
        (GPU, {"comment": "slicewise:certificate=0 MIIB"}, SUCCESS),
        (GPU, {"priority": 0}, SUCCESS),
        (GPU, {"time_limit": 5, "name": "x", "dependency": "y"}, SUCCESS),
        (CPU, {"gres": "gpu:4", "qos": "normal", "priority": UNSET + 1}, SUCCESS),
        (CPU, {"partition": "cpu"}, SUCCESS),
        (CPU, {"partition": "all"}, DENIED),
        ({"partition": "all"}, {"gres": "gpu:1g.10gb:1"}, DENIED),
    ],
)
def test_without_the_module_no_change_goes_unweighed(
    tmp_path: Path, job: dict[str, Any], change: dict[str, Any], code: int
) -> None:
    output = without_module(tmp_path, job=job, modify={**NOTHING, **change})
    assert f"modify\t{code}" in output
    assert ("this change of a job can't be checked" in output) == (code == DENIED)


@pytest.mark.parametrize("uid", [ROOT_UID, os.getuid()])
def test_root_and_slurmuser_change_what_they_like(tmp_path: Path, uid: int) -> None:
    """The test's own user stands in for the user that slurmctld runs as."""
    assert "modify\t0" in without_module(tmp_path, modify={"gres": "gpu:4"}, uid=uid)


def test_the_kill_switch_stops_the_lines_too(tmp_path: Path) -> None:
    (tmp_path / "off").touch()
    output = without_module(tmp_path, submit={"gres": "gpu:4"}, modify={"gres": "gpu:4"})
    assert "submit\t0" in output
    assert "modify\t0" in output
