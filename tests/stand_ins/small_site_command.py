"""slicewise simulate on a small site, and a change of its quotas."""

from collections.abc import Callable
from pathlib import Path

import pytest
from builders.small_site import site
from typer.testing import CliRunner

from slicewise.launcher.main import app
from slicewise.simulation.cli import inputs

Said = Callable[..., str]


def lending_without_limit(tmp_path: Path) -> Path:
    """Vision gets what nlp leaves idle."""
    file = tmp_path / "quotas.toml"
    file.write_text(
        '[tenants.vision]\nborrowing_limit = "unlimited"\n'
        '[tenants.nlp]\nlending_limit = "unlimited"\n'
    )
    return file


def simulating(monkeypatch: pytest.MonkeyPatch) -> Said:
    """Runs the command; returns what it wrote on stdout, or on stderr."""
    monkeypatch.setattr(inputs, "read_site", lambda _: site())

    def run(*words: object, code: int = 0, on: str = "stdout") -> str:
        line = ["simulate", "site.zip", "--workers", "1", *map(str, words)]
        found = CliRunner().invoke(app, line, catch_exceptions=False)
        assert found.exit_code == code, found.output
        return str(getattr(found, on))

    return run
