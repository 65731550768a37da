import ssl
from base64 import b64encode

import pytest

from slicewise.launcher.gateway.pem import pem


@pytest.mark.parametrize("length", [1, 47, 48, 49, 700])
def test_it_is_what_openssl_writes(length: int):
    certificate = bytes(range(256)) * 3
    text = pem(b64encode(certificate[:length]).decode())
    assert text == ssl.DER_cert_to_PEM_cert(certificate[:length])


def test_what_is_no_base64_is_refused():
    with pytest.raises(ValueError, match="base64"):
        pem("???")
