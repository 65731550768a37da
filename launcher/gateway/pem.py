"""Writes a replica's certificate as HAProxy takes it."""

from base64 import b64decode, b64encode

_LINE = 64


def pem(certificate: str) -> str:
    """Return a replica's certificate in PEM, from what its script publishes.

    That is base64 of DER; raises ValueError for what is no base64.
    """
    text = b64encode(b64decode(certificate, validate=True)).decode()
    lines = [text[at : at + _LINE] for at in range(0, len(text), _LINE)]
    return "\n".join(("-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""))
