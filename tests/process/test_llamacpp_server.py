import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.sandbox.servers import llamacpp
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model


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
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 1
    assert "failed to load model" in ran.stdout + ran.stderr


def health(path: Path) -> bytes:
    """What it answers on a connection of its own; b"" if it does not."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        return client.recv(100)
    return b""


def test_a_signal_that_is_blocked_for_it_does_not_end_it(tmp_path: Path) -> None:
    """As a batch script starts it: Slurm's TERM, at a preemption, cut its streams off."""
    command = llamacpp.stage(tmp_path / "bin", tmp_path / "llamacpp", Path(sys.executable))
    write_tiny_model(tmp_path / "m.gguf")
    place = tmp_path / "http.sock"
    words = ("--model", tmp_path / "m.gguf", "--alias", "m", "--tags", "t", "--host", place)
    server = subprocess.Popen(
        ("env", "--block-signal=TERM", command, *words, "--parallel", "1", "--threads", "1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: b"200 OK" in health(place))
        server.terminate()
        assert all(b"200 OK" in health(place) for _ in range(20))
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE_S) == 0
    finally:
        server.kill()


def test_a_missing_package_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llamacpp, "find_spec", lambda module: None)
    with pytest.raises(InvalidInputError, match="xllamacpp") as caught:
        llamacpp.stage(tmp_path / "bin", tmp_path / "llamacpp", Path(sys.executable))
    assert caught.value.refusal.code == "SW-PROGRAM"
    assert list(tmp_path.iterdir()) == []
