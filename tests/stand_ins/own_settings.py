"""Settings of a small cluster, in a file that the environment names."""

from pathlib import Path

import pytest


def small_cluster_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slicewise.toml").write_text(
        f'[cluster]\nname = "c"\npartitions = ["gpu"]\n[daemon]\nrun_dir = "{tmp_path}"\n'
        '[gpus."A100-80GB"]\ntypes = ["1g.10gb"]\n'
    )
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
