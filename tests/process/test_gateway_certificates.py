"""Looks at the gateway's certificates as clients and replicas find them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway.certificates import certificate_facts, identity_facts
from slicewise.launcher.gateway.identity import KEY, create
from slicewise.launcher.rules.gateway.checks import CertificateFacts

HOST = "gateway.example.org"
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "9")


def openssl(*words: object) -> None:
    subprocess.run(("openssl", *map(str, words)), check=True, capture_output=True)


def made(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    """A self-signed certificate for a host, and its key."""
    key, file = folder / f"{name}.key", folder / f"{name}.crt"
    subject = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
    openssl("req", "-x509", *_CURVE, *subject, *more, "-keyout", key, "-out", file)
    return file, key


def joined(file: Path, *parts: Path) -> Path:
    file.write_text("".join(part.read_text() for part in parts))
    return file


def seen(file: Path, **changes: Any) -> CertificateFacts:
    known = {"certificate": file, "url": f"https://{HOST}", "bind": "127.0.0.1:1", **changes}
    found = certificate_facts(GatewaySettings.model_validate(known))
    assert found is not None
    return found


def test_a_certificate_that_fits_is_all_right(tmp_path: Path):
    certificate, key = made(tmp_path, HOST)
    found = seen(joined(tmp_path / "both.pem", certificate, key))
    assert found.ends_s > 0
    assert found == CertificateFacts(str(tmp_path / "both.pem"), HOST, ends_s=found.ends_s)
    # As HAProxy finds it: the key beside the certificate.
    key.rename(tmp_path / f"{certificate.name}.key")
    assert seen(certificate).problem == ""
    assert certificate_facts(GatewaySettings()) is None


def test_one_of_another_host_or_with_another_key_is_seen(tmp_path: Path):
    certificate, key = made(tmp_path, "old.example.org")
    both = joined(tmp_path / "both.pem", certificate, key)
    assert seen(both).is_named is False
    assert seen(both, url="https://old.example.org:8443/x").is_named is True
    _, other = made(tmp_path, HOST)
    assert "mismatch" in seen(joined(tmp_path / "wrong.pem", certificate, other)).problem
    assert seen(certificate).problem
    assert seen(tmp_path / "none.pem").problem == "no such file"
    (tmp_path / "text.pem").write_text("no certificate")
    assert seen(tmp_path / "text.pem").problem


def test_one_that_has_ended_is_seen(tmp_path: Path):
    certificate, key = made(tmp_path, HOST)
    request, file = tmp_path / "request", tmp_path / "ended.crt"
    openssl("req", "-new", "-key", key, "-subj", f"/CN={HOST}", "-out", request)
    openssl("x509", "-req", "-in", request, "-days", "-1", "-signkey", key, "-out", file)
    assert seen(joined(tmp_path / "both.pem", file, key)).ends_s == 0.0
    assert certificate.exists()


def test_a_chain_that_leads_nowhere_is_seen(tmp_path: Path):
    above, above_key = made(tmp_path, "authority")
    key, request, file = tmp_path / "own.key", tmp_path / "request", tmp_path / "own.crt"
    names = tmp_path / "names"
    names.write_text(f"subjectAltName=DNS:{HOST}\n")
    openssl("req", "-new", *_CURVE[:4], "-nodes", "-subj", "/CN=x", "-keyout", key, "-out", request)
    signed = ("-CA", above, "-CAkey", above_key, "-CAcreateserial", "-extfile", names)
    openssl("x509", "-req", "-in", request, *signed, "-out", file)
    alone = seen(joined(tmp_path / "alone.pem", file, key))
    assert (alone.problem, alone.is_named, alone.is_issuer_known) == ("", True, False)
    assert seen(joined(tmp_path / "whole.pem", file, above, key)).is_issuer_known is True


@pytest.fixture
def gateway(tmp_path: Path) -> GatewaySettings:
    """A gateway with a key of its own."""
    settings = GatewaySettings(directory=tmp_path, identity=tmp_path / "gateway.crt")
    create(settings)
    return settings


def test_replicas_know_the_gateway_by_its_own_certificate_alone(gateway: GatewaySettings):
    facts = identity_facts(gateway)
    assert (facts.is_there, facts.has_key, facts.is_certificate, facts.is_own) == (True,) * 4
    mine = gateway.identity.read_text()
    (gateway.directory / KEY).unlink()
    create(gateway)
    gateway.identity.write_text(mine)
    assert identity_facts(gateway).is_own is False
    gateway.identity.write_text("x")
    assert identity_facts(gateway).is_certificate is False
    gateway.identity.unlink()
    assert identity_facts(gateway).is_there is False
    # On a login host the key is elsewhere.
    (gateway.directory / KEY).unlink()
    gateway.identity.write_text(mine)
    assert (identity_facts(gateway).has_key, identity_facts(gateway).is_own) == (False, True)
