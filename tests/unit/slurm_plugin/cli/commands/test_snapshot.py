"""Tests slicewise snapshot where it refuses before it asks."""

from pathlib import Path

import pytest
from builders.snapshot_world import SETTINGS
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.launcher.main import app
from slicewise.slurm_plugin.cli.commands import snapshot

pytestmark = pytest.mark.usefixtures("clock")


def test_a_place_where_nothing_can_be_written_is_refused_before_slurm_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(snapshot, "load_settings", lambda: SETTINGS)
    monkeypatch.setattr(DaemonClient, "call", None)
    line = ("snapshot", str(tmp_path / "no" / "site.zip"), "--days", "31")
    with pytest.raises(InvalidInputError, match="SW-OUTPUT"):
        CliRunner().invoke(app, line, catch_exceptions=False)
