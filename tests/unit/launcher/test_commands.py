"""The listing's table says what the commands themselves say."""

import subprocess
import sys
from collections.abc import Mapping
from inspect import cleandoc

import pytest
from typer.testing import CliRunner

from launcher.commands import COMMANDS
from launcher.main import app, loaded

HEAVY = ("sqlalchemy", "alembic", "psycopg", "aiohttp", "tritonclient", "jinja2")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_listing_shows_each_command_s_own_first_paragraph(name: str):
    command = loaded(name, COMMANDS[name])
    paragraph = cleandoc(command.help or "").split("\n\n")[0]
    assert COMMANDS[name].help == " ".join(paragraph.split())
    assert command.name == name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_how_it_is_used(name: str):
    shown = CliRunner().invoke(app, [name, "--help"], prog_name="slicewise")
    assert shown.exit_code == 0
    assert f"Usage: slicewise {name} " in shown.output
    is_tree = "COMMAND" in shown.output
    assert is_tree or "Example" in shown.output


def imported_by(*words: str, variables: Mapping[str, str] | None = None) -> set[str]:
    """Heavy packages that a run of ``slicewise`` has imported when it ends."""
    program = (
        "import atexit, sys\n"
        f"sys.argv = ['slicewise', *{list(words)!r}]\n"
        f"atexit.register(lambda: print('HEAVY', *[m for m in {HEAVY!r} if m in sys.modules]))\n"
        "from launcher.main import main\n"
        "main()\n"
    )
    ran = subprocess.run(
        (sys.executable, "-c", program),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **(variables or {})},
    )
    (line,) = (line for line in ran.stdout.splitlines() if line.startswith("HEAVY"))
    return set(line.split()[1:])


def test_what_needs_no_server_imports_nothing_for_one():
    assert imported_by("--version") == set()
    assert imported_by("--help") == set()
    assert imported_by("sbatch", "--shell-function") == set()
    assert imported_by("why", "--help") == set()


def test_the_shell_s_completion_knows_the_commands_of_a_tree():
    variables = {"_SLICEWISE_COMPLETE": "complete_bash"}
    completed = {
        "slicewise tenant-qu": ["tenant-quota"],
        "slicewise tenant-quota s": ["set", "show"],
    }
    for line, words in completed.items():
        words_now = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        shown = subprocess.run(
            (sys.executable, "-c", "from launcher.main import main; main()"),
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", **variables, **words_now},
        )
        assert shown.stdout.split() == words
