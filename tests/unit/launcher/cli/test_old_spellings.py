"""Commands under their old spellings: hidden, and as before but for a line at a terminal."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from launcher.cli.command_table import COMMANDS, OLD_SPELLINGS
from launcher.main import app

RUN = (sys.executable, "-c", "from launcher.main import main; main()")
PATH = {"PATH": "/usr/bin:/bin"}


def invoked(line: str) -> tuple[int, str, str, str]:
    """Exit code, stdout, stderr, and the error that is left to the executable."""
    got = CliRunner().invoke(app, line.split(), prog_name="slicewise")
    return got.exit_code, got.stdout, got.stderr, repr(got.exception)


@pytest.mark.parametrize("old", OLD_SPELLINGS)
def test_no_listing_shows_it(old: str):
    assert not {old, old.split(maxsplit=1)[0]} & set(COMMANDS)
    _, listing, _, _ = invoked("--help")
    assert f"│ {old.split(maxsplit=1)[0]} " not in listing


@pytest.mark.parametrize("old", OLD_SPELLINGS)
def test_it_names_a_command_that_exists(old: str):
    code, shown, _, _ = invoked(f"{old} --help")
    assert code == 0
    words = [word for word in OLD_SPELLINGS[old].split() if not word.startswith("--")]
    assert f"Usage: slicewise {' '.join(words)} " in shown
    assert all(word in shown for word in OLD_SPELLINGS[old].split())


@pytest.mark.parametrize("new", sorted(set(OLD_SPELLINGS.values())))
def test_no_new_spelling_is_an_old_one(new: str):
    assert not {new, new.split(maxsplit=1)[0]} & set(OLD_SPELLINGS)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("costs --all", "mig costs --all"),
        ("costs --all --json", "mig costs --all --json"),
        ("costs --everything", "mig costs --everything"),
        ("explain vision --json", "why vision --limits --json"),
        ("explain --json vision", "why --json --limits vision"),
        ("explain", "why --limits"),
        ("priority explain 814 --json", "why 814 --priority --json"),
        ("priority explain", "why --priority"),
        ("quota plan --example", "tenant-quota plan --example"),
        ("quota plan", "tenant-quota plan"),
        ("quota loans --history", "tenant-quota loans --history"),
        ("quota calendar list", "tenant-quota calendar list"),
        ("quota calendar set vision --nominal 6", "tenant-quota calendar set vision --nominal 6"),
        ("quota", "tenant-quota"),
        ("recut history --limit 0", "repartition history --limit 0"),
        ("recut survey gpu07", "repartition survey gpu07"),
        ("recut", "repartition"),
        ("db current --json", "ledger db current --json"),
        ("db grant auditor", "ledger db grant auditor"),
        ("db downgrade 0001 --yes", "ledger db downgrade 0001 --yes"),
        ("db", "ledger db"),
    ],
)
def test_it_does_the_same_as_the_new_one(old: str, new: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SLICEWISE_CONFIG", "/nonexistent/slicewise.toml")
    assert invoked(old) == invoked(new)
    assert any(old == each or old.startswith(f"{each} ") for each in OLD_SPELLINGS)


def stderr_at_a_terminal(*words: str, **variables: str) -> str:
    ours, theirs = os.openpty()
    try:
        subprocess.run(
            (*RUN, *words),
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            env={**PATH, **variables},
            check=False,
        )
        os.write(theirs, b"(end)")
        return os.read(ours, 65_536).decode().removesuffix("(end)")
    finally:
        os.close(ours)
        os.close(theirs)


def test_only_a_terminal_is_told_the_new_spelling():
    said = "slicewise quota is now: slicewise tenant-quota\r\n"
    assert stderr_at_a_terminal("quota", "plan", "--example") == said
    assert stderr_at_a_terminal("tenant-quota", "plan", "--example") == ""
    script = subprocess.run(
        (*RUN, "quota", "plan", "--example"), capture_output=True, env=PATH, check=True
    )
    assert script.stderr == b""
    assert script.stdout.startswith(b"#")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("slicewise rec", []),
        ("slicewise repa", ["repartition"]),
        ("slicewise d", ["doctor", "daemon"]),
        ("slicewise repartition s", ["show", "survey"]),
        ("slicewise db u", ["upgrade"]),
        ("slicewise ledger db u", ["upgrade"]),
        ("slicewise ledger d", ["db"]),
        ("slicewise mig c", ["costs"]),
        ("slicewise tenant-quota calendar r", ["remove"]),
        ("slicewise explain --j", ["--json"]),
    ],
)
def test_the_shell_completes_what_follows_it_but_not_the_spelling_itself(
    line: str, words: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    shown = CliRunner().invoke(
        app, [], prog_name="slicewise", env={"_SLICEWISE_COMPLETE": "complete_bash"}
    )
    assert shown.stdout.split() == words


def test_completion_tells_a_terminal_nothing():
    variables = {"COMP_WORDS": "slicewise db u", "COMP_CWORD": "2"}
    assert stderr_at_a_terminal(_SLICEWISE_COMPLETE="complete_bash", **variables) == ""
