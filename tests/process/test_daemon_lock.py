"""The lock by which one daemon runs in a directory."""

from pathlib import Path

import pytest

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.slurm_plugin.daemon.main import _only_one


def test_only_the_daemons_user_can_take_its_lock(tmp_path: Path):
    """Who could read the file could lock it, so that no daemon started."""
    lock = tmp_path / "daemon.lock"
    lock.touch(0o644)
    with _only_one(tmp_path):
        assert lock.stat().st_mode & 0o777 == 0o600
        with pytest.raises(SlicewiseError, match="SW-DAEMON-RUNNING"), _only_one(tmp_path):
            raise AssertionError


def test_a_link_in_its_place_is_not_followed(tmp_path: Path):
    (tmp_path / "daemon.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"), _only_one(tmp_path):
        raise AssertionError
    assert not (tmp_path / "elsewhere").exists()
