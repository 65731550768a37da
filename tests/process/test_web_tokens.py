"""Tests the tokens by which users log in on the page, those of the daemon and those of Slurm."""

import base64
import hmac
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cluster.language.errors import SlicewiseError
from cluster.rpc.web_messages import WebTokenRequest
from cluster.settings.file import WebSettings
from slurm_plugin.api.web_logins import WebLogins

KEY = bytes(range(32))
_RSA = rsa.generate_private_key(65537, 2048)
PRIVATE = _RSA.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def logins(**settings: object) -> tuple[WebLogins, Clock]:
    own = WebSettings.model_validate({"listen": "127.0.0.1:8690", **settings})
    return WebLogins(own, clock := Clock()), clock


async def code(answer: Any) -> str:
    with pytest.raises(SlicewiseError) as raised:
        await answer
    return raised.value.refusal.code


@pytest.fixture
def of_slurm(tmp_path: Path) -> WebLogins:
    key_file = tmp_path / "jwt_hs256.key"
    key_file.write_bytes(KEY)
    return logins(slurm_jwt_key=key_file)[0]


def signed(key: bytes | str = KEY, algorithm: str = "HS256", **claims: object) -> str:
    """A token as Slurm's auth/jwt makes them; None leaves a claim out."""
    now_s = int(time.time())
    whole = {"exp": now_s + 60, "iat": now_s, "sun": "alice"} | claims
    known = {name: one for name, one in whole.items() if one is not None}
    return jwt.encode(known, key, algorithm)


async def user_by(known: WebLogins, sent: str) -> str:
    return (await known.user_by_slurm(WebTokenRequest(token=sent), 1)).user


async def test_a_token_of_slurms_names_its_user_as_often_as_it_is_sent(of_slurm: WebLogins):
    sent = signed()
    assert [await user_by(of_slurm, sent) for _ in range(2)] == ["alice"] * 2


async def test_a_new_key_holds_at_once(of_slurm: WebLogins, tmp_path: Path):
    sent = signed()
    (tmp_path / "jwt_hs256.key").write_bytes(KEY[::-1])
    assert await code(user_by(of_slurm, sent)) == "SW-WEB-TOKEN"
    assert await user_by(of_slurm, signed(key=KEY[::-1])) == "alice"


def signed_by_pem(key: bytes) -> str:
    """A token that a PEM file signs, which PyJWT itself makes of no such file."""
    words = signed().rpartition(".")[0]
    signature = hmac.digest(key, words.encode(), "sha256")
    return f"{words}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


async def test_a_private_key_in_a_file_signs_as_any_bytes_do(of_slurm: WebLogins, tmp_path: Path):
    (tmp_path / "jwt_hs256.key").write_bytes(PRIVATE)
    assert await user_by(of_slurm, signed_by_pem(PRIVATE)) == "alice"
    assert await code(user_by(of_slurm, signed_by_pem(PRIVATE[::-1]))) == "SW-WEB-TOKEN"


async def test_a_token_made_by_a_clock_ahead_names_its_user(of_slurm: WebLogins):
    assert await user_by(of_slurm, signed(iat=int(time.time()) + 30)) == "alice"
