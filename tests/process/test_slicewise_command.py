"""Tests that the listing's table agrees with the commands, and what commands import."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from inspect import cleandoc
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slicewise.launcher.cli.command_table import COMMANDS
from slicewise.launcher.main import app, loaded

HEAVY = (
    *("sqlalchemy", "alembic", "psycopg", "aiohttp", "tritonclient", "jinja2", "highspy", "numpy"),
    *(
        "matplotlib",
        "prometheus_client",
        "structlog",
        "uvloop",
        "slicewise.slurm_plugin.rebalance.run",
    ),
)
OF_SLURM = ("slicewise.cluster.slurm.commands",)
OF_THE_GATEWAY = ("urllib.request",)
OF_PLANS = (
    *(
        "slicewise.slurm_plugin.rules.explain.headroom",
        "slicewise.slurm_plugin.rules.round.world",
        "slicewise.slurm_plugin.state",
    ),
    *(
        "slicewise.slurm_plugin.rules.services.state",
        "slicewise.slurm_plugin.rules.slurm_config.gres",
    ),
    "slicewise.cluster.slurm.pyslurm_client",
)
SETTINGS = """\
[cluster]
name = "test"
partitions = ["gpu"]
[gpus."A100-80GB"]
types = ["1g.10gb"]
[daemon]
run_dir = "/nonexistent"
"""
NO_DATABASE = "postgresql://nobody@/slicewise?host=/nonexistent"

OF_NOBODY = (
    "--version",
    "--help",
    "mig costs",
    "mig costs --all",
    "mig profiles",
    "mig layouts A100-80GB",
    "service schema",
    "sbatch --shell-function",
)
OF_THE_DAEMON = (
    "overview",
    "top",
    "why 814",
    "why vision",
    "why vision --limits",
    "why 814 --priority",
    "budget show",
    "budget set vision --amount 1",
    "budget grant vision --amount 1 --reason why",
    "budget history vision",
    "ledger balance",
    "ledger statement vision",
    "report",
    "tenant list",
    "tenant show vision",
    "tenant create vision",
    "tenant delete vision --yes",
    "tenant-quota set vision --nominal 1",
    "tenant-quota history vision",
    "tenant-quota loans",
    "tenant-quota apply --example",
    "tenant-quota apply /etc/hostname --dry-run",
    "tenant-quota calendar list",
    "tenant-quota calendar delete 1",
    "tenant-quota propose /etc/hostname",
    "compile",
    "compile --dry-run",
    "observe",
    "ledger export",
    "rebalance history",
    "rebalance show 1",
    "repartition history",
    "repartition show 1",
    "repartition close 1",
    "service list",
    "service status chat",
    "service delete chat",
    "key list",
    "key delete 0123456789abcdef",
    "admission status",
)
OF_THE_DATABASE = (
    "ledger verify",
    "ledger db current",
    "ledger db grant auditor --as reader",
)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_listing_shows_each_command_s_own_first_paragraph(name: str):
    command = loaded(name, COMMANDS[name])
    paragraph = cleandoc(command.help or "").split("\n\n")[0]
    assert COMMANDS[name].help == " ".join(paragraph.split())
    assert command.name == name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_how_it_is_used(name: str):
    shown = CliRunner().invoke(app, [*name.split(), "--help"], prog_name="slicewise")
    assert shown.exit_code == 0
    assert f"Usage: slicewise {name} " in shown.output
    is_tree = "COMMAND" in shown.output
    assert is_tree or "Example" in shown.output


def imported_by(
    lines: Iterable[str], variables: Mapping[str, str], packages: Iterable[str] = HEAVY
) -> Mapping[str, set[str]]:
    """Which of these one process has imported after each of these runs of ``slicewise``.

    A line that is no command stands out by a package of that name.
    """
    program = (
        "import io, sys\n"
        "from slicewise.launcher.main import main\n"
        "for line in sys.stdin.read().splitlines():\n"
        "    sys.argv, sys.stderr = ['slicewise', *line.split()], io.StringIO()\n"
        "    try:\n"
        "        main()\n"
        "    except SystemExit:\n"
        "        pass\n"
        "    wrong = ['no command'] if 'Usage: ' in sys.stderr.getvalue() else []\n"
        f"    heavy = [m for m in {packages!r} if m in sys.modules]\n"
        "    print('HEAVY', line, *heavy, *wrong, sep='|')\n"
    )
    ran = subprocess.run(
        (sys.executable, "-c", program),
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", **variables},
    )
    found = (line.split("|") for line in ran.stdout.splitlines() if line.startswith("HEAVY|"))
    return {line: set(heavy) for _, line, *heavy in found}


@pytest.fixture
def settings_file(tmp_path: Path) -> str:
    file = tmp_path / "slicewise.toml"
    file.write_text(SETTINGS)
    return str(file)


def test_what_asks_no_database_imports_nothing_for_one(settings_file: str):
    # The sandbox needs its templates, and no user waits for its completion.
    helps = [f"{name} --help" for name in COMMANDS if name != "sandbox"]
    lines = [*OF_NOBODY, *OF_THE_DAEMON, *helps]
    variables = {"SLICEWISE_CONFIG": settings_file, "SLICEWISE_DATABASE_URL": NO_DATABASE}
    found = imported_by(lines, variables)
    assert found == {line: set() for line in lines}


def test_what_asks_the_database_imports_nothing_else(settings_file: str):
    variables = {"SLICEWISE_CONFIG": settings_file, "SLICEWISE_DATABASE_URL": NO_DATABASE}
    found = imported_by(OF_THE_DATABASE, variables)
    assert found == {line: {"sqlalchemy", "psycopg"} for line in OF_THE_DATABASE}


def test_what_shows_tenants_imports_nothing_that_only_plans_need(settings_file: str):
    variables = {"SLICEWISE_CONFIG": settings_file, "SLICEWISE_DATABASE_URL": NO_DATABASE}
    shown = ("tenant", "tenant-quota", "budget", "ledger balance", "ledger statement")
    every = (*OF_THE_DAEMON, *OF_THE_DATABASE)
    lines = [line for line in every if line.startswith(shown)]
    found = imported_by(lines, variables, OF_PLANS)
    assert found == {line: set() for line in lines}


def test_the_shell_s_completion_of_services_imports_no_gateway_and_no_policy(settings_file: str):
    heavy = (
        "slicewise.launcher.gateway.haproxy",
        "slicewise.launcher.rules.turn.state",
        "slicewise.launcher.rules.autoscale.policy",
    )
    lines = ["service --help", "service status --help"]
    found = imported_by(lines, {"SLICEWISE_CONFIG": settings_file}, heavy)
    assert found == {line: set() for line in lines}


def test_what_asks_the_daemon_imports_nothing_to_ask_slurm_or_the_gateway(settings_file: str):
    # But that of admission asks both.
    lines = [line for line in OF_THE_DAEMON if line != "admission status"]
    found = imported_by(lines, {"SLICEWISE_CONFIG": settings_file}, (*OF_SLURM, *OF_THE_GATEWAY))
    assert found == {line: set() for line in lines}


def test_plugins_are_kept_from_pydantic_but_not_from_programs_that_are_run(
    monkeypatch: pytest.MonkeyPatch,
):
    for before in (None, "one,another"):
        if before is not None:
            monkeypatch.setenv("PYDANTIC_DISABLE_PLUGINS", before)
        loaded("why", COMMANDS["why"])
        assert os.environ.get("PYDANTIC_DISABLE_PLUGINS") == before


def test_only_what_ends_soon_leaves_its_garbage():
    usual = gc.get_threshold()
    try:
        for name, command in COMMANDS.items():
            gc.set_threshold(1_000_000)
            loaded(name, command)
            assert (gc.get_threshold() == usual) is (name in {"daemon", "launcher"})
    finally:
        gc.set_threshold(*usual)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("slicewise tenant-qu", ["tenant-quota"]),
        ("slicewise tenant s", ["show"]),
        ("slicewise tenant-quota calendar d", ["delete"]),
        ("slicewise repartition s", ["show", "survey"]),
        ("slicewise d", ["doctor", "daemon"]),
        ("slicewise mig c", ["costs"]),
        ("slicewise ledger d", ["db"]),
        ("slicewise ledger db u", ["upgrade"]),
    ],
)
def test_the_shell_s_completion_knows_the_commands_of_a_tree(
    line: str, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    completing = {"_SLICEWISE_COMPLETE": "complete_bash"}
    shown = CliRunner().invoke(app, [], prog_name="slicewise", env=completing)
    assert shown.stdout.split() == words


INTERRUPTED = """
import os, signal, weakref
from slicewise.launcher import main

imported = main.import_module

def interrupt(_):
    os.kill(os.getpid(), signal.SIGINT)
    sum(range(1000))

class Lock: ...

def import_module(name):
    lock = Lock()
    kept = weakref.ref(lock, interrupt)
    del lock
    return imported(name)

main.import_module = import_module
main.main()
"""


def test_an_interrupt_while_a_command_is_imported_ends_it():
    """Python forgets one that comes within a callback: the command went on."""
    done = subprocess.run(
        (sys.executable, "-c", INTERRUPTED, "mig", "costs"), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (-signal.SIGINT, b"")
