"""Tests what the gateway's commands write and say."""

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.launcher.cli import gateway
from slicewise.launcher.gateway.files import replace_file
from slicewise.launcher.gateway.identity import ends_s
from slicewise.launcher.main import app

NOBODY = 65534
SETTINGS = """\
[cluster]
name = "c"
partitions = ["gpu"]
[gpus."A100-80GB"]
types = ["1g.10gb"]
[gateway]
directory = "{directory}"
identity = "{directory}.crt"
backends = 2
servers = 2
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "gateway"
    place.mkdir()
    (tmp_path / "slicewise.toml").write_text(SETTINGS.format(directory=place))
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    return place


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, ("gateway", *words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_render_writes_all_files_and_names_the_configuration(directory: Path):
    said = invoke("render", "--socket-user", "nobody")
    files = sorted(path.name for path in directory.iterdir())
    assert files == [
        "adapters.map",
        "allowances.lua",
        "allowances.map",
        "asked.map",
        "closing.map",
        "concurrent.map",
        "deadlines.map",
        "failed_calls.map",
        "failing.map",
        "haproxy.cfg",
        "hold.lua",
        "identity.pem",
        "in_time.map",
        "keys.map",
        "limits.map",
        "models.map",
        "openai.lua",
        "priorities.map",
        "protected.map",
        "rate.map",
        "replicas",
        "replicas.map",
        "retry.map",
        "retry_once.map",
        "sequence.lua",
        "sequences.map",
        "services.map",
        "taken.map",
        "tenants.map",
        "usage.lua",
        "used.map",
    ]
    text = (directory / "haproxy.cfg").read_text()
    # Of the default size it has 28,000 lines: what else was said scrolled away.
    assert said == f"{directory}/haproxy.cfg: {len(text.splitlines())} lines\n"
    assert "user nobody" in text
    assert (directory / "identity.pem").owner() == "nobody"
    assert (directory / "identity.pem").stat().st_mode & 0o777 == 0o600


def test_render_into_nowhere_names_the_key(directory: Path):
    directory.rmdir()
    with pytest.raises(SlicewiseError) as caught:
        invoke("render")
    assert caught.value.refusal.code == "SW-SETTINGS"
    missing = f"gateway.directory: {directory}/haproxy.cfg: No such file or directory."
    assert caught.value.refusal.message == missing
    assert caught.value.refusal.hint.endswith(f"install -d -m 711 -o slicewise {directory}")


def test_render_again_keeps_what_the_launcher_wrote_and_nobody_else_reads_keys(directory: Path):
    invoke("render")
    (directory / "services.map").write_text("vision/chat triton1\n")
    (directory / "keys.map").write_text("abc vision\n")
    key = (directory / "identity.pem").read_text()
    invoke("render")
    assert (directory / "identity.pem").read_text() == key
    assert directory.with_suffix(".crt").read_text() in key
    assert (directory / "services.map").read_text() == "vision/chat triton1\n"
    assert (directory / "keys.map").read_text() == "abc vision\n"
    assert (directory / "keys.map").stat().st_mode & 0o007 == 0


def test_render_names_engines_that_are_left_out(directory: Path, monkeypatch: pytest.MonkeyPatch):
    broken = SimpleNamespace(broken={"toy": "ImportError: no module"})
    monkeypatch.setattr(gateway, "ENGINES", broken)
    result = CliRunner().invoke(app, ("gateway", "render"), catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stderr == "Engine toy can't be used and is left out: ImportError: no module\n"


def test_render_refuses_a_section_of_no_engine(directory: Path):
    with (directory.parent / "slicewise.toml").open("a") as settings:
        settings.write('[engines.trion]\ncommand = "/opt/triton"\n')
    with pytest.raises(SlicewiseError, match=r"engines\.trion.*SW-SETTINGS"):
        invoke("render")
    assert not list(directory.iterdir())


def test_render_again_leaves_the_files_to_whose_they_are(directory: Path):
    """Root rendered beside a HAProxy of another user, which could not read its files any more."""
    invoke("render")
    configuration = directory / "haproxy.cfg"
    os.chown(configuration, NOBODY, NOBODY)
    configuration.write_text("of before")
    invoke("render")
    found = configuration.stat()
    assert configuration.read_text() != "of before"
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (NOBODY, NOBODY, 0o640)


def test_who_may_not_give_files_away_replaces_them_all_the_same(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    file = directory / "services.map"
    file.write_text("of before")
    monkeypatch.setattr(os, "chown", refuse)
    replace_file(file, "of now")
    assert file.read_text() == "of now"


@pytest.fixture
def for_clients(directory: Path) -> Path:
    """A certificate that ends in 30 days, which the settings name for clients."""
    file, key = directory.parent / "clients.pem", directory.parent / "key.pem"
    made = ("openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-days", "30", "-subj", "/CN=gw")
    curve = ("-pkeyopt", "ec_paramgen_curve:P-256")
    subprocess.run((*made, *curve, "-keyout", key, "-out", file), check=True, capture_output=True)
    file.write_text(file.read_text() + key.read_text())
    settings = directory.parent / "slicewise.toml"
    settings.write_text(f'{settings.read_text()}certificate = "{file}"\n')
    return file


def checked_in(days: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a check says on stderr, or refuses with, that many days from now."""
    monkeypatch.setattr(gateway, "wall_s", lambda: time.time() + days * 86400)
    try:
        result = CliRunner().invoke(app, ("gateway", "render", "--check"), catch_exceptions=False)
    except SlicewiseError as error:
        return f"{error.refusal.code} {error.refusal.message}"
    assert result.exit_code == 0
    return result.stderr


def test_a_check_says_when_the_certificate_for_clients_ends(
    for_clients: Path, monkeypatch: pytest.MonkeyPatch
):
    """HAProxy accepts one that has ended, and each client refuses it."""
    assert checked_in(0, monkeypatch) == ""
    assert checked_in(17, monkeypatch).startswith(f"The certificate in {for_clients} ends on 20")
    ended = f"SW-CERTIFICATE The certificate in {for_clients} ended on 20"
    assert checked_in(31, monkeypatch).startswith(ended)


def test_a_check_says_when_the_gateways_own_certificate_ends(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    own = directory / "identity.pem"
    assert checked_in(3640, monkeypatch).startswith(f"The certificate in {own} ends on 20")
    assert f"SW-CERTIFICATE The certificate in {own} ended" in checked_in(3651, monkeypatch)


def test_a_file_without_a_certificate_is_named(tmp_path: Path):
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(SlicewiseError, match=r"empty\.pem has no certificate"):
        ends_s(tmp_path / "empty.pem")
