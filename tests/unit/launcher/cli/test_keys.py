"""Tests ``slicewise key``: it makes the secret, prints it once, and sends only its hash."""

import hashlib
import json
import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from builders.service_views import a_generation
from builders.settings import site_settings
from typer.testing import CliRunner

from slicewise.cluster.language.errors import InvalidInputError, UnreachableError
from slicewise.cluster.rpc.client import UNSURE
from slicewise.cluster.rpc.key_messages import (
    KeyCreateRequest,
    KeyListRequest,
    KeyMadeAnswer,
    KeyOpenRequest,
    KeyRequireRequest,
    KeyRevokeRequest,
    KeysAnswer,
    KeyView,
)
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.new_key import new_key
from slicewise.cluster.rpc.read_messages import GenerationsAnswer, GenerationsRequest
from slicewise.cluster.runtime import questions
from slicewise.launcher.cli import keys as key_cli
from slicewise.launcher.cli.keys import key_app

pytestmark = pytest.mark.usefixtures("clock")

OPEN = site_settings(gateway={"require_keys": False})
LIVING = KeyView(key_id="a" * 12, tenant="vision", name="ci", created_by="alice", created_s=1.0)
REVOKED = LIVING.model_copy(update={"key_id": "b" * 12, "revoked_s": 2.0})


class Daemon:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []
        self.known: tuple[KeyView, ...] = (LIVING, REVOKED)
        self.unprotected = ("nlp",)
        self.wanted_from_s: dict[str, float] = {}
        self.valid: dict[str, int] = {}
        self.made: list[KeyCreateRequest] = []
        self.is_mute = False
        self.services: tuple[str, ...] | None = ()

    def call(self, request: object) -> object:
        match request:
            case KeyListRequest():
                return KeysAnswer(
                    keys=self.known,
                    unprotected=self.unprotected,
                    wanted_from_s=self.wanted_from_s,
                    valid=self.valid,
                )
            case KeyRequireRequest():
                self.told.append((request.tenant, str(request.from_s)))
            case KeyCreateRequest() as made:
                self.made.append(made)
                if self.is_mute:
                    raise UnreachableError(UNSURE, "No answer.", "Look.")
                self.told.append((made.tenant, made.name, made.key_id, made.sha256))
                return KeyMadeAnswer(person=made.person or "alice")
            case GenerationsRequest():
                if self.services is None:
                    raise UnreachableError("SW-DATABASE-DOWN", "gone")
                return GenerationsAnswer(
                    generations=tuple(a_generation(1, name=name) for name in self.services)
                )
            case KeyOpenRequest():
                self.told.append((request.tenant,))
            case KeyRevokeRequest():
                if request.key_id != LIVING.key_id:
                    raise InvalidInputError("SW-NAME-UNKNOWN", "No.")
                self.told.append((request.key_id,))
        return DoneAnswer()


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "is_at_a_terminal", lambda: True)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    found = Daemon()
    monkeypatch.setattr(key_cli, "_daemon", lambda _: found)
    monkeypatch.setattr(key_cli, "load_settings", lambda: OPEN)
    return found


def run(*words: str, says: str = "y") -> str:
    ran = CliRunner().invoke(key_app, words, input=says)
    assert ran.exception is None
    return ran.output


def test_a_key_bears_its_id_and_256_random_bits() -> None:
    found = {new_key() for _ in range(50)}
    assert len(found) == 50
    for made in found:
        assert re.fullmatch(rf"swk_{made.key_id}_[A-Za-z0-9_-]{{43}}", made.key)
        assert re.fullmatch("[0-9a-f]{12}", made.key_id)
        assert made.key not in repr(made)


def test_the_whole_key_is_revoked_by_its_id_and_told_to_nobody(daemon: Daemon) -> None:
    assert "secret" not in run("delete", f"swk_{LIVING.key_id}_secret_more")
    assert daemon.told == [(LIVING.key_id,)]


def test_the_daemon_is_told_the_hash_and_the_user_the_key(daemon: Daemon) -> None:
    shown = json.loads(run("create", "vision", "--name", "ci", "--json"))
    assert shown["person"] == "alice"
    digest = hashlib.sha256(shown["key"].encode()).hexdigest()
    assert daemon.told == [("vision", "ci", shown["key_id"], digest)]
    assert (shown["tenant"], shown["name"]) == ("vision", "ci")
    assert re.match(r"swk_[0-9a-f]{12}_\S{43}\n", run("create", "vision", "--name", "ci"))


def test_the_first_key_of_a_tenant_asks_before_it_closes_what_is_open(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("create", "nlp", "--name", "ci")
    assert aborts(*create)
    assert daemon.made == []
    assert "nlp's first key" in run(*create)
    run(*create, "--yes", says="")
    daemon.unprotected = ()
    run(*create, says="")
    daemon.unprotected = ("nlp",)
    gateway = OPEN.gateway.model_copy(update={"require_keys": True})
    monkeypatch.setattr(
        key_cli, "load_settings", lambda: OPEN.model_copy(update={"gateway": gateway})
    )
    run(*create, says="")
    assert len(daemon.made) == 4


@pytest.mark.parametrize(
    "words",
    [("create", "nlp", "--name", "ci"), ("delete", LIVING.key_id), ("open", "vision")],
)
def test_a_script_is_not_asked(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    ran = CliRunner().invoke(key_app, ["create", "nlp", "--name", "ci", "--json"], input="y")
    assert "SW-ABORTED" in str(ran.exception)
    monkeypatch.setattr(questions, "is_at_a_terminal", lambda: False)
    ran = CliRunner().invoke(key_app, words, input="y")
    assert "SW-ABORTED" in str(ran.exception)
    assert daemon.told == []


def test_a_key_may_open_one_service_and_expire(daemon: Daemon) -> None:
    before_s = time.time()
    shown = json.loads(
        run("create", "vision/bert", "--name", "ci", "--expires", "90d", "--json", says="")
    )
    (made,) = daemon.made
    assert (made.tenant, made.service, shown["service"]) == ("vision", "bert", "bert")
    assert made.expires_s == shown["expires_s"]
    assert 0 <= shown["expires_s"] - int(before_s) - 90 * 86_400 < 60
    for wrong in ("90", "0d", "-1d", "1y", "yesterday", "2020-01-31"):
        ran = CliRunner().invoke(key_app, ["create", "vision", "--name", "x", "--expires", wrong])
        assert ran.exit_code == 2
    ran = CliRunner().invoke(key_app, ["create", "vision/A b", "--name", "x"])
    assert isinstance(ran.exception, InvalidInputError)


def test_a_key_may_expire_at_a_day(daemon: Daemon) -> None:
    run("create", "vision", "--name", "ci", "--expires", "2099-12-31")
    (made,) = daemon.made
    assert made.expires_s == int(datetime(2099, 12, 31).astimezone().timestamp())


def test_a_key_for_a_service_that_never_was_is_made_and_said(daemon: Daemon) -> None:
    create = ("create", "vision/bert", "--name", "ci")
    assert "vision has no service 'bert' yet" in run(*create)
    daemon.services = ("bert",)
    assert "no service" not in run(*create)
    assert "no service" not in run("create", "vision", "--name", "ci")
    daemon.services = None
    assert "no service" not in run(*create)
    assert len(daemon.made) == 4


@pytest.mark.parametrize("opens", ["vision/", "/bert", "/", ""])
def test_a_key_is_not_made_for_more_than_was_meant(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, opens: str
) -> None:
    monkeypatch.setattr(key_cli, "own_tenant", lambda named: named or "vision")
    ran = CliRunner().invoke(key_app, ["create", opens, "--name", "x", "--yes"])
    assert ran.exit_code == 2
    assert daemon.made == []


def test_a_key_that_may_have_been_made_is_named(daemon: Daemon) -> None:
    daemon.is_mute = True
    ran = CliRunner().invoke(key_app, ["create", "vision", "--name", "ci"])
    assert isinstance(ran.exception, UnreachableError)
    assert f"slicewise key delete {daemon.made[0].key_id}" in str(ran.exception)


def test_expiry_and_last_use_are_shown(daemon: Daemon) -> None:
    used = LIVING.model_copy(
        update={"service": "bert", "used_s": 86_400.0 * 365, "expires_s": 4e9, "key_id": "d" * 12}
    )
    expired = used.model_copy(update={"expires_s": 5.0, "key_id": "e" * 12})
    daemon.known = (LIVING, used, expired)
    first, second = json.loads(run("list", "--json"))
    assert (first["service"], first["used_s"], first["expires_s"]) == ("", None, None)
    assert (second["service"], second["used_s"], second["expires_s"]) == ("bert", 31_536_000, 4e9)
    assert len(json.loads(run("list", "--all", "--json"))) == 3
    # The last one that is valid: it is asked about.
    daemon.known = (LIVING, expired)
    assert aborts("delete", LIVING.key_id)


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
    assert "a" * 12 in run("delete", "a" * 12)
    assert daemon.told == [("a" * 12,)]
    ran = CliRunner().invoke(key_app, ["delete", "c" * 12, "--yes"])
    assert isinstance(ran.exception, InvalidInputError)


def aborts(*words: str) -> bool:
    return CliRunner().invoke(key_app, words, input="n").exit_code == 1


def test_the_last_key_is_revoked_on_confirmation_only(daemon: Daemon) -> None:
    assert aborts("delete", LIVING.key_id)
    assert daemon.told == []
    assert "slicewise key open vision" in run("delete", LIVING.key_id)
    assert daemon.told == [(LIVING.key_id,)]
    run("delete", LIVING.key_id, "--yes", says="")


def test_of_others_keys_it_is_known_that_there_are_some(daemon: Daemon) -> None:
    daemon.known, daemon.valid = (LIVING,), {"vision": 2}
    run("delete", LIVING.key_id, says="")
    assert daemon.told == [(LIVING.key_id,)]


def test_a_first_key_closes_nothing_before_the_date_that_was_set(daemon: Daemon) -> None:
    daemon.wanted_from_s = {"nlp": 4e9}
    run("create", "nlp", "--name", "ci", "--person", "alice", says="")
    assert [made.person for made in daemon.made] == ["alice"]
    assert "nlp's services want a key from 2096-10-02" in run("list")


def test_a_date_from_which_keys_are_wanted_is_told(daemon: Daemon) -> None:
    run("require", "vision", "--from", "2099-12-31", says="")
    from_s = int(datetime(2099, 12, 31).astimezone().timestamp())
    assert daemon.told == [("vision", str(from_s))]
    # At once is asked about, as it closes what is open.
    assert aborts("require", "vision", "--from", "2020-12-31")


def test_one_of_several_keys_is_revoked_without_a_question(daemon: Daemon) -> None:
    other = LIVING.model_copy(update={"key_id": "c" * 12})
    daemon.known = (LIVING, other, REVOKED)
    run("delete", LIVING.key_id, says="")
    assert daemon.told == [(LIVING.key_id,)]


def test_a_tenant_is_opened_to_everybody_on_confirmation_only(daemon: Daemon) -> None:
    assert aborts("open", "vision")
    assert daemon.told == []
    run("open", "vision")
    run("open", "nlp", "--yes", says="")
    assert daemon.told == [("vision",), ("nlp",)]


def test_without_a_tenant_keys_are_of_the_own_one(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cli, "own_tenant", lambda named: named or "vision")
    assert json.loads(run("create", "--name", "ci", "--json"))["tenant"] == "vision"
    run("open", "--yes")
    assert [told[0] for told in daemon.told] == ["vision", "vision"]
