"""What ``slicewise usage`` asks the daemon, and how it prints the answer."""

import json
from datetime import date

import pytest
from builders.settings import site_settings
from stand_ins.daemon_in_process import answer_from
from typer.testing import CliRunner

from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.cli.commands import ledger, usage
from slicewise.slurm_plugin.common.usage_requests import (
    LINE_FIELDS,
    ForgetPersonRequest,
    ForgottenAnswer,
    TokenLine,
    TokenUsageAnswer,
    TokenUsageRequest,
    Unattributed,
)

pytestmark = pytest.mark.usefixtures("clock")

CHAT = TokenLine(
    service="science/chat",
    requests=1200,
    prompt_tokens=123_456,
    cached_prompt_tokens=23_456,
    output_tokens=7890,
    first_token_ms=81.4,
)
OWN = CHAT.model_copy(update={"service": "vision/own", "first_token_ms": None, "requests": 3})
REST = Unattributed(service="science/chat", prompt_tokens=80, output_tokens=7)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TokenUsageRequest]:
    """What the daemon was asked: its answer has two pages."""
    requests = list[TokenUsageRequest]()

    async def answer(request: TokenUsageRequest, _: Principal) -> TokenUsageAnswer:
        requests.append(request)
        if request.after is None:
            more = ("science/chat",) * len(LINE_FIELDS[request.by])
            return TokenUsageAnswer(
                lines=(CHAT,), unattributed=(REST,), unattributed_left_out=1234, more=more
            )
        return TokenUsageAnswer(lines=(OWN,))

    answer_from(monkeypatch, {TokenUsageRequest: answer})
    monkeypatch.setattr(usage, "load_settings", lambda: site_settings(types=["1g.10gb"]))
    return requests


def printed(*words: str) -> str:
    result = CliRunner().invoke(usage.usage_app, words)
    assert result.exit_code == 0, result.output
    return result.output


def test_people_see_a_table_and_what_is_unattributed(asked: list[TokenUsageRequest]):
    text = printed()
    assert "science/chat" in text
    assert "vision/own" in text
    assert "123,456" in text
    assert "81 ms" in text
    assert "80 prompt and 7 output tokens are unattributed" in text
    assert "And of 1,234 further services: slicewise usage --service OWNER/NAME" in text
    assert [request.after for request in asked] == [None, ("science/chat",)]


def test_json_and_csv_have_the_lines_themselves(asked: list[TokenUsageRequest]):
    shown = json.loads(printed("--json"))
    assert [line["service"] for line in shown["lines"]] == ["science/chat", "vision/own"]
    assert shown["lines"][0]["first_token_ms"] == 81.4
    assert shown["unattributed"] == [REST.model_dump()]
    assert shown["unattributed_left_out"] == 1234
    head, first, _ = printed("--csv").splitlines()
    assert dict(zip(head.split(","), first.split(","), strict=True))["prompt_tokens"] == "123456"


def test_options_say_what_is_asked_for(asked: list[TokenUsageRequest]):
    words = ("--tenant", "VISION", "--person", "alice", "--key", "k1", "--service", "science/chat")
    printed(*words, "--from", "2026-11-01", "--until", "2026-12-01", "--by", "key")
    request = asked[0]
    assert (request.tenant, request.person, request.key_id) == ("vision", "alice", "k1")
    assert (request.service, request.by) == ("science/chat", "key")
    assert (request.until_s or 0) - request.since_s == 30 * 86_400


@pytest.mark.parametrize(
    "words", [("--json", "--csv"), ("--from", "2026-12-01", "--until", "2026-11-01")]
)
def test_what_contradicts_itself_is_refused(asked: list[TokenUsageRequest], words: tuple[str, ...]):
    assert CliRunner().invoke(usage.usage_app, words).exit_code == 2
    assert asked == []


def test_an_operator_has_a_person_forgotten(monkeypatch: pytest.MonkeyPatch):
    forgotten = list[ForgetPersonRequest]()

    async def answer(request: ForgetPersonRequest, _: Principal) -> ForgottenAnswer:
        forgotten.append(request)
        more = None if request.after else date(2026, 11, 29)
        return ForgottenAnswer(records=1000 if more else 200, more=more)

    answer_from(monkeypatch, {ForgetPersonRequest: answer})
    monkeypatch.setattr(ledger, "load_settings", lambda: site_settings(types=["1g.10gb"]))
    run = CliRunner().invoke
    words = ["forget", "alice", "--tenant", "VISION"]
    refused = run(ledger.ledger_app, words)
    assert (refused.exit_code != 0, forgotten) == (True, [])
    done = run(ledger.ledger_app, [*words, "--yes"])
    assert done.output == "alice was named in 1,200 records.\n"
    first = ForgetPersonRequest(person="alice", tenant="vision")
    assert forgotten == [first, first.model_copy(update={"after": date(2026, 11, 29)})]


def test_with_a_tariff_a_million_tokens_stand_beside_the_list_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of these tokens a half has a list price.
    amounts = {"millionths": 131_346, "list_millionths": 32_836}
    tokens = {"priced_tokens": 131_346, "listed_tokens": 65_672}
    priced = CHAT.model_copy(update={**amounts, **tokens})

    async def answer(_request: TokenUsageRequest, _principal: Principal) -> TokenUsageAnswer:
        return TokenUsageAnswer(lines=(priced, OWN))

    answer_from(monkeypatch, {TokenUsageRequest: answer})
    monkeypatch.setattr(usage, "load_settings", lambda: site_settings(types=["1g.10gb"]))
    heading, first, second = CliRunner().invoke(usage.usage_app, []).stdout.splitlines()
    assert heading.split()[-6:] == ["cost", "a", "million", "list", "first", "token"]
    assert first.split()[-5:] == ["0.131346", "1.00", "0.50", "81", "ms"]
    assert second.split()[-1] == "0.00"


@pytest.mark.parametrize(("tokens", "shown"), [(0, False), (200_000, True)])
def test_a_million_has_a_column_where_tokens_have_a_price(
    monkeypatch: pytest.MonkeyPatch, tokens: int, *, shown: bool
) -> None:
    async def answer(*_: object) -> TokenUsageAnswer:
        line = CHAT.model_copy(update={"millionths": 1_000_000, "priced_tokens": tokens})
        return TokenUsageAnswer(lines=(line,))

    answer_from(monkeypatch, {TokenUsageRequest: answer})
    monkeypatch.setattr(usage, "load_settings", lambda: site_settings(types=["1g.10gb"]))
    assert ("a million" in printed()) is shown
    assert ("5.00" in printed().split()) is shown
