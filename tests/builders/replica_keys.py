"""Keys of a gateway and of replicas, as `gateway render` and the batch script make them."""

import datetime as dt
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unittest.mock import patch

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from run_folder import current

from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway import identity

_FROM = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_UNTIL = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class Keys:
    """The keys of one replica.

    Attributes:
        pem: file with its key and certificate.
        certificate: its certificate as it is published: base64 of DER.
    """

    pem: Path
    certificate: str


@cache
def replica_keys(number: int = 1) -> Keys:
    folder = _with_identity()
    lines = (folder / "gateway.crt").read_text().splitlines()
    return Keys(folder / identity.KEY, "".join(lines[1:-1]))


@cache
def gateway_directory() -> Path:
    """A directory with a gateway's key and, as gateway.crt, its certificate."""
    return _with_identity()


def _with_identity() -> Path:
    folder = Path(mkdtemp(prefix="identity-", dir=current()))
    create_identity(GatewaySettings(directory=folder, identity=folder / "gateway.crt"))
    return folder


def create_identity(settings: GatewaySettings) -> None:
    """What ``identity.create`` does, without the program openssl."""
    with patch.object(identity, "_make", _make):
        identity.create(settings)


def _make(file: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slicewise-gateway")])
    no_authority = x509.BasicConstraints(ca=False, path_length=None)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, _FROM, _UNTIL)
        .add_extension(no_authority, critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.touch(0o600)
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)


def replica_context(gateway_certificate: Path, keys: Keys) -> ssl.SSLContext:
    """A server's TLS context that shows the replica's certificate and requires the gateway's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.pem)
    context.load_verify_locations(gateway_certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context
