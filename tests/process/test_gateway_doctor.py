"""Tests slicewise doctor: its sections, what it accepts, --fix, --json and exit codes."""

import asyncio
import json
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
import typer
from free_ports import free_port
from stand_ins.doctors_slurm import CONSTRAINED, SETTINGS, settings, slurm_has, two_gpus
from stand_ins.emulated_gpus import FaultyDriver
from typer.testing import CliRunner, Result

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.runtime import section_look
from slicewise.cluster.runtime.user_names import user_name
from slicewise.launcher.cli import gateway_report
from slicewise.launcher.cli.doctor import doctor
from slicewise.launcher.gateway import haproxy
from slicewise.launcher.gateway.certificates import answer_at
from slicewise.launcher.process import leadership

ALL = {"1g.10gb": 1, "nvidia_a100_3g.40gb": 1, "nvidia_h200": 1}

app = typer.Typer()
app.command()(doctor)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyDriver]:
    yield from two_gpus(tmp_path, monkeypatch)


def run(*args: str) -> Result:
    return CliRunner().invoke(app, args)


def found(*args: str) -> dict[str, str]:
    """The texts of what it finds, by code."""
    sections = json.loads(run(*args, "--json").stdout)["sections"]
    return {f["code"]: f["what"] for one in sections for f in one["findings"]}


def texts(*args: str) -> set[str]:
    """What it finds, without codes."""
    sections = json.loads(run(*args, "--json").stdout)["sections"]
    return {f["what"] for one in sections for f in one["findings"]}


def test_it_warns_where_slurm_leaves_devices_open_to_all_jobs(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, ALL)
    assert "SW-DEVICES-OPEN" not in found("--node", "gpu07")
    slurm_has(monkeypatch, ALL, {**CONSTRAINED, "ConstrainDevices": "no"})
    assert "ConstrainDevices=yes" in found("--node", "gpu07")["SW-DEVICES-OPEN"]


def test_it_says_how_late_slurm_starts_replicas(
    node: FaultyDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, is_late in (("(null)", True), ("batch_sched_delay=0,bf_continue", False)):
        slurm_has(monkeypatch, ALL, {**CONSTRAINED, "SchedulerParameters": words})
        assert ("batch_sched_delay=3" in found().get("SW-CONF-SLOW-START", "")) == is_late


def test_the_pages_secrets_are_looked_at_where_it_is_served(
    node: FaultyDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_has(monkeypatch, ALL)
    secret, key = tmp_path / "secret", tmp_path / "jwt_hs256.key"
    web = f"""
[web]
listen = "127.0.0.1:{free_port()}"
proxies = ["127.0.0.1"]
proxy_header = "X-Remote-User"
proxy_secret_file = "{secret}"
"""
    settings(tmp_path, monkeypatch, web)
    page, host = ("--section", "web"), ("--section", "host")
    (elsewhere,) = json.loads(run(*page, "--json").stdout)["sections"]
    assert elsewhere["skipped"] == "the page is on another host"
    file = tmp_path / "slicewise.toml"
    run_dir = f'{tmp_path}"\nslurm_jwt_key = "{key}'
    file.write_text(file.read_text().replace("/nowhere/run", run_dir))
    assert {"SW-WEB-DOWN", "SW-SETTINGS"} <= set(found(*page))
    assert "SW-TOKEN-KEY" in found(*host)
    assert "No such file" in found(*page)["SW-SETTINGS"]
    secret.write_text("short")
    assert "has 5 bytes" in found(*page)["SW-SETTINGS"]
    for one in (secret, key):
        one.write_text(32 * "x")
        one.chmod(0o604)
        assert f"{one} has mode 0604" in texts(*host)
        one.chmod(0o600)
    assert "SW-SETTINGS" not in found(*page)
    settings(tmp_path, monkeypatch)
    (none,) = json.loads(run(*page, "--json").stdout)["sections"]
    assert none["skipped"] == "[web] listen is not set: there is no page"


def test_another_clusters_slurm_is_named_once(
    node: FaultyDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slicewise.toml"
    file.write_text(file.read_text().replace("/nowhere/run", str(tmp_path)))
    for name in ("c", "C"):
        slurm_has(monkeypatch, ALL, {**CONSTRAINED, "ClusterName": name})
        assert "limits: the ledger can't be read" in run().stdout
        assert "SW-CLUSTER-NAME" not in found()
    slurm_has(monkeypatch, ALL, {**CONSTRAINED, "ClusterName": "other"})
    shown = json.loads(run("--json").stdout)["sections"]
    assert [one["code"] for each in shown for one in each["findings"]].count("SW-CLUSTER-NAME") == 1
    (limits,) = [one for one in shown if one["section"] == "limits"]
    assert limits["skipped"] == "Slurm is another cluster's, as slurm says"


@pytest.mark.parametrize(("state", "held"), [("active", "127.0.0.1:8080"), ("inactive", "")])
def test_the_port_that_systemd_holds_is_asked_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, held: str
) -> None:
    program = tmp_path / "systemctl"
    program.write_text(
        f"#!/bin/sh\necho 'Listen=127.0.0.1:8080 (Stream)'\necho ActiveState={state}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert asyncio.run(haproxy.held_address()) == held
    monkeypatch.setenv("PATH", "/nowhere")
    assert asyncio.run(haproxy.held_address()) == ""


def test_the_gateways_files_are_compared_with_what_would_be_rendered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")  # neither haproxy nor openssl
    directory = tmp_path / "gateway"
    directory.mkdir()
    text = SETTINGS.replace("/nowhere/gateway", str(directory))
    (tmp_path / "slicewise.toml").write_text(f'{text}runtime_socket = "{tmp_path}/none.sock"\n')
    monkeypatch.setenv("SLICEWISE_CONFIG", str(tmp_path / "slicewise.toml"))
    (report,) = gateway_report.reports(["gateway"], None, Path("/"))
    codes = [one.code for one in report.findings]
    assert {"SW-PROGRAM", "SW-GATEWAY-DOWN", "SW-GATEWAY-STALE"} <= set(codes)
    stale = next(one for one in report.findings if one.code == "SW-GATEWAY-STALE")
    assert "haproxy.cfg" in stale.what
    assert not list(directory.iterdir())


def test_a_launcher_that_began_before_a_package_was_unpacked_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "main.py"
    program.touch()
    os.utime(program, (1.0, 1.0))  # as packages do, whose files have the time of the build
    monkeypatch.setattr(gateway_report, "_PROGRAM", program)
    monkeypatch.setattr(gateway_report, "_launcher_s", lambda *_: program.stat().st_ctime - 60)
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "gateway").mkdir()
    settings(tmp_path, monkeypatch)
    file = tmp_path / "slicewise.toml"
    file.write_text(file.read_text().replace("/nowhere/gateway", str(tmp_path / "gateway")))
    (report,) = gateway_report.reports(["gateway"], None, Path("/"))
    assert "SW-RESTART" in {one.code for one in report.findings}


class Web(BaseHTTPRequestHandler):
    """Refuses everything, as the gateway does or as another server."""

    body = b""
    server_version, sys_version = "nginx/1.22", ""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Nothing is told."""


def test_who_answers_where_clients_are_sent_is_asked() -> None:
    def answer() -> str:
        thread = Thread(target=server.handle_request)
        thread.start()
        said = answer_at(f"http://127.0.0.1:{server.server_port}/")
        thread.join()
        return said

    with HTTPServer(("127.0.0.1", 0), Web) as server:
        assert answer() == "status 404 nginx/1.22"
        Web.body = b'{"error": "SW-GATEWAY-UNKNOWN: there is no service"}'
        assert answer() == ""
    assert answer_at(f"http://127.0.0.1:{free_port()}") == "nobody"
    assert answer_at("http://127.0.0.1:port") == ""


def test_a_launcher_that_a_signal_has_stopped_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, and does nothing."""
    own = user_name(os.getuid())
    process = tmp_path / "proc" / str(os.getpid())
    process.mkdir(parents=True)
    (process / "cmdline").write_bytes(b"python\0/bin/slicewise\0launcher\0")
    (process / "stat").write_text(
        "7 (python (x) y) T 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 9"
    )
    monkeypatch.setattr(gateway_report, "_PROC", tmp_path / "proc")
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "gateway").mkdir()
    settings(tmp_path, monkeypatch)
    file = tmp_path / "slicewise.toml"
    text = file.read_text().replace("/nowhere/gateway", str(tmp_path / "gateway"))
    file.write_text(text.replace("[daemon]\n", f'[daemon]\nlauncher_user = "{own}"\n'))
    (report,) = gateway_report.reports(["gateway"], None, Path("/"))
    (stopped,) = [one for one in report.findings if one.code == "SW-LAUNCHER-DOWN"]
    assert [one.line for one in stopped.mends] == [f"kill -CONT {os.getpid()}"]


def test_a_database_that_refuses_the_launcher_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher runs without it, and forgets at each start what it has learnt."""
    asked: list[tuple[str, str]] = []

    class Refusing:
        def __init__(self, url: str, cluster: str) -> None:
            asked.append((url, cluster))

        def load(self) -> None:
            raise UnreachableError("SW-DATABASE-DOWN", "PostgreSQL refuses the login.", "pg_hba")

    monkeypatch.setattr(leadership, "StateStore", Refusing)
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "gateway").mkdir()
    (tmp_path / "url").write_text("postgresql://slicewise_launcher@db/slicewise\n")
    settings(tmp_path, monkeypatch, f'[launcher]\nurl_file = "{tmp_path}/url"\n')
    file = tmp_path / "slicewise.toml"
    file.write_text(file.read_text().replace("/nowhere/gateway", str(tmp_path / "gateway")))
    (report,) = gateway_report.reports(["gateway"], None, Path("/"))
    (refused,) = [one for one in report.findings if one.code == "SW-DATABASE-DOWN"]
    assert refused.what == "The launcher's database: PostgreSQL refuses the login"
    assert asked == [("postgresql://slicewise_launcher@db/slicewise", "c")]


def test_a_file_that_can_not_be_read_hides_nothing_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, launcher = tmp_path / "gateway", "SW-LAUNCHER-DOWN"
    (gateway / "identity.pem").mkdir(parents=True)
    (gateway / "haproxy.cfg").write_bytes(b"\xff\xfe")  # as a power failure may leave it
    settings(tmp_path, monkeypatch)
    file = tmp_path / "slicewise.toml"
    file.write_text(file.read_text().replace("/nowhere/gateway", str(gateway)))
    monkeypatch.setattr(gateway_report, "_launchers", list)
    (report,) = gateway_report.reports(["gateway"], None, Path("/"))
    said = {one.code: one.what for one in report.findings}
    assert {launcher, "SW-GATEWAY-STALE"} <= said.keys()
    assert f"{gateway}/identity.pem: Is a directory" in said["SW-FILE-RIGHTS"]
    assert "SW-ROOT" not in said


def test_what_never_ends_is_a_finding_and_ends_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(section_look, "_LONGEST_S", 0.2)
    (tmp_path / "gateway").mkdir()
    settings(tmp_path, monkeypatch)
    file = tmp_path / "slicewise.toml"
    file.write_text(file.read_text().replace("/nowhere/gateway", str(tmp_path / "gateway")))
    os.mkfifo(tmp_path / "gateway" / "haproxy.cfg")
    (report,) = gateway_report.reports(["gateway"], None, Path("/"))
    assert [one.code for one in report.findings] == ["SW-TIMEOUT"]


def test_a_unit_with_fewer_open_files_than_the_shell_that_rendered_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HAProxy starts with them, and has less room than its configuration lets clients take."""

    async def says(_: object) -> dict[str, str]:
        return {"Version": "2.6.12", "Pid": "1", "Ulimit-n": "4095"}

    async def is_ours(_: object) -> bool:
        return True

    monkeypatch.setattr(haproxy, "process_facts", says)
    monkeypatch.setattr(haproxy, "is_ours", is_ours)
    monkeypatch.setattr(gateway_report, "_written_s", lambda _: 0.0)
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "haproxy.cfg").write_text("global\n    fd-hard-limit 20000\n")
    settings(tmp_path, monkeypatch)
    file = tmp_path / "slicewise.toml"
    file.write_text(file.read_text().replace("/nowhere/gateway", str(tmp_path / "gateway")))
    (report,) = gateway_report.reports(["gateway"], None, Path("/"))
    (few,) = [one for one in report.findings if one.code == "SW-GATEWAY-FILES"]
    assert few.what == (
        "HAProxy may have 4,095 open files, and its configuration was rendered for 20,000"
    )
