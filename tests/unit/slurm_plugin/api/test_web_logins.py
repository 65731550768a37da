"""Tests the tokens by which users log in on the page, those of the daemon and those of Slurm."""

import base64
import hmac
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from fault_world.virtual_time import START_S
from stand_ins.clock import Clock

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.web_messages import WebLoginRequest, WebTokenRequest, WebUserRequest
from slicewise.cluster.settings.file import WebSettings
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.slurm_tokens import SlurmTokens
from slicewise.slurm_plugin.api.web_logins import WebLogins

KEY = bytes(range(32))
_RSA = rsa.generate_private_key(65537, 2048)
PUBLIC = _RSA.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)
pytestmark = [
    pytest.mark.filterwarnings("ignore:The HMAC key is"),
    pytest.mark.usefixtures("clock"),
]
ALICE = Principal(61001, "alice", frozenset())


class ClockOfTest(datetime):
    """What PyJWT asks for the time."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "ClockOfTest":
        return cls.fromtimestamp(time.time(), tz)


@pytest.fixture(autouse=True)
def _clock_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwt.api_jwt, "datetime", ClockOfTest)


def logins(key_file: Path | None = None) -> tuple[WebLogins, Clock]:
    own = WebSettings(listen="127.0.0.1:8690")
    return WebLogins(own, SlurmTokens(key_file), clock := Clock()), clock


async def token(known: WebLogins, who: Principal = ALICE) -> str:
    answer: Any = await known.handlers()[WebLoginRequest](WebLoginRequest(), who)
    return str(answer.url).partition("token=")[2]


async def code(answer: Any) -> str:
    with pytest.raises(SlicewiseError) as raised:
        await answer
    return raised.value.refusal.code


async def test_a_token_names_its_user_once_and_within_two_minutes():
    known, clock = logins()
    first, second = await token(known), await token(known)
    assert (await known.user_of(WebUserRequest(token=first), 1)).user == "alice"
    assert await code(known.user_of(WebUserRequest(token=first), 1)) == "SW-WEB-LOGIN"
    clock.now_s = 120.1
    assert await code(known.user_of(WebUserRequest(token=second), 1)) == "SW-WEB-LOGIN"


async def test_who_asks_is_told_whom_the_address_logs_in():
    known, _ = logins()
    answer: Any = await known.handlers()[WebLoginRequest](WebLoginRequest(), ALICE)
    assert answer.user == "alice"


async def test_a_user_who_makes_many_pushes_out_the_own_only():
    known, _ = logins()
    bobs = await token(known, Principal(61002, "bob", frozenset()))
    first, *later = [await token(known) for _ in range(5)]
    assert await code(known.user_of(WebUserRequest(token=first), 1)) == "SW-WEB-LOGIN"
    for one, user in ((bobs, "bob"), *((one, "alice") for one in later)):
        assert (await known.user_of(WebUserRequest(token=one), 1)).user == user


async def test_there_are_none_without_a_page():
    known = WebLogins(WebSettings(), SlurmTokens(None))
    made = known.handlers()[WebLoginRequest](WebLoginRequest(), ALICE)
    assert await code(made) == "SW-WEB-OFF"


@pytest.fixture
def of_slurm(tmp_path: Path) -> WebLogins:
    key_file = tmp_path / "jwt_hs256.key"
    key_file.write_bytes(KEY)
    return logins(key_file)[0]


def signed(key: bytes | str = KEY, algorithm: str = "HS256", **claims: object) -> str:
    """A token as Slurm's auth/jwt makes them; None leaves a claim out."""
    now_s = int(START_S)
    whole = {"exp": now_s + 60, "iat": now_s, "sun": "alice"} | claims
    known = {name: one for name, one in whole.items() if one is not None}
    return jwt.encode(known, key, algorithm)


async def user_by(known: WebLogins, sent: str) -> str:
    return (await known.user_by_slurm(WebTokenRequest(token=sent), 1)).user


@pytest.mark.parametrize(
    "sent",
    [
        signed(key=KEY[::-1]),
        signed(key=KEY * 2, algorithm="HS512"),
        signed(algorithm="none", key=""),
        signed(exp=1),
        signed(exp=None),
        signed(sun=None),
        signed(sun=""),
        signed(sun=["root"]),
        signed()[:-2],
        "x.y.z",
        "x",
    ],
    ids=["key", "HS512", "none", "ended", "no end", "no user", "empty", "list", "cut", "dots", "x"],
)
async def test_every_other_token_is_refused(of_slurm: WebLogins, sent: str):
    assert await code(user_by(of_slurm, sent)) == "SW-TOKEN"


def signed_by_pem(key: bytes) -> str:
    """A token that a PEM file signs, which PyJWT itself makes of no such file."""
    words = signed().rpartition(".")[0]
    signature = hmac.digest(key, words.encode(), "sha256")
    return f"{words}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


@pytest.mark.parametrize("known", [PUBLIC, b'{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}'])
async def test_what_everybody_may_know_signs_nothing(
    of_slurm: WebLogins, tmp_path: Path, known: bytes
):
    (tmp_path / "jwt_hs256.key").write_bytes(known)
    assert await code(user_by(of_slurm, signed_by_pem(known))) == "SW-TOKEN-KEY"


@pytest.mark.parametrize("key", [None, b"", b"short"])
async def test_without_a_key_there_is_no_way_in(
    of_slurm: WebLogins, tmp_path: Path, key: bytes | None
):
    if key is None:
        (tmp_path / "jwt_hs256.key").unlink()
    else:
        (tmp_path / "jwt_hs256.key").write_bytes(key)
    assert await code(user_by(of_slurm, signed(key=key or KEY))) == "SW-TOKEN-KEY"


async def test_a_site_that_names_no_key_lets_none_in():
    assert await code(user_by(logins()[0], signed())) == "SW-TOKEN"


PRIVATE = _RSA.private_bytes(
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.NoEncryption(),
)


async def test_a_token_of_slurms_names_its_user_as_often_as_it_is_sent(of_slurm: WebLogins):
    sent = signed()
    assert [await user_by(of_slurm, sent) for _ in range(2)] == ["alice"] * 2


async def test_a_new_key_holds_at_once(of_slurm: WebLogins, tmp_path: Path):
    sent = signed()
    (tmp_path / "jwt_hs256.key").write_bytes(KEY[::-1])
    assert await code(user_by(of_slurm, sent)) == "SW-TOKEN"
    assert await user_by(of_slurm, signed(key=KEY[::-1])) == "alice"


async def test_a_private_key_in_a_file_signs_as_any_bytes_do(of_slurm: WebLogins, tmp_path: Path):
    (tmp_path / "jwt_hs256.key").write_bytes(PRIVATE)
    assert await user_by(of_slurm, signed_by_pem(PRIVATE)) == "alice"
    assert await code(user_by(of_slurm, signed_by_pem(PRIVATE[::-1]))) == "SW-TOKEN"


async def test_a_token_made_by_a_clock_ahead_names_its_user(of_slurm: WebLogins):
    assert await user_by(of_slurm, signed(iat=int(time.time()) + 30)) == "alice"
