"""Looks at the gateway's address and certificates as others find them, for the doctor."""

import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from slicewise.cluster.rpc.exchange import UnsentError, exchange
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway.identity import KEY
from slicewise.launcher.rules.gateway.checks import CertificateFacts, IdentityFacts

_PATIENCE_S = 3.0
_MOST_BYTES, _SHOWN = 4096, 80
"""Of an answer, and of a server's name."""
_ANYWHERE: Mapping[str, str] = dict.fromkeys(("", "*", "0.0.0.0"), "127.0.0.1")  # noqa: S104
_FLIGHTS = 3
"""Times that both sides of a handshake speak."""
_ENDED, _OTHER_HOST, _OTHER_ADDRESS = 10, 62, 64
_NO_ISSUER = frozenset({2, 20, 21})
"""OpenSSL's reasons to refuse a certificate."""
_PRIVATE = "PRIVATE KEY-----"


def answer_at(url: str) -> str:
    """Return who answers at a URL in place of the gateway; "" if it does, or if that is unknown.

    The gateway refuses a service that there is not with a code of its own. Clients' certificates
    are looked at elsewhere.
    """
    parts, until_s = urlsplit(url), time.monotonic() + _PATIENCE_S
    target, is_tls = f"{parts.path.rstrip('/')}/slicewise-doctor/none", parts.scheme == "https"
    try:
        host = parts.hostname or ""
        place, tls_to = (host, parts.port or (443 if is_tls else 80)), host if is_tls else None
        named = {"Host": parts.netloc}
        with exchange(place, "GET", target, b"", until_s, headers=named, tls_to=tls_to) as answer:
            is_ours = b"SW-GATEWAY-" in answer.read(_MOST_BYTES)
    except UnsentError as error:
        is_nobody = isinstance(error.__cause__, ConnectionRefusedError | socket.gaierror)
        return "nobody" if is_nobody else ""
    except (OSError, HTTPException, ValueError):
        return ""
    shown = "".join(letter for letter in answer.headers.get("Server", "") if letter.isprintable())
    return "" if is_ours else f"status {answer.status} {shown[:_SHOWN]}".rstrip()


def identity_facts(settings: GatewaySettings) -> IdentityFacts:
    """Return how gateway.identity is, beside the gateway's own key where that is here.

    Raises OSError for what this user can't read.
    """
    facts = IdentityFacts(str(settings.identity))
    own = _first_certificate(_text(settings.directory / KEY))
    text = _text(settings.identity)
    if text is None:
        return replace(facts, is_there=False, has_key=own is not None)
    shown = _first_certificate(text)
    return replace(
        facts,
        has_key=own is not None,
        is_certificate=shown is not None,
        is_own=own is None or shown is None or shown == own,
    )


def _text(file: Path) -> str | None:
    with suppress(FileNotFoundError):
        return file.read_text(encoding="ascii", errors="replace")
    return None


def _first_certificate(text: str | None) -> bytes | None:
    """Return the first certificate in a text, in DER; None if it has none."""
    begins, ends = "-----BEGIN CERTIFICATE-----", ssl.PEM_FOOTER
    with suppress(ValueError):
        if text is not None:
            start = text.index(begins)
            return ssl.PEM_cert_to_DER_cert(text[start : text.index(ends, start)] + ends)
    return None


def certificate_facts(settings: GatewaySettings) -> CertificateFacts | None:
    """Return what a client would say of gateway.certificate; None without one.

    Raises OSError for what this user can't read.
    """
    if (file := settings.certificate) is None:
        return None
    facts = CertificateFacts(str(file), urlsplit(settings.url).hostname or "")
    gateway = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Who has signed it is looked at apart: the certificate itself is believed here.
    client.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        # No question for a password.
        gateway.load_cert_chain(file, _key_of(file), password="")
        client.load_verify_locations(file)
        facts = _looked_at(facts, gateway, client)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _ENDED:
            return replace(facts, ends_s=0.0)
        return replace(facts, problem=error.verify_message)
    except ssl.SSLError as error:
        words = error.reason.replace("_", " ").lower() if error.reason else ""
        return replace(facts, problem=words or "it is no such PEM file")
    except FileNotFoundError:
        return replace(facts, problem="no such file")
    served = _served(settings)
    own = _first_certificate(_text(file))
    is_known = _is_issuer_known(gateway, file)
    return replace(facts, is_shown=served in (b"", own), is_issuer_known=is_known)


def _key_of(file: Path) -> Path | None:
    """Return the file with the key where HAProxy finds it beside the certificate; None: in it."""
    beside = file.with_name(f"{file.name}.key")
    has_own = _PRIVATE in (_text(file) or "")
    return beside if not has_own and beside.exists() else None


def _looked_at(
    facts: CertificateFacts, gateway: ssl.SSLContext, client: ssl.SSLContext
) -> CertificateFacts:
    is_named = True
    try:
        seen = _handshake(gateway, client, facts.host)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code not in (_OTHER_HOST, _OTHER_ADDRESS):
            raise
        is_named, client.check_hostname = False, False
        seen = _handshake(gateway, client, facts.host)
    words = seen.getpeercert() or {}
    ends_s = ssl.cert_time_to_seconds(str(words["notAfter"]))
    return replace(facts, ends_s=ends_s, is_named=is_named)


def _is_issuer_known(gateway: ssl.SSLContext, file: Path) -> bool:
    """Whether the chain that is sent leads to what this host's store trusts, or is self-signed."""
    client = ssl.create_default_context()
    client.check_hostname = False
    with suppress(ssl.SSLError):
        # One that has signed itself is known to whoever was given it.
        whole = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        whole.check_hostname = False
        whole.load_verify_locations(file)
        _handshake(gateway, whole, "")
        return True
    try:
        _handshake(gateway, client, "")
    except ssl.SSLCertVerificationError as error:
        return error.verify_code not in _NO_ISSUER
    return True


def _handshake(gateway: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Let both sides meet in memory, and return the client's. Raises ssl.SSLError."""
    asked, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = gateway.wrap_bio(asked, said, server_side=True)
    met = client.wrap_bio(said, asked, server_hostname=host or None)
    for _ in range(_FLIGHTS):
        for side in (met, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return met


def _served(settings: GatewaySettings) -> bytes:
    """Return the certificate that is shown at gateway.bind, in DER; b"" if none is."""
    host, _, port = settings.bind.rpartition(":")
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    place = _ANYWHERE.get(host, host.strip("[]") if host != "[::]" else "::1")
    try:
        with (
            socket.create_connection((place, int(port)), timeout=_PATIENCE_S) as plain,
            anybody.wrap_socket(plain, server_hostname=urlsplit(settings.url).hostname) as met,
        ):
            return met.getpeercert(binary_form=True) or b""
    except (OSError, ValueError):
        return b""
