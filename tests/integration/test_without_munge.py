"""Commands and launcher of a host that has no munge: by https, with slurmctld's own tokens."""

import json
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from effort import is_ci
from quotas import until_daemon_leads, until_in_force
from service_status import until_routed
from waiting import until

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.host.packages import PREFIX, has_tokens

MAY_LACK_THEM = bool(PREFIX) or not is_ci()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(MAY_LACK_THEM and not has_tokens(), reason="this Slurm makes no tokens"),
]

SERVICE = "nlp/remote"
FILE = """\
[service]
name = "remote"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "1g.18gb"
max_replicas = 1
keep_alive_s = 600
lease_s = 600
memory_mib = 512
"""
TOKEN = b"eyJ"
"""How each JSON web token begins."""


class Site:
    """The commands on a host without munge and without the daemon's socket."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        layout = sandbox.layout
        self.place = (layout.head_address, layout.port("daemon"))
        self.pem, self.authority = layout.etc / "daemon.pem", layout.etc / "daemon.crt"
        self._make_certificate()
        self.own_text = layout.settings_file.read_text()
        lines = (f'certificate = "{self.pem}"', f'certificate_authority = "{self.authority}"')
        self.text = self.own_text.replace("[daemon]\n", "\n".join(("[daemon]", *lines, "")))
        self.elsewhere = self.written("elsewhere", run_dir="/nowhere", munge_socket="/nowhere/m")

    def _make_certificate(self) -> None:
        key = self.sandbox.layout.etc / "daemon.key"
        words = "openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 90"
        name = ("-subj", "/CN=head", "-addext", f"subjectAltName=IP:{self.place[0]}")
        made = (*words.split(), *name, "-keyout", str(key), "-out", str(self.authority))
        subprocess.run(made, check=True, capture_output=True)
        self.pem.write_text(self.authority.read_text() + key.read_text())
        key.unlink()
        slurm = self.sandbox.state.users["slurm"]
        for file, mode in ((self.pem, 0o600), (self.authority, 0o644)):
            file.chmod(mode)
        subprocess.run(("chown", str(slurm.uid), str(self.pem)), check=True)

    def written(self, name: str, **values: str) -> Path:
        text = self.text
        for key, value in values.items():
            text, found = re.subn(
                rf'^{key} = ".*"$', f'{key} = "{value}"', text, flags=re.MULTILINE
            )
            assert found == 1
        path = self.sandbox.layout.etc / f"{name}.toml"
        path.write_text(text)
        path.chmod(0o644)
        return path

    def restart_daemon(self, text: str) -> None:
        self.sandbox.layout.settings_file.write_text(text)
        self.sandbox.stop("daemon")
        self.sandbox.start("daemon", "slurm", ("slicewise", "daemon"))
        until_daemon_leads(self.sandbox)

    def says(self, user: str, *words: str, config: Path | None = None, **variables: str) -> str:
        where = f"SLICEWISE_CONFIG={config or self.elsewhere}"
        more = (f"{key}={value}" for key, value in variables.items())
        argv = (
            "env",
            "-u",
            "SLICEWISE_DATABASE_URL",
            "COLUMNS=300",
            where,
            *more,
            "slicewise",
            *words,
        )
        done = self.sandbox.run(user, argv, check=False)
        assert "Traceback" not in done.stderr
        return done.stdout or done.stderr

    def reads(self, user: str, *words: str, **variables: str) -> Any:
        return json.loads(self.says(user, *words, "--json", **variables))

    def token(self, user: str, *options: str) -> str:
        done = self.sandbox.run(user, ("scontrol", "token", *options))
        return done.stdout.strip().removeprefix("SLURM_JWT=")

    def answer(self, token: str, target: str = "/v1/whoami") -> tuple[int, Any]:
        """What a program gets that sends this token."""
        trust = ssl.create_default_context(cafile=self.authority)
        connection = HTTPSConnection(*self.place, timeout=60, context=trust)
        connection.request("GET", target, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        answered = response.status, json.loads(response.read())
        connection.close()
        return answered


@pytest.fixture(scope="module")
def site(sandbox: Sandbox) -> Iterator[Site]:
    site = Site(sandbox)
    site.restart_daemon(site.text)
    yield site
    site.restart_daemon(site.own_text)
    for file in (site.pem, site.authority, *sandbox.layout.etc.glob("elsewhere*.toml")):
        file.unlink()


def test_commands_ask_and_change_without_munge(site: Site) -> None:
    site.says("root", "tenant-quota", "set", "vision", "--nominal", "3")
    until_in_force(site.sandbox, "vision")
    assert site.reads("alice", "why", "--limits", "vision")["tenant"] == "vision"
    assert "SW-TENANT-UNKNOWN" in site.says("bob", "why", "--limits", "vision")
    refused = site.says("alice", "tenant-quota", "set", "vision", "--nominal", "7")
    assert "SW-FORBIDDEN" in refused


def test_a_token_of_the_environment_says_who_asks(site: Site) -> None:
    bobs = site.token("bob", "lifespan=600")
    said = site.says("alice", "why", "--limits", "vision", SLURM_JWT=bobs)
    assert "SW-TENANT-UNKNOWN" in said
    assert site.answer(bobs) == (200, {"v": 1, "is_operator": False})
    assert site.answer(site.token("slurm"))[1]["is_operator"] is True


def test_a_token_counts_until_its_end_and_for_a_day_at_most(site: Site) -> None:
    short, ends_s = site.token("alice", "lifespan=1"), time.time() + 1.0
    long = site.token("alice", "lifespan=100000")
    header, claims, signature = long.split(".")
    time.sleep(max(0.0, ends_s + 1.0 - time.time()))
    for token, why in (
        (short, "has ended"),
        (long, "more than 86400 s"),
        (f"{header}.{claims}.{signature[::-1]}", "none of Slurm's"),
        ("", "no token"),
    ):
        status, said = site.answer(token)
        assert (status, said["code"]) == (401, "SW-TOKEN")
        assert why in said["message"]


def test_a_daemon_with_another_certificate_is_not_asked(site: Site) -> None:
    nowhere = {"run_dir": "/nowhere", "certificate_authority": "/nowhere/daemon.crt"}
    config = site.written("elsewhere-system", **nowhere)
    assert "SW-SETTINGS" in site.says("alice", "service", "list", config=config)
    text = site.elsewhere.read_text()
    config.write_text(re.sub(r"^certificate_authority.*\n", "", text, flags=re.MULTILINE))
    said = site.says("alice", "service", "list", config=config)
    assert "SW-DAEMON-DOWN" in said
    assert "not to be believed" in said


def test_the_launcher_serves_from_a_host_without_munge(site: Site) -> None:
    sandbox = site.sandbox
    models = json.dumps(str(publish_models(sandbox.layout.models)))
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "3"))
    until_in_force(sandbox, "nlp")
    file = sandbox.layout.home / sandbox.state.users["bob"].name / "remote.toml"
    file.write_text(FILE.format(models=models))
    sandbox.stop("launcher")
    argv = ("slicewise", "launcher", "--config", str(site.elsewhere))
    sandbox.start("launcher-remote", "slicewise", argv)
    try:
        sandbox.run("bob", ("slicewise", "service", "apply", str(file)))
        until_routed(sandbox, SERVICE)
    finally:
        sandbox.run("bob", ("slicewise", "service", "delete", SERVICE, "--now"), check=False)
        sandbox.stop("launcher-remote")
        sandbox.start("launcher", "slicewise", ("slicewise", "launcher"))
    until(lambda: "remote" not in sandbox.run("root", ("squeue", "-h", "-o", "%j")).stdout)


def test_no_token_is_in_an_argument_or_a_log(site: Site) -> None:
    shown: set[bytes] = set()
    ends = Event()

    def watch() -> None:
        while not ends.is_set():
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    shown.update(re.findall(rb"eyJ[\w-]+\.eyJ[\w.-]+", file.read_bytes()))
                except OSError:  # It has ended.
                    continue

    watcher = Thread(target=watch)
    watcher.start()
    for _ in range(5):
        assert site.reads("alice", "service", "list") == []
    site.answer(site.token("alice")[:-2])
    ends.set()
    watcher.join()
    assert shown == set()
    logs = [file for file in site.sandbox.layout.log.rglob("*") if file.is_file()]
    assert logs
    assert [file.name for file in logs if TOKEN in file.read_bytes()] == []


def test_the_doctor_believes_the_certificate_and_wants_no_munge(site: Site) -> None:
    words = ("slicewise", "doctor", "--section", "host", "--json")
    done = site.sandbox.run("root", words, check=False)
    (report,) = json.loads(done.stdout)["sections"]
    assert not {"SW-CERTIFICATE", "SW-TOKEN-KEY"} & {one["code"] for one in report["findings"]}
    elsewhere = json.loads(site.says("alice", "doctor", "--section", "daemon", "--json"))
    (seen,) = elsewhere["sections"]
    assert (seen["skipped"], seen["findings"]) == ("", [])
