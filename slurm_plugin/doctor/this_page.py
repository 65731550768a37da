"""Looks at the page of this host: who answers, its certificate, and the files that it must read."""

import os
import pwd
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from cluster.settings.file import WebSettings, host_and_port, is_loopback
from slurm_plugin.doctor.facts import Answerer, CertificateFacts, WebFacts

_PATIENCE_S = 3.0
_ANYWHERE: Mapping[str, str] = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- asked only
_READ, _ENTER = 0o4, 0o1
_ACL = "system.posix_acl_access"
_FLIGHTS = 3
"""Times that both sides of a handshake speak."""
_ENDED, _OTHER_HOST, _OTHER_ADDRESS = 10, 62, 64
"""OpenSSL's reasons to refuse a certificate."""


def page_facts(web: WebSettings, config: Mapping[str, str], server: str) -> WebFacts:
    """Return what is to be checked of the page; ``server`` is what its server calls itself.

    ``config`` is slurm.conf as slurmctld has it, empty if it does not answer. Raises
    PermissionError if the user who asks can't read a file of the page.
    """
    for file in _files(web):
        with suppress(FileNotFoundError):
            file.open("rb").close()
    answered, shown = _answer(web, server)
    user = _user(web.user)
    return WebFacts(
        listen=web.listen,
        user=web.user,
        has_user=user is not None,
        answered=answered,
        unread=tuple(_unread(web, user)) if user else (),
        is_plain=_is_plain(web),
        certificate=_certificate(web, shown),
        tokens_by=str(web.slurm_jwt_key.resolve()) if web.slurm_jwt_key and config else "",
        slurms_tokens_by=_slurms_key(config),
    )


def _answer(web: WebSettings, server: str) -> tuple[Answerer, bytes]:
    """Return who answers, and the certificate that is shown; b"" without one."""
    named, port = host_and_port(web.listen)
    host, own = _ANYWHERE.get(named, named), urlsplit(web.address).netloc
    if web.certificate is None:
        connection = HTTPConnection(host, port, timeout=_PATIENCE_S)
    else:
        # What it shows is compared with the file.
        any_of = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        any_of.check_hostname, any_of.verify_mode = False, ssl.CERT_NONE
        connection = HTTPSConnection(host, port, timeout=_PATIENCE_S, context=any_of)
    try:
        connection.connect()
        met = connection.sock
        shown = met.getpeercert(binary_form=True) if isinstance(met, ssl.SSLSocket) else None
        connection.request("GET", "/login", headers={"Host": own})
        called = connection.getresponse().headers.get("Server")
    except (ssl.SSLError, HTTPException, ConnectionResetError, BrokenPipeError):
        return "another", b""
    except OSError:
        return "nobody", b""
    finally:
        connection.close()
    return "page" if called == server else "another", shown or b""


def _is_plain(web: WebSettings) -> bool:
    place = urlsplit(web.address)
    host = place.hostname or ""
    return place.scheme == "http" and not is_loopback(f"[{host}]:1" if ":" in host else f"{host}:1")


# Files


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _files(web: WebSettings) -> Iterator[Path]:
    files = (web.certificate, web.key, web.proxy_secret_file, web.oidc.client_secret_file)
    yield from filter(None, files)


def _unread(web: WebSettings, user: pwd.struct_passwd) -> Iterator[str]:
    """Yield the files that the page's user can't read, though they are there."""
    groups = frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    for file in _files(web):
        with suppress(OSError):
            path = file.resolve(strict=True)
            ways = ((path, _READ), *((parent, _ENTER) for parent in path.parents))
            if user.pw_uid and not all(
                _may(one, right, user.pw_uid, groups) for one, right in ways
            ):
                yield str(file)


def _may(path: Path, right: int, uid: int, groups: frozenset[int]) -> bool:
    found = path.stat()
    if _ACL in os.listxattr(path):
        return True  # It may: who is named there is not looked at.
    as_whom = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    return bool(found.st_mode >> as_whom & right)


# The certificate


def _certificate(web: WebSettings, shown: bytes) -> CertificateFacts | None:
    """Return what a browser would say of the certificate; None without one."""
    if web.certificate is None or web.key is None:
        return None
    facts = CertificateFacts(str(web.certificate), urlsplit(web.address).hostname or "")
    page = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    browser = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Who has signed it is the browsers' affair: the certificate itself is believed here.
    browser.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        # No question for a password.
        page.load_cert_chain(web.certificate, web.key, password="")
        browser.load_verify_locations(web.certificate)
        return _looked_at(facts, page, browser, shown)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _ENDED:
            return replace(facts, ends_s=0.0)
        return replace(facts, problem=error.verify_message)
    except ssl.SSLError as error:
        words = error.reason.replace("_", " ").lower() if error.reason else ""
        return replace(facts, problem=words or "one of them is not such a PEM file")
    except OSError as error:
        return replace(facts, problem=error.strerror or str(error))


def _looked_at(
    facts: CertificateFacts, page: ssl.SSLContext, browser: ssl.SSLContext, shown: bytes
) -> CertificateFacts:
    is_named = True
    try:
        seen = _handshake(page, browser, facts.host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code not in (_OTHER_HOST, _OTHER_ADDRESS):
            raise
        is_named, browser.check_hostname = False, False
        seen = _handshake(page, browser, facts.host)
    words = seen.getpeercert() or {}
    return replace(
        facts,
        ends_s=ssl.cert_time_to_seconds(str(words["notAfter"])),
        is_named=is_named,
        is_shown=shown in (b"", seen.getpeercert(binary_form=True)),
    )


def _handshake(page: ssl.SSLContext, browser: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Let both sides meet in memory, and return the browser's. Raises ssl.SSLError."""
    asked, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = page.wrap_bio(asked, said, server_side=True)
    client = browser.wrap_bio(said, asked, server_hostname=host)
    for _ in range(_FLIGHTS):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client


# Slurm's tokens


def _slurms_key(config: Mapping[str, str]) -> str:
    """Return the file with which Slurm signs tokens; "" if it makes none."""
    if "auth/jwt" not in config.get("AuthAltTypes", "").split(","):
        return ""
    words = dict(one.partition("=")[::2] for one in config.get("AuthAltParameters", "").split(","))
    default = Path(config.get("StateSaveLocation", "/"), "jwt_hs256.key")
    return str(Path(words.get("jwt_key") or default).resolve())
