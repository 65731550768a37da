"""Certificates by which gateway and replicas know each other; each is signed by its own key."""

import ssl
import subprocess
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.runtime.tls import CURVE
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway.files import replace_file
from slicewise.launcher.gateway.pem import pem

KEY = "identity.pem"
"""Name, in the gateway's directory, of the file with the gateway's key and certificate, for HAProxy
and the launcher."""
_KNOWN_REPLICAS = 512
_PRIVATE, _PUBLIC = 0o600, 0o644
_DAYS = "3650"
_EXTENSIONS = """\
[req]
prompt = no
distinguished_name = name
x509_extensions = extensions
[name]
CN = slicewise-gateway
[extensions]
basicConstraints = critical, CA:FALSE
"""


def create(settings: GatewaySettings) -> bool:
    """Make the gateway's key and certificate unless they are there; return whether they were made.

    The certificate is also written to ``gateway.identity``, readable by everybody. Raises
    UnreachableError (SW-PROGRAM) without the program openssl, OSError if a file can't be
    written.
    """
    key = settings.directory / KEY
    made = not key.exists()
    if made:
        _make(key)
    certificate = _certificate(key)
    with suppress(FileNotFoundError):
        if settings.identity.read_text(encoding="utf-8") == certificate:
            return made
    replace_file(settings.identity, certificate, _PUBLIC)
    return made


def certificate(settings: GatewaySettings) -> str:
    """Return the gateway's certificate in PEM, by which replicas know the gateway.

    Raises InvalidInputError (SW-GATEWAY-IDENTITY) if this host has none.
    """
    try:
        text = settings.identity.read_text(encoding="ascii")
        ssl.PEM_cert_to_DER_cert(text)
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            Code.GATEWAY_IDENTITY,
            f"gateway.identity: {settings.identity} holds no certificate of the gateway: {error}.",
            "Ask the operator to run slicewise gateway render, and to copy that file to every host "
            "where services are applied.",
        ) from None
    return text


def require_key(settings: GatewaySettings) -> None:
    """Check that this user can use the gateway's key.

    Raises InvalidInputError (SW-GATEWAY-IDENTITY) otherwise.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(settings.directory / KEY)
    except OSError as error:
        raise InvalidInputError(
            Code.GATEWAY_IDENTITY,
            f"This user can't use the gateway's key, {settings.directory / KEY}: {error}.",
            "Only root and the launcher's user may: slicewise gateway render --socket-user.",
        ) from None


def ends_s(file: Path) -> int:
    """Return when the first certificate in a file ends, in Unix seconds.

    Raises InvalidInputError (SW-CERTIFICATE) for a file without one, UnreachableError
    (SW-PROGRAM) without the program openssl.
    """
    done = _openssl("x509", "-noout", "-enddate", "-in", file)
    if done.returncode:
        raise InvalidInputError(
            Code.CERTIFICATE, f"{file} has no certificate that openssl can read."
        )
    return ssl.cert_time_to_seconds(done.stdout.strip().partition("=")[2])


@lru_cache(_KNOWN_REPLICAS)
def context(directory: Path, certificate: str, protocol: str = "") -> ssl.SSLContext:
    """Return a TLS context with which the gateway talks to the replica with this certificate only.

    A replica that starts is asked several times a second, so its context is made once.
    ``protocol`` is one of ALPN; "" is HTTP.

    Raises OSError without the gateway's key, ssl.SSLError (an OSError) or ValueError for what is no
    certificate, and ValueError for one that may sign others.
    """
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Slurm says to which replica the certificate belongs, not a name in it.
    found.check_hostname = False
    # The tenant's server chooses the numbers to compute with: for TLS 1.2's DHE one of 10,000 bits,
    # which takes a second.
    found.minimum_version = ssl.TLSVersion.TLSv1_3
    found.set_ecdh_curve(CURVE)
    found.load_verify_locations(cadata=pem(certificate))
    # The certificate must not sign others: each link of a chain below it may have a key that takes
    # long to check.
    if found.cert_store_stats()["x509_ca"]:
        raise ValueError("a certificate that may sign others")
    found.load_cert_chain(directory / KEY)
    if protocol:
        found.set_alpn_protocols([protocol])
    return found


def own_context(directory: Path) -> ssl.SSLContext:
    """Return a TLS context with which the launcher lets in only who has the gateway's key: HAProxy.

    Raises OSError without that key.
    """
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.minimum_version = ssl.TLSVersion.TLSv1_3
    own.set_ecdh_curve(CURVE)
    own.load_cert_chain(directory / KEY)
    own.load_verify_locations(directory / KEY)
    own.verify_mode = ssl.CERT_REQUIRED
    return own


def _make(key: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made, configuration = Path(folder) / "made.pem", Path(folder) / "openssl.cnf"
        configuration.write_text(_EXTENSIONS, encoding="utf-8")
        request = ("req", "-x509", "-nodes", "-days", _DAYS, "-config", configuration)
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        done = _openssl(*request, *curve, "-keyout", made, "-out", f"{made}.crt")
        if done.returncode:
            raise UnreachableError(
                Code.PROGRAM, f"openssl could not make a key: {done.stderr.strip()}"
            )
        both = Path(f"{made}.crt").read_text(encoding="utf-8") + made.read_text(encoding="utf-8")
    replace_file(key, both, _PRIVATE)


def _openssl(*words: str | Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(("openssl", *words), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UnreachableError(
            Code.PROGRAM, "The program openssl is not on PATH.", "Install openssl."
        ) from None


def _certificate(key: Path) -> str:
    text = key.read_text(encoding="utf-8")
    return text[: text.index(ssl.PEM_FOOTER)] + f"{ssl.PEM_FOOTER}\n"
