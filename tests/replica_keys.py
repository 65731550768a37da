"""Keys of a gateway and of replicas, as `gateway render` and the batch script make them."""

import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from run_folder import current

from cluster.settings.gateway import GatewaySettings
from launcher.gateway import identity


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
    identity.create(GatewaySettings(directory=folder, identity=folder / "gateway.crt"))
    return folder


def replica_context(gateway_certificate: Path, keys: Keys) -> ssl.SSLContext:
    """A server's TLS context that shows the replica's certificate and requires the gateway's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.pem)
    context.load_verify_locations(gateway_certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context
