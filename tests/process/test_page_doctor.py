"""Looks at pages that are served, as the doctor does."""

import asyncio
import os
import pwd
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from free_ports import free_port
from pydantic import ValidationError
from stand_ins.web_world import known_users, page_up

from slicewise.cluster.language.file_access import barrier
from slicewise.cluster.runtime.host_look import holders
from slicewise.cluster.settings.file import DaemonSettings, WebSettings
from slicewise.launcher.gateway import certificates
from slicewise.launcher.gateway.certificates import answer_at
from slicewise.slurm_plugin.cli.commands import this_page
from slicewise.slurm_plugin.cli.commands.this_host import token_facts
from slicewise.slurm_plugin.cli.commands.this_page import page_facts
from slicewise.slurm_plugin.rules.site.facts import WebFacts

HOST = "page.example.org"
SLURM: Mapping[str, str] = {"AuthAltTypes": "(null)", "StateSaveLocation": "/var/spool/slurmctld"}


def secrets(place: Path) -> dict[str, Any]:
    """Files with secrets, as settings of ``[web]``."""
    ways, files = (
        {"proxies": ["127.0.0.1"], "proxy_header": "X-User"},
        (place / "proxy", place / "oidc"),
    )
    for file in files:
        file.write_text("s" * 32)
    provider = {"issuer": "https://sso.example.org", "client_id": "x"}
    return {
        **ways,
        "proxy_secret_file": files[0],
        "oidc": {**provider, "client_secret_file": files[1]},
    }


def seen(gateway: str = "https://models.example.org", **web: object) -> WebFacts:
    """What there is to say of a page with these settings."""
    known = {"listen": f"127.0.0.1:{free_port()}", "url": f"https://{HOST}", **web}
    return page_facts(WebSettings.model_validate(known), gateway, "slicewise")


def unread(**web: object) -> list[str]:
    """The files that the page's user can't read."""
    needs = seen(**web).needs
    return [one.way.asked for one in needs if barrier(one.way, one.person, one.right)]


@contextmanager
def other_program(says: bytes) -> Iterator[str]:
    """The address of a program that says the same to everybody."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    with listening.accept()[0] as one:
                        one.sendall(says)

        Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n"])
def test_another_program_is_not_the_page(says: bytes):
    with other_program(says) as listen:
        found = seen(listen=listen)
        assert found.answered == "another"
        assert f"(pid {os.getpid()}, user" in found.held_by
    assert seen().answered == "nobody"


@contextmanager
def without_end(says: bytes) -> Iterator[str]:
    """The address of a program that says the same to whoever asks until they hang up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError), listening.accept()[0] as one:
                while True:
                    one.sendall(says)

        Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize(
    "says", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: b", b"x" * 4096]
)
def test_a_program_that_never_ends_its_answer_holds_up_nobody(
    says: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(this_page, "_PATIENCE_S", 0.3)
    monkeypatch.setattr(certificates, "_PATIENCE_S", 0.3)
    with without_end(says) as listen:
        assert seen(listen=listen).answered == "another"
    for scheme in ("http", "https"):
        with without_end(says) as listen:
            assert answer_at(f"{scheme}://{listen}") == ""


def test_who_answers_as_the_page_does_is_known_by_its_user(monkeypatch: pytest.MonkeyPatch):
    """Anybody may listen there while the page is down, and call itself as the page does."""
    with other_program(b"HTTP/1.1 200 OK\r\nServer: slicewise\r\n\r\n") as listen:
        there = holders([int(listen.rpartition(":")[2])])
        monkeypatch.setattr(this_page, "holders", lambda _: [replace(there[0], user="eve")])
        found = seen(listen=listen)
        assert (found.answered, "user eve" in found.held_by) == ("another", True)


def test_where_systemd_alone_holds_the_port_nobody_answers(monkeypatch: pytest.MonkeyPatch):
    with other_program(b"") as listen:
        there = holders([int(listen.rpartition(":")[2])])
        systemd = replace(there[0], user="root", program="systemd")
        monkeypatch.setattr(this_page, "holders", lambda _: [systemd])
        assert seen(listen=listen).answered == "nobody"


def test_who_may_not_see_that_systemd_holds_the_port_calls_it_no_other_program(
    monkeypatch: pytest.MonkeyPatch,
):
    """It closes what came to a page that does not start; another secret would mend nothing."""
    monkeypatch.setattr(this_page, "holders", lambda _: ())
    with other_program(b"") as listen:
        assert seen(listen=listen).answered == "nobody"


async def test_the_page_itself_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known_users(monkeypatch)
    async with page_up(tmp_path) as served:
        listen = served.address.removeprefix("http://")
        assert (await asyncio.to_thread(seen, listen=listen, url="")).answered == "page"


def test_an_address_by_http_is_plain_unless_it_is_this_host():
    plain = [seen(url=url).is_plain for url in ("http://page.example.org", "http://192.0.2.7:81")]
    others = [seen(url=url).is_plain for url in ("", "http://localhost:81", f"https://{HOST}")]
    assert (plain, others) == ([True, True], [False, False, False])


@pytest.mark.parametrize(
    ("gateway", "name"),
    [
        (f"https://{HOST}:8443", HOST),
        (f"http://{HOST.upper()}./", HOST),
        ("https://models.example.org", ""),
        (f"https://a.{HOST}", ""),
    ],
)
def test_a_name_of_both_page_and_gateway_is_seen(gateway: str, name: str):
    assert seen(gateway=gateway).shared_name == name
    assert seen(gateway="http://127.0.0.1:8080", url="").shared_name == ""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that all can enter, on a host with a user for the page."""
    nobody = pwd.struct_passwd(("slicewise-web", "x", 64999, 64998, "", "/", "/bin/false"))
    monkeypatch.setattr(pwd, "getpwnam", {"slicewise-web": nobody}.__getitem__)
    monkeypatch.setattr(os, "getgrouplist", lambda _name, gid: [gid])
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid():
            each.chmod(each.stat().st_mode | 0o011)
    return tmp_path


def test_files_that_its_user_can_not_read_are_named(folder: Path):
    web = secrets(folder)
    proxy, provider = folder / "proxy", folder / "oidc"
    proxy.chmod(0o644)
    provider.chmod(0o640)
    assert unread(**web) == [str(provider)]
    provider.chmod(0o644)
    assert unread(**web) == []
    folder.chmod(0o700)
    assert unread(**web) == [str(proxy), str(provider)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another group")
def test_the_users_groups_count_and_its_own_files_by_their_owner_alone(folder: Path):
    web, file = secrets(folder), folder / "oidc"
    (folder / "proxy").chmod(0o644)
    for uid, gid, mode, is_read in ((0, 64998, 0o640, True), (64999, 64998, 0o040, False)):
        os.chown(file, uid, gid)
        file.chmod(mode)
        assert unread(**web) == ([] if is_read else [str(file)])


def test_a_doctor_who_may_not_read_a_file_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    web = secrets(tmp_path)

    opened = Path.open

    def denied(self: Path, *how: Any, **more: Any) -> Any:
        if self.parent == tmp_path:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *how, **more)

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(PermissionError, match="proxy"):
        seen(**web, listen="127.0.0.1:1")
    assert seen(listen="127.0.0.1:1").answered == "nobody"


@pytest.mark.parametrize("listen", ["0.0.0.0:443", "192.0.2.7:8690", "[::]:443"])
def test_the_page_listens_on_loopback_alone(listen: str):
    """Of TLS asyncio counts no connection before its handshake, and sets no groups."""
    with pytest.raises(ValidationError, match="behind a proxy"):
        WebSettings.model_validate({"listen": listen, "url": f"https://{HOST}"})
    with pytest.raises(ValidationError, match="certificate"):
        WebSettings.model_validate({"listen": "127.0.0.1:1", "certificate": "/a", "key": "/b"})


def test_a_host_without_the_pages_user_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    found = seen(**secrets(tmp_path))
    assert (found.has_user, found.needs) == (False, ())


def test_the_key_of_slurms_tokens_is_compared_with_slurm_confs(tmp_path: Path):
    key, link = tmp_path / "jwt_hs256.key", tmp_path / "link"
    link.symlink_to(key)
    named, daemon = {**SLURM, "AuthAltTypes": "auth/jwt"}, DaemonSettings(slurm_jwt_key=link)
    for more, signs in (
        (named, "/var/spool/slurmctld/jwt_hs256.key"),
        ({**named, "AuthAltParameters": f"disable_token_creation,jwt_key={key}"}, str(key)),
        ({**named, "AuthAltParameters": "jwks=/etc/slurm/jwks.json"}, ""),
        (SLURM, ""),
    ):
        found = token_facts(daemon, more)
        assert (found.known_by, found.signed_by) == (str(key), signs)
    assert token_facts(daemon, {}).known_by == ""
