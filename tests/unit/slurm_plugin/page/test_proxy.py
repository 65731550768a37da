"""Tests from whom the page believes a name in a header."""

from pathlib import Path

import pytest
from multidict import CIMultiDict
from pydantic import ValidationError

from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.settings.file import WebSettings
from slicewise.slurm_plugin.page.proxy import Proxy

SECRET = "0123456789abcdef" * 2
NAMED = {"X-Remote-User": "alice", "X-Slicewise-Secret": SECRET}


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    made = tmp_path / "secret"
    made.write_text(f"{SECRET}\n", encoding="ascii")
    return made


@pytest.fixture
def proxy(secret_file: Path) -> Proxy:
    return Proxy(
        WebSettings(
            listen="127.0.0.1:8690",
            proxies=("127.0.0.1", "10.1.0.0/24"),
            proxy_header="X-Remote-User",
            proxy_secret_file=secret_file,
        )
    )


@pytest.mark.parametrize("peer", ["127.0.0.1", "10.1.0.77", "::ffff:127.0.0.1"])
def test_a_proxy_with_the_secret_names_a_user(proxy: Proxy, peer: str):
    assert proxy.named(CIMultiDict(NAMED), peer) == "alice"


def test_a_request_without_the_header_names_nobody(proxy: Proxy):
    assert proxy.named(CIMultiDict(), "127.0.0.1") is None
    assert proxy.named(CIMultiDict(), "192.0.2.1") is None


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        (list(NAMED.items()), "192.0.2.1"),
        (list(NAMED.items()), "::1"),
        (list(NAMED.items()), ""),
        ([("X-Remote-User", "alice")], "127.0.0.1"),
        ([("X-Remote-User", "alice"), ("X-Slicewise-Secret", SECRET[:-1])], "127.0.0.1"),
        ([("X-Remote-User", "alice"), ("X-Slicewise-Secret", "\udcff")], "127.0.0.1"),
        ([*NAMED.items(), ("x-remote-user", "root")], "127.0.0.1"),
        ([("X-Remote-User", " "), ("X-Slicewise-Secret", SECRET)], "127.0.0.1"),
    ],
    ids=["elsewhere", "ipv6", "nowhere", "no secret", "cut", "no text", "twice", "empty"],
)
def test_every_other_name_is_refused_not_overlooked(
    proxy: Proxy, headers: list[tuple[str, str]], peer: str
):
    with pytest.raises(InvalidInputError) as raised:
        proxy.named(CIMultiDict(headers), peer)
    assert raised.value.refusal.code == "SW-WEB-PROXY"
    assert SECRET not in str(raised.value)


def test_a_header_means_nothing_where_no_proxy_is_set():
    assert (
        Proxy(WebSettings(listen="127.0.0.1:8690")).named(CIMultiDict(NAMED), "127.0.0.1") is None
    )


def test_visitors_are_counted_by_whom_a_proxy_had_before_it(proxy: Proxy):
    said = CIMultiDict({"X-Forwarded-For": "198.51.100.9, 203.0.113.5", **NAMED})
    assert proxy.visitor(said, "127.0.0.1") == "203.0.113.5"
    assert proxy.visitor(said, "192.0.2.1") == "192.0.2.1"
    assert proxy.visitor(CIMultiDict(), "127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("secret", [{}, {"X-Slicewise-Secret": SECRET[:-1]}])
def test_who_has_not_the_secret_is_counted_as_who_connects(proxy: Proxy, secret: dict[str, str]):
    """Every user of the host could be another host at each request, and have no limit."""
    said = CIMultiDict({"X-Forwarded-For": "203.0.113.5", **secret})
    assert proxy.visitor(said, "127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize(
    "missing", [{"proxies": ()}, {"proxy_secret_file": None}, {"proxies": ("10.0.0.1/8",)}]
)
def test_the_header_needs_proxies_and_a_secret(secret_file: Path, missing: dict[str, object]):
    whole = {
        "listen": "127.0.0.1:8690",
        "proxies": ("127.0.0.1",),
        "proxy_header": "X-Remote-User",
        "proxy_secret_file": secret_file,
    }
    WebSettings.model_validate(whole)
    with pytest.raises(ValidationError):
        WebSettings.model_validate(whole | missing)


def test_proxies_need_a_secret_without_a_header_too():
    with pytest.raises(ValidationError, match="proxy_secret_file"):
        WebSettings(listen="127.0.0.1:8690", proxies=("127.0.0.1",))


@pytest.mark.parametrize("text", [None, "short"])
def test_a_secret_that_is_missing_or_short_is_said_at_the_start(
    secret_file: Path, text: str | None
):
    if text is None:
        secret_file.unlink()
    else:
        secret_file.write_text(text, encoding="ascii")
    with pytest.raises(SlicewiseError) as raised:
        Proxy(WebSettings(proxy_secret_file=secret_file))
    assert raised.value.refusal.code == "SW-SETTINGS"
