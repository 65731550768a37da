"""Tests what a log line is, whatever is logged, and which ids it carries."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys
from slicewise.cluster.runtime.log import configure_logging, emit
configure_logging("daemon", sys.argv[1], "INFO")
assert "structlog" not in sys.modules
log = logging.getLogger("slicewise.daemon")
emit(log, logging.DEBUG, "unseen", {})
emit(log, logging.INFO, "seen", {"a": 1})
logging.getLogger("aiohttp").info("unseen")
logging.getLogger("aiohttp").log(35, "a %s\\nof theirs", "word")
"""


@pytest.mark.parametrize(("form", "first"), [("logfmt", "time="), ("json", '{"time": ')])
def test_a_program_writes_lines_on_stderr_and_libraries_warn_there(form: str, first: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM, form), check=True, capture_output=True, text=True
    )
    own, theirs = done.stderr.splitlines()
    assert own.startswith(first)
    assert "seen" in own
    assert theirs.startswith(first)
    assert "library" in theirs
    assert "aiohttp" in theirs
    assert "a word\\nof theirs" in theirs
