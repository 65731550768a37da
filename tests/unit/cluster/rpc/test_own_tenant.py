"""Tests which tenant a command means that names none, and which the shell completes."""

from pathlib import Path

import pytest
from builders.service_views import a_tenant_view
from pydantic import create_model
from stand_ins.daemon_answers import answer_in_its_place
from stand_ins.own_settings import small_cluster_settings

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc import (
    history_messages,
    journal_messages,
    key_messages,
    read_messages,
)
from slicewise.cluster.rpc.message import requests
from slicewise.cluster.rpc.messages import ViewAnswer, ViewRequest
from slicewise.cluster.rpc.own_tenant import own_tenant
from slicewise.slurm_plugin.common import explain_requests, ledger_requests, tenant_requests

pytestmark = pytest.mark.usefixtures("clock")

MODULES = (
    history_messages,
    journal_messages,
    key_messages,
    read_messages,
    *(explain_requests, ledger_requests, tenant_requests),
)
"""Modules with requests: what is imported is among ``requests()``."""
NAMED = {
    "tenant": "vision",
    "about": "vision/bert",
}
"""Fields of requests in which users name an account, and what they have typed in capitals."""


def test_requests_name_accounts_in_any_case() -> None:
    fields = [
        (request, name, field)
        for request in requests()
        for name, field in request.model_fields.items()
        if name in NAMED
    ]
    assert len({request for request, *_ in fields}) >= 10
    for _, name, field in fields:
        validated = create_model("One", **{name: (field.annotation, field)})  # type: ignore[call-overload]
        read = validated.model_validate({name: NAMED[name].upper()})
        assert getattr(read, name) == NAMED[name]


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cluster_settings(tmp_path, monkeypatch)


def sees(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    tenants = tuple(a_tenant_view(name=name, nominal_millislices=0) for name in names)
    answer = ViewAnswer(observed_s=1.0, complete=True, services=(), tenants=tenants)
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: answer)


def test_a_named_tenant_is_not_asked_for():
    assert own_tenant("vision") == "vision"


def test_the_only_tenant_is_the_default(monkeypatch: pytest.MonkeyPatch):
    sees(monkeypatch, "vision")
    assert own_tenant(None) == "vision"


@pytest.mark.parametrize(
    ("names", "said"), [((), "you have none"), (("nlp", "bio"), "Name one of: bio, nlp.")]
)
def test_of_none_or_several_none_is_chosen(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], said: str
):
    sees(monkeypatch, *names)
    with pytest.raises(InvalidInputError, match="SW-USAGE") as caught:
        own_tenant(None)
    assert said in str(caught.value)
