"""Tests that ``slicewise sbatch`` and the shell function run sbatch with unchanged arguments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slicewise.slurm_plugin.cli.commands.sbatch import SHELL_FUNCTION

SCRIPT = Path(__file__).parents[2] / "etc" / "slicewise.sh"
STAND_IN = """\
#!/bin/sh
printf '%s|' "$SLICEWISE_EXPLAIN" "$@"
cat
exit 7
"""
SHELLS = [shell for shell in ("dash", "bash", "zsh") if Path(f"/usr/bin/{shell}").exists()]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    stand_in = tmp_path / "sbatch"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"}


def wrapped(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    program = f"import sys; sys.argv = ['slicewise', 'sbatch', *{list(words)!r}]; "
    return subprocess.run(
        (sys.executable, "-c", program + "from slicewise.launcher.main import main; main()"),
        input="#!/bin/sh\n",
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("job.sh",),
        ("-p", "gpu", "-Jx", "--gres=gpu:auto", "--unknown", "job.sh", "--preview", "--", "x"),
        ("--wrap", "a 'b' $(c)\n", "", "*"),
        ("-h",),
        (),
    ],
)
def test_everything_is_sbatch_s_own(environment: dict[str, str], words: tuple[str, ...]):
    ran = wrapped(environment, *words)
    assert ran.returncode == 7
    assert ran.stdout == "".join(f"{word}|" for word in ("1", *words)) + "#!/bin/sh\n"


def test_the_wrapper_s_own_words_come_first(environment: dict[str, str]):
    assert wrapped(environment, "--preview", "job.sh").stdout.startswith("1|--test-only|job.sh|")
    assert wrapped(environment, "--", "--help").stdout.startswith("1|--help|")
    assert "Usage: slicewise sbatch" in wrapped(environment, "--help").stdout


def test_without_sbatch_it_says_so(environment: dict[str, str], tmp_path: Path):
    ran = wrapped({**environment, "PATH": str(tmp_path / "empty")}, "job.sh")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "SW-SLURM-FAILED" in ran.stderr


def test_signals_reach_sbatch_as_without_the_wrapper(environment: dict[str, str], tmp_path: Path):
    """A pipe that closes ends it, too."""
    (tmp_path / "sbatch").write_text("#!/bin/sh\ngrep SigIgn /proc/self/status\n")
    plain = subprocess.run(
        ("sbatch",), capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert wrapped(environment).stdout == plain


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_function_does_the_same(environment: dict[str, str], shell: str):
    command = f'. {SCRIPT}; sbatch "a b" "" c; echo "$? ${{SLICEWISE_EXPLAIN-unset}}"'
    ran = subprocess.run(
        (shell, "-c", command),
        input="",
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert ran.stdout == "1|a b||c|7 unset\n"


def test_the_installed_file_is_what_the_command_prints(environment: dict[str, str]):
    assert SCRIPT.read_text() == SHELL_FUNCTION
    assert wrapped(environment, "--shell-function").stdout == SHELL_FUNCTION
