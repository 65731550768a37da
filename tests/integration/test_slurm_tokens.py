"""Slurm's own tokens at the page, beside what slurmctld itself makes of each."""

import base64
import hashlib
import hmac
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from effort import is_ci
from web_site import Site

from slicewise.sandbox import restart
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.host.host import Host
from slicewise.sandbox.host.packages import PREFIX, has_tokens
from slicewise.sandbox.host.state import load

MAY_LACK_THEM = bool(PREFIX) or not is_ci()
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(MAY_LACK_THEM and not has_tokens(), reason="this Slurm makes no tokens"),
]
OPERATORS_ONLY = "/rebalances.json"


@dataclass(frozen=True)
class Tokens:
    """Slurm's tokens of a sandbox, and its page."""

    sandbox: Sandbox
    site: Site

    def of(self, user: str, *options: str) -> str:
        """The token that ``scontrol token`` prints; "" if Slurm refuses it."""
        done = self.sandbox.run(user, ("scontrol", "token", *options), check=False)
        return done.stdout.strip().removeprefix("SLURM_JWT=")

    def status(self, token: str, path: str = "/cluster.json") -> int:
        """How the page answers who sends a token."""
        return self.site.ask("GET", path, "", {"Authorization": f"Bearer {token}"}).status

    def is_slurms(self, token: str) -> bool:
        """Whether slurmctld answers who sends that token."""
        asked = ("env", f"SLURM_JWT={token}", "scontrol", "show", "partition")
        return self.sandbox.run("alice", asked, check=False).returncode == 0

    @property
    def key(self) -> bytes:
        """With which Slurm signs."""
        return self.sandbox.layout.jwt_key.read_bytes()


@pytest.fixture(scope="module")
def tokens(sandbox: Sandbox) -> Tokens:
    return Tokens(sandbox, Site(sandbox, sandbox.serve_page()))


def part(value: Mapping[str, object]) -> str:
    """Header or claims, as a token has them."""
    return base64url(json.dumps(value).encode())


def base64url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def signed(claims: Mapping[str, object], key: bytes, algorithm: str = "HS256") -> str:
    """A token, whatever is wrong with it: a library would not make each of these."""
    words = f"{part({'alg': algorithm, 'typ': 'JWT'})}.{part(claims)}"
    digest = hashlib.sha512 if algorithm == "HS512" else hashlib.sha256
    signature = b"" if algorithm == "none" else hmac.digest(key, words.encode(), digest)
    return f"{words}.{base64url(signature)}"


def test_a_token_shows_its_user_what_that_user_sees_until_it_ends(tokens: Tokens):
    users = tokens.sandbox.state.users
    short, ends_s = tokens.of("alice", "lifespan=1"), time.time() + 1.0
    assert tokens.of("alice", f"username={users['bob'].name}") == ""
    for token, seen in (
        (tokens.of("alice"), 403),
        (tokens.of("slurm", f"username={users['alice'].name}", "lifespan=60"), 403),
        (tokens.of("root"), 200),
    ):
        assert (tokens.status(token), tokens.status(token, OPERATORS_ONLY)) == (200, seen)
    for program in (users["slicewise"].name, users["web"].name, "nobody-known"):
        assert tokens.status(tokens.of("root", f"username={program}")) == 403
    # Its end is a whole second, which is over when the next one begins.
    time.sleep(max(0.0, ends_s + 1.0 - time.time()))
    assert (tokens.status(short), tokens.is_slurms(short)) == (401, False)


def test_what_slurm_takes_for_no_token_of_its_own_is_none_here(tokens: Tokens):
    token, now_s = tokens.of("alice"), int(time.time())
    header, claims, signature = token.split(".")
    own = json.loads(base64.urlsafe_b64decode(claims + "=="))
    whole = signed(own, tokens.key)
    assert (tokens.status(whole), tokens.is_slurms(whole)) == (200, True)
    as_root = own | {"sun": "root"}
    for forged in (
        f"{header}.{part(as_root)}.{signature}",
        f"{header}.{claims}.{base64url(bytes(32))}",
        f"{header}.{claims}.",
        f"{header}.{claims}",
        signed(as_root, tokens.key[::-1]),
        signed(as_root, b""),
        signed(as_root, tokens.key, "none"),
        signed(as_root, tokens.key, "HS512"),
        signed(own | {"exp": now_s - 1}, tokens.key),
        signed({"iat": now_s, "sun": "root"}, tokens.key),
        signed({"iat": now_s, "exp": now_s + 60}, tokens.key),
    ):
        assert (tokens.status(forged), tokens.is_slurms(forged)) == (401, False), forged


def test_what_a_clock_ahead_has_made_is_taken_here_too(tokens: Tokens):
    now_s, alice = int(time.time()), tokens.sandbox.state.users["alice"].name
    ahead = signed({"iat": now_s + 30, "exp": now_s + 60, "sun": alice}, tokens.key)
    assert (tokens.status(ahead), tokens.is_slurms(ahead)) == (200, True)


def test_the_doctor_has_nothing_to_mend_of_a_page_that_is_served(tokens: Tokens):
    words = ("slicewise", "doctor", "--section", "web", "--json")
    done = tokens.sandbox.run("root", words, check=False)
    (report,) = json.loads(done.stdout)["sections"]
    assert (done.returncode, report["findings"], report["skipped"]) == (0, [], "")
    assert json.loads(done.stdout)["accepted"] == []


@pytest.fixture
def key_by_openssl(sandbox: Sandbox) -> Iterator[None]:
    """Slurm signs with a key as many sites have made it."""
    host, path = Host(load(sandbox.layout.state_file)), sandbox.layout.jwt_key
    before = path.read_bytes()
    made = subprocess.run(("openssl", "genrsa", "2048"), capture_output=True, check=True).stdout
    try:
        path.write_bytes(made)
        restart.renew(host, "slurmctld")
        yield
    finally:
        path.write_bytes(before)
        host.refresh()
        restart.renew(host, "slurmctld")


@pytest.mark.usefixtures("key_by_openssl")
def test_a_key_that_is_a_pem_file_signs_tokens(tokens: Tokens):
    token = tokens.of("alice")
    assert (tokens.status(token), tokens.is_slurms(token)) == (200, True)
    other = signed({"exp": int(time.time()) + 60, "sun": "root"}, tokens.key[::-1])
    assert (tokens.status(other), tokens.is_slurms(other)) == (401, False)
