import subprocess
import sys
from pathlib import Path

import pytest

from cluster.language.errors import InvalidInputError
from sandbox.servers import llamacpp


def test_the_staged_command_is_llama_cpp_s_server_for_everybody(tmp_path: Path) -> None:
    place = tmp_path / "a dir's $(llamacpp)"
    for _ in range(2):
        command = llamacpp.stage(tmp_path / "bin", place, Path(sys.executable))
    for path in (command, place, *place.rglob("*")):
        needed = 0o005 if path.is_dir() or path == command else 0o004
        assert path.stat().st_mode & needed == needed, path
    words = ("--alias", "m", "--tags", "t", "--host", str(tmp_path / "http.sock"))
    (tmp_path / "m.gguf").write_text("no model")
    ran = subprocess.run(
        [command, "--model", tmp_path / "m.gguf", *words, "--parallel", "1", "--threads", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 1
    assert "failed to load model" in ran.stdout + ran.stderr


def test_a_missing_package_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llamacpp, "find_spec", lambda module: None)
    with pytest.raises(InvalidInputError, match="xllamacpp") as caught:
        llamacpp.stage(tmp_path / "bin", tmp_path / "llamacpp", Path(sys.executable))
    assert caught.value.refusal.code == "SW-SANDBOX-LLAMACPP"
    assert list(tmp_path.iterdir()) == []
