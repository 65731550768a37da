"""Tests ``slicewise key``: it makes the secret, prints it once, and sends only its hash."""

import hashlib
import json
import re
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cluster.language.errors import InvalidInputError
from cluster.rpc.key_messages import (
    KeyCreateRequest,
    KeyListRequest,
    KeyOpenRequest,
    KeyRevokeRequest,
    KeysAnswer,
    KeyView,
)
from cluster.rpc.message import DoneAnswer
from launcher.cli import keys as key_cli
from launcher.cli.keys import key_app, new_key

LIVING = KeyView(key_id="a" * 12, tenant="vision", name="ci", created_by="alice", created_s=1.0)
REVOKED = LIVING.model_copy(update={"key_id": "b" * 12, "revoked_s": 2.0})


class Daemon:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.known: tuple[KeyView, ...] = (LIVING, REVOKED)

    def call(self, request: object) -> object:
        match request:
            case KeyListRequest():
                return KeysAnswer(keys=self.known)
            case KeyCreateRequest() as made:
                self.told.append((made.tenant, made.name, made.key_id, made.sha256))
            case KeyOpenRequest():
                self.told.append((request.tenant,))
            case KeyRevokeRequest():
                if request.key_id != LIVING.key_id:
                    raise InvalidInputError("SW-KEY-UNKNOWN", "No.")
                self.told.append((request.key_id,))
        return DoneAnswer()


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    found = Daemon()
    monkeypatch.setattr(key_cli, "_daemon", lambda: found)
    return found


def run(*words: str, says: str = "y") -> str:
    ran = CliRunner().invoke(key_app, words, input=says)
    assert ran.exception is None
    return ran.output


def test_a_key_bears_its_id_and_256_random_bits() -> None:
    found = {new_key() for _ in range(50)}
    assert len(found) == 50
    for key_id, key in found:
        assert re.fullmatch(rf"swk_{key_id}_[A-Za-z0-9_-]{{43}}", key)
        assert re.fullmatch("[0-9a-f]{12}", key_id)


def test_the_whole_key_is_revoked_by_its_id_and_told_to_nobody(daemon: Daemon) -> None:
    assert "secret" not in run("revoke", f"swk_{LIVING.key_id}_secret_more")
    assert daemon.told == [(LIVING.key_id,)]


def test_the_daemon_is_told_the_hash_and_the_user_the_key(daemon: Daemon) -> None:
    shown = json.loads(run("create", "vision", "--name", "ci", "--json"))
    digest = hashlib.sha256(shown["key"].encode()).hexdigest()
    assert daemon.told == [("vision", "ci", shown["key_id"], digest)]
    assert (shown["tenant"], shown["name"]) == ("vision", "ci")
    assert re.match(r"swk_[0-9a-f]{12}_\S{43}\n", run("create", "vision", "--name", "ci"))


def test_revoked_keys_are_shown_when_asked_for(daemon: Daemon) -> None:
    assert [one["key_id"] for one in json.loads(run("list", "--json"))] == ["a" * 12]
    assert [one["key_id"] for one in json.loads(run("list", "--all", "--json"))] == [
        "a" * 12,
        "b" * 12,
    ]
    assert ("b" * 12 in run("list"), "revoked" in run("list")) == (False, False)
    assert ("b" * 12 in run("list", "--all"), "revoked" in run("list", "--all")) == (True, True)
    daemon.known = (REVOKED,)
    assert "slicewise key create" in run("list")


def test_revoking_names_the_key(daemon: Daemon) -> None:
    assert "a" * 12 in run("revoke", "a" * 12)
    assert daemon.told == [("a" * 12,)]
    ran = CliRunner().invoke(key_app, ["revoke", "c" * 12, "--yes"])
    assert isinstance(ran.exception, InvalidInputError)


def aborts(*words: str) -> bool:
    return CliRunner().invoke(key_app, words, input="n").exit_code == 1


def test_the_last_key_is_revoked_on_confirmation_only(daemon: Daemon) -> None:
    assert aborts("revoke", LIVING.key_id)
    assert daemon.told == []
    assert "slicewise key open vision" in run("revoke", LIVING.key_id)
    assert daemon.told == [(LIVING.key_id,)]
    run("revoke", LIVING.key_id, "--yes", says="")


def test_one_of_several_keys_is_revoked_without_a_question(daemon: Daemon) -> None:
    other = LIVING.model_copy(update={"key_id": "c" * 12})
    daemon.known = (LIVING, other, REVOKED)
    run("revoke", LIVING.key_id, says="")
    assert daemon.told == [(LIVING.key_id,)]


def test_a_tenant_is_opened_to_everybody_on_confirmation_only(daemon: Daemon) -> None:
    assert aborts("open", "vision")
    assert daemon.told == []
    run("open", "vision")
    run("open", "nlp", "--yes", says="")
    assert daemon.told == [("vision",), ("nlp",)]
