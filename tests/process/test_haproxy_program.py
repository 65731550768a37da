"""Tests the Runtime API of HAProxy 2.6: what is read from it, and which commands it gets."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.launcher.gateway import haproxy


@pytest.mark.parametrize(
    ("lines", "limit", "is_refused"),
    [(512, 1024, False), (1024, 1024, True), (1024, 1280, False), (131_072, -1, True)],
)
async def test_a_configuration_that_wants_more_files_than_allowed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, limit: int, is_refused: bool
):
    """``haproxy -c`` is content with it; with 1,024 lines and 1,100 files its start failed."""
    program = tmp_path / "haproxy"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(haproxy, "getrlimit", lambda _: (limit, limit))
    path = tmp_path / "haproxy.cfg"
    path.write_text(
        "    server r1 127.0.0.1:1 disabled maxconn 1 check inter 1s\n" * lines
        + "    server r1 127.0.0.1:1 maxconn 1 track triton1/r1\n    server again /x backup\n"
    )
    refused = pytest.raises(InvalidInputError, match="would not start") if is_refused else None
    with refused or nullcontext():
        await haproxy.check_configuration(path)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            "[NOTICE] : version\n[ALERT] : no user\n[WARNING] : order\n[ALERT] : fatal\n",
            "[ALERT] : no user",
        ),
        ("sh: cannot start\n", "sh: cannot start\n"),
        (
            "[ALERT] : 'http-request' expects 'a(*)', 'b', 'c', 'd', 'e', or 'f', but got 'x'.\n",
            "[ALERT] : 'http-request' knows no such word, got 'x'.",
        ),
    ],
)
async def test_of_a_rejected_configuration_only_what_is_refused_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, said: str
):
    """Two alerts stood before 384 warnings."""
    program, path = tmp_path / "haproxy", tmp_path / "haproxy.cfg"
    program.write_text(f"#!/bin/sh\nprintf '%b' {told!r} >&2\nexit 1\n")
    program.chmod(0o755)
    path.write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidInputError) as refused:
        await haproxy.check_configuration(path)
    assert refused.value.refusal.message == f"HAProxy rejects {path}:\n{said}"
