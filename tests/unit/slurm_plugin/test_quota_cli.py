"""The operator's commands: what they say where there is little to say."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from cluster.units import Millislices
from slurm_plugin import cli
from slurm_plugin.decide.model import QuotaChange


class FakeLedger:
    """Quotas as a mapping; every change is in force at once."""

    def __init__(self, nominal: dict[str, int]) -> None:
        self.changes = {
            tenant: QuotaChange(number, tenant, Millislices(amount), "root", "", 0)
            for number, (tenant, amount) in enumerate(nominal.items())
        }

    def quotas(self) -> dict[str, QuotaChange]:
        return self.changes

    def quota_history(self, tenant: str) -> tuple[QuotaChange, ...]:
        return (self.changes[tenant],)

    def set_quota(self, tenant: str, amount: int, author: str, reason: str) -> QuotaChange:
        return QuotaChange(9, tenant, Millislices(amount), author, reason, 0)

    def open_reservations(self) -> tuple[()]:
        return ()

    def compiled(self, _change_id: int) -> bool:
        return True


@pytest.fixture
def nominal(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    quotas: dict[str, int] = {}

    @contextmanager
    def opened(_settings: object) -> Iterator[FakeLedger]:
        yield FakeLedger(quotas)

    monkeypatch.setattr(cli, "load_settings", lambda: None)
    monkeypatch.setattr(cli, "_ledger", opened)
    monkeypatch.setattr(cli, "_require_account", lambda _tenant: None)
    return quotas


def said(*words: str) -> str:
    result = CliRunner().invoke(cli.tenant_quota_app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_without_quotas_a_list_says_how_to_set_one(nominal: dict[str, int]):
    text = "No quotas. Set one: slicewise tenant-quota set NAME --nominal N\n"
    assert said("list") == text
    assert said("list", "--json") == "[]\n"
    nominal["vision"] = 6000
    assert "vision" in said("list")
    assert "No quotas" not in said("list")


@pytest.mark.parametrize(
    ("amount", "words"), [("1", "nlp: 1 slice, in force"), ("3.5", "nlp: 3.5 slices, in force")]
)
def test_one_slice_is_set(nominal: dict[str, int], amount: str, words: str):
    assert words in said("set", "nlp", "--nominal", amount)
