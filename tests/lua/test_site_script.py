"""etc/job_submit.lua, as a site would install it."""

import subprocess
from pathlib import Path

import pytest
from lua_slurmctld import Interpreter

ROOT = Path(__file__).resolve().parents[2]
STUB = """
logged = {}
slurm = {
    SUCCESS = 0, ESLURM_ACCESS_DENIED = 2002, ESLURM_ACCOUNTING_POLICY = 2050,
    log_error = function(format, ...) print("error: " .. string.format(format, ...)) end,
    log_info = function(format, ...) print("info: " .. string.format(format, ...)) end,
}
assert(loadfile(arg[1]))()
print("submit", slurm_job_submit({ gres = "gpu:1" }, { gpu = { flag_default = 1 } }, 1000))
print("modify", slurm_job_modify({ qos = "x" }, { admin_comment = arg[2] }, {}, 1000))
"""


def run(tmp_path: Path, module: str, comment: str = "") -> str:
    script = (ROOT / "etc" / "job_submit.lua").read_text()
    before = '"/opt/slicewise/lib/python3.11/site-packages/slurm_plugin/slicewise.lua"'
    assert before in script
    site = tmp_path / "job_submit.lua"
    site.write_text(script.replace(before, f'"{module}"').replace("/run/", f"{tmp_path}/"))
    stub = tmp_path / "stub.lua"
    stub.write_text(STUB)
    done = subprocess.run(
        [Interpreter.name, str(stub), str(site), comment],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_with_the_module(tmp_path: Path) -> None:
    output = run(tmp_path, str(ROOT / "slurm_plugin" / "slicewise.lua"))
    assert "info: slicewise: no answer" in output
    assert "submit\t0" in output
    assert "error" not in output


@pytest.mark.parametrize("text", [None, "syntax error here", "return 7", "error('boom')"])
def test_without_a_module_that_works_jobs_go_on(tmp_path: Path, text: str | None) -> None:
    module = tmp_path / "module.lua"
    if text is not None:
        module.write_text(text)
    output = run(tmp_path, str(module), "slicewise:1 token=ab12 tenant=vision")
    assert "error: slicewise is off: " in output
    assert "submit\t0" in output
    assert "modify\t0" in output
