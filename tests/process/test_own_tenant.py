"""Tests which tenant a command means that names none, and which the shell completes."""

from pathlib import Path

import pytest
from stand_ins.daemon_answers import answer_in_its_place
from stand_ins.own_settings import small_cluster_settings

from slicewise.cluster.rpc.messages import TenantView, ViewAnswer, ViewRequest
from slicewise.cluster.rpc.own_tenant import complete_tenant


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cluster_settings(tmp_path, monkeypatch)


def sees(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    tenants = tuple(
        TenantView(name=name, nominal_millislices=0, own_in_use_millislices=0, in_use_millislices=0)
        for name in names
    )
    answer = ViewAnswer(observed_s=1.0, complete=True, services=(), tenants=tenants)
    answer_in_its_place(monkeypatch, ViewRequest, lambda _: answer)


def test_names_complete_from_the_daemon_or_not_at_all(monkeypatch: pytest.MonkeyPatch):
    assert complete_tenant("") == []
    sees(monkeypatch, "nlp", "vision", "bio")
    assert complete_tenant("") == ["bio", "nlp", "vision"]
    assert complete_tenant("b") == ["bio"]
