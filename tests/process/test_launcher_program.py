import os
import subprocess
import sys
from typing import Any

import pytest


def at_a_terminal(*words: str, **environment: str) -> str:
    """What the command writes on a terminal."""
    code = f"import sys; from slicewise.launcher.main import main; sys.argv[1:] = {words!r}; main()"
    run_it = f"import pty, sys; pty.spawn([sys.executable, '-c', {code!r}])"
    clean = {key: value for key, value in os.environ.items() if key not in _COLOURS}
    return subprocess.run(
        [sys.executable, "-c", run_it],
        env={**clean, "TERM": "xterm-256color", **environment},
        capture_output=True,
        check=False,
        text=True,
        stdin=subprocess.DEVNULL,
    ).stdout


_COLOURS = {"NO_COLOR", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"}


@pytest.mark.parametrize("words", [("mig", "-h"), ("mig", "--oops"), ("service", "list"), ("-h",)])
def test_with_no_color_nothing_has_a_style(words: tuple[str, ...]):
    missing = {"SLICEWISE_CONFIG": "/nowhere/slicewise.toml"}
    assert "\x1b[" in at_a_terminal(*words, **missing)
    plain = at_a_terminal(*words, NO_COLOR="1", **missing)
    assert plain
    assert "\x1b" not in plain


@pytest.mark.parametrize("words", [("service", "schema"), ("service", "schema", "--json")])
def test_output_without_room_is_one_message(words: tuple[str, ...]):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = in_a_process(*words, stdout=full)
    assert ended.returncode == 2
    assert "SW-OUTPUT" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "ignored" not in ended.stderr


def test_a_closed_stdout_ends_no_command():
    words = ("service", "schema")
    code = f"exec {sys.executable} -m slicewise.launcher.main {' '.join(words)} >&-"
    ended = subprocess.run(["/bin/sh", "-c", code], stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_character_set_without_a_character_ends_no_command():
    ended = in_a_process("mig", "--oops", PYTHONIOENCODING="ascii", stdout=subprocess.PIPE)
    assert ended.returncode == 2
    assert "No such option" in ended.stderr
    text = "import sys; from launcher import main; sys.argv = ['slicewise', '--version'];"
    shows = f"{text} main._take_any_output(); print(chr(0x2192))"
    printed = subprocess.run(
        [sys.executable, "-c", shows],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert printed.stdout == "?\n"


def in_a_process(*words: str, stdout: Any, **environment: str) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "slicewise.launcher.main", *words],
        env=os.environ | environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
