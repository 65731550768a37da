"""Looks at pages that are served, with certificates of every kind, as the doctor does."""

import asyncio
import datetime as dt
import os
import pwd
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from free_ports import free_port
from stand_ins.web_world import known_users, page_up

from cluster.settings.file import WebSettings
from slurm_plugin.doctor.facts import CertificateFacts, WebFacts
from slurm_plugin.doctor.this_page import page_facts

HOST, DAY_S = "page.example.org", 86400
SLURM: Mapping[str, str] = {"AuthAltTypes": "(null)", "StateSaveLocation": "/var/spool/slurmctld"}


def pair(place: Path, lasts_days: float = 90.0, name: str = HOST) -> dict[str, Path]:
    """A certificate and its key, as settings of ``[web]``."""
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "the page")])
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=100))
        .not_valid_after(now + dt.timedelta(days=lasts_days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = {"certificate": place / "page.crt", "key": place / "page.key"}
    files["certificate"].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files["key"].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def seen(config: Mapping[str, str] = SLURM, **web: object) -> WebFacts:
    """What there is to say of a page with these settings."""
    known = {"listen": f"127.0.0.1:{free_port()}", "url": f"https://{HOST}", **web}
    return page_facts(WebSettings.model_validate(known), config, "slicewise")


def certificate(**web: object) -> CertificateFacts:
    found = seen(**web).certificate
    assert found is not None
    return found


def test_a_certificate_that_fits_is_all_right(tmp_path: Path):
    found = certificate(**pair(tmp_path))
    assert (found.problem, found.is_named, found.is_shown) == ("", True, True)
    assert found.ends_s == pytest.approx(time.time() + 90 * DAY_S, abs=100)
    assert seen().certificate is None


def test_one_that_has_ended_or_is_for_another_host_is_seen(tmp_path: Path):
    assert certificate(**pair(tmp_path, lasts_days=-1)).ends_s == 0
    other = certificate(**pair(tmp_path, name="other.example.org"))
    assert (other.problem, other.is_named) == ("", False)
    assert other.ends_s > time.time()
    by_address = certificate(**pair(tmp_path), url="https://192.0.2.7")
    assert (by_address.problem, by_address.is_named) == ("", False)


def test_what_is_no_pair_of_files_has_a_problem(tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    files = pair(tmp_path)
    mixed = certificate(**{**files, "key": pair(other)["key"]})
    assert mixed.problem == "key values mismatch"
    assert certificate(**{**files, "key": tmp_path / "none"}).problem == "No such file or directory"
    (tmp_path / "text").write_text("no certificate")
    text = certificate(**{**files, "certificate": tmp_path / "text"})
    assert text.problem == "one of them is not such a PEM file"


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
def test_another_program_is_not_the_page(tmp_path: Path, says: bytes):
    with other_program(says) as listen:
        assert seen(listen=listen).answered == "another"
        assert seen(listen=listen, **pair(tmp_path)).answered == "another"
    assert seen().answered == "nobody"


async def test_a_page_that_still_shows_its_older_certificate_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    known_users(monkeypatch)
    files = pair(tmp_path)
    async with page_up(tmp_path, url=f"https://{HOST}", **files) as served:
        listen = served.address.removeprefix("http://")
        found = await asyncio.to_thread(seen, listen=listen, **files)
        assert (found.answered, found.certificate.is_shown) == ("page", True)  # type: ignore[union-attr]
        pair(tmp_path)
        found = await asyncio.to_thread(seen, listen=listen, **files)
        assert (found.answered, found.certificate.is_shown) == ("page", False)  # type: ignore[union-attr]
    async with page_up(tmp_path) as served:
        listen = served.address.removeprefix("http://")
        assert (await asyncio.to_thread(seen, listen=listen, url="")).answered == "page"


def test_an_address_by_http_is_plain_unless_it_is_this_host():
    plain = [seen(url=url).is_plain for url in ("http://page.example.org", "http://192.0.2.7:81")]
    others = [seen(url=url).is_plain for url in ("", "http://localhost:81", f"https://{HOST}")]
    assert (plain, others) == ([True, True], [False, False, False])


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
    files = pair(folder)
    for file, mode in ((files["certificate"], 0o644), (files["key"], 0o640)):
        file.chmod(mode)
    assert seen(**files).unread == (str(files["key"]),)
    files["key"].chmod(0o644)
    assert seen(**files).unread == ()
    # As certbot leaves its folders.
    folder.chmod(0o700)
    assert seen(**files).unread == (str(files["certificate"]), str(files["key"]))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another group")
def test_the_users_groups_count_and_its_own_files_by_their_owner_alone(folder: Path):
    key = pair(folder)["key"]
    for uid, gid, mode, is_read in ((0, 64998, 0o640, True), (64999, 64998, 0o040, False)):
        os.chown(key, uid, gid)
        key.chmod(mode)
        files = {"certificate": folder / "page.crt", "key": key}
        (folder / "page.crt").chmod(0o644)
        assert seen(**files).unread == (() if is_read else (str(key),))


def test_a_doctor_who_may_not_read_a_file_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def denied(self: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(PermissionError, match=r"page\.crt"):
        seen(certificate=tmp_path / "page.crt", key=tmp_path / "page.key", listen="127.0.0.1:1")
    assert seen(listen="127.0.0.1:1").answered == "nobody"


def test_a_host_without_the_pages_user_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(pwd, "getpwnam", {}.__getitem__)
    found = seen(**pair(tmp_path))
    assert (found.has_user, found.unread) == (False, ())


def test_the_key_of_slurms_tokens_is_compared_with_slurm_confs(tmp_path: Path):
    key, link = tmp_path / "jwt_hs256.key", tmp_path / "link"
    link.symlink_to(key)
    named = {**SLURM, "AuthAltTypes": "auth/jwt"}
    for more, signs in (
        (named, "/var/spool/slurmctld/jwt_hs256.key"),
        ({**named, "AuthAltParameters": f"disable_token_creation,jwt_key={key}"}, str(key)),
        (SLURM, ""),
    ):
        found = seen(more, slurm_jwt_key=link)
        assert (found.tokens_by, found.slurms_tokens_by) == (str(key), signs)
    assert seen({}, slurm_jwt_key=link).tokens_by == ""
