"""Tests pages as a browser gets them, on a made-up daemon: each page, its JSON, forms and CSV."""

import asyncio
import csv
import hashlib
import io
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import aiohttp
import pytest
from free_ports import free_port
from stand_ins.scripted import settings
from stand_ins.web_answers import Answers

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.history_messages import HistoryRequest
from slicewise.cluster.rpc.key_messages import (
    KeyCreateRequest,
    KeyListRequest,
    KeyRevokeRequest,
)
from slicewise.cluster.rpc.message import Answer, Request, requests
from slicewise.cluster.rpc.overview_messages import (
    OverviewAnswer,
    OverviewRequest,
    PowerNow,
    TenantThisMonth,
)
from slicewise.cluster.rpc.read_messages import WhyAnswer, WhyRequest
from slicewise.slurm_plugin.common.explain_requests import QuotaPlanRequest
from slicewise.slurm_plugin.common.ledger_requests import (
    StatementAnswer,
    StatementCursor,
    StatementRequest,
    TenantsRequest,
)
from slicewise.slurm_plugin.common.tariff_requests import (
    ChargeCursor,
    ChargesAnswer,
    ChargesRequest,
)
from slicewise.slurm_plugin.page import daemon_reads
from slicewise.slurm_plugin.page.pages import PAGES
from slicewise.slurm_plugin.page.server import WebServer

HOSTILE = "<script>alert(1)</script>\"'{{7*7}}\x1b[31m\u202e"
PATHS = [page.pattern.format(tenant="vision", service="chat", job="814") for page in PAGES]
FOR_OPERATORS = [page.pattern for page in PAGES if page.is_for_operators]


@dataclass
class Site:
    """A server on a made-up daemon, and a browser that is logged in."""

    made: Answers
    server: WebServer
    address: str
    browser: aiohttp.ClientSession
    form_token: str

    async def get(self, path: str) -> tuple[int, str]:
        async with self.browser.get(self.address + path, allow_redirects=False) as found:
            return found.status, await found.text()

    async def post(self, path: str, **fields: str) -> tuple[int, str]:
        data = {"form_token": self.form_token} | fields
        headers = {"Origin": self.address}
        async with self.browser.post(self.address + path, data=data, headers=headers) as found:
            return found.status, await found.text()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Answers(3)
    plain = settings()
    listen = f"127.0.0.1:{free_port()}"
    own = plain.model_copy(update={"web": plain.web.model_copy(update={"listen": listen})})
    server = WebServer(own)
    server._reads._asked = made.ask  # type: ignore[method-assign]
    cookie, session = server._sessions.begin("alice")
    await server.start()
    async with aiohttp.ClientSession(cookies={"slicewise": cookie}) as browser:
        yield Site(made, server, f"http://{listen}", browser, session.form_token)
    await server.stop()


class Headings(HTMLParser):
    """Collects the levels of headings, tables without a caption, and elements with a style."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.tables = self.captions = 0
        self.faults: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = dict(attrs)
        if tag in {"h1", "h2", "h3"}:
            self.levels.append(int(tag[1]))
        self.tables += tag == "table"
        self.captions += tag == "caption"
        self.ids += [str(names["id"])] if "id" in names else []
        if "style" in names or (tag == "script" and "src" not in names):
            self.faults.append(tag)


@pytest.mark.parametrize("path", PATHS)
async def test_each_page_has_one_heading_captions_and_no_style_of_its_own(site: Site, path: str):
    status, text = await site.get(path)
    assert status == 200
    found = Headings()
    found.feed(text)
    assert found.levels[0] == 1
    assert found.levels.count(1) == 1
    assert all(later - one <= 1 for one, later in zip(found.levels, found.levels[1:], strict=False))
    assert found.tables == found.captions
    assert found.faults == []
    assert len(set(found.ids)) == len(found.ids)


async def test_budgets_of_tokens_are_shown_in_tokens_beside_those_of_slice_hours(site: Site):
    paid, other = (site.made.tree_row(number).name for number in (1, 2))
    for path in (f"/tenants/{paid}", "/tenants"):
        _, text = await site.get(path)
        assert "1,234,567 tokens" in text
        assert "2,000,000 tokens" in text
        assert ">1,000.0<" in text
    assert 'id="tokens"' not in (await site.get(f"/tenants/{other}"))[1]


@pytest.mark.parametrize("path", PATHS)
async def test_names_are_inert_whatever_is_in_them(site: Site, path: str):
    site.made.extra = HOSTILE
    status, text = await site.get(path)
    assert status == 200
    for mark in ("<script>alert", "\x1b", "\u202e", ">49<"):
        assert mark not in text


@pytest.mark.parametrize("path", PATHS)
async def test_the_json_of_a_page_has_the_answers_to_what_it_asks(site: Site, path: str):
    status, text = await site.get(f"{path}.json")
    assert status == 200
    (page,) = (one for one in PAGES if one.match(path) is not None)
    assert json.loads(text)
    assert {user for user, _ in site.made.asked} == {"alice"}
    assert page.is_for_operators or "who" not in json.loads(text)


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_of_a_thousand_tenants_is_bounded(site: Site, path: str):
    site.made.count = 1000
    status, text = await site.get(path)
    assert status == 200
    assert text.count("<tr") < 420
    assert len(text) < 400_000


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/cluster", "slicewise doctor"),
        ("/tenants", "slicewise tenant-quota set"),
        ("/services", "slicewise service apply"),
    ],
)
async def test_a_page_without_anything_says_how_to_begin(site: Site, path: str, command: str):
    site.made.count = 0
    status, text = await site.get(path)
    assert (status, command in text) == (200, True)
    site.made.count = 3
    site.server._reads._kept.clear()
    assert command not in (await site.get(path))[1]


async def test_limits_and_guarantees_by_type_are_beside_a_tenant_s_quota(site: Site):
    (shown,) = (one for one in site.made.tenants(TenantsRequest()).tenants if one.types)
    for path in (f"/tenants/{shown.name}", "/tenants"):
        status, text = await site.get(path)
        assert status == 200
        (_, table) = text.split('<h2 id="types">')
        (table, *_) = table.split("</table>")
        cells = re.findall(r'<td class="n"[^>]*>(?:<span[^>]*>)?([^<]*)', table)
        assert cells == ["5", "6", "3", "4", "1", "2", "–", "–", "0", "–", "0", "0"]
    other = next(one for one in site.made.tenants(TenantsRequest()).tenants if not one.types)
    assert 'id="types"' not in (await site.get(f"/tenants/{other.name}"))[1]


async def test_the_map_says_how_many_nodes_it_does_not_show(site: Site):
    site.made.count = 1000
    _, text = await site.get("/cluster")
    assert "16 of 250 nodes: those in trouble" in text
    assert "234 are not shown" in text
    _, text = await site.get("/cluster?node=0017")
    assert "1 of 250 nodes have such names" in text
    assert "node-0017" in text
    assert "node-0002" not in text


@pytest.mark.parametrize("is_surveyed", [True, False])
async def test_the_map_says_why_instances_of_a_node_stand_side_by_side(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_surveyed: bool
):
    drawn = site.made.gpu
    unknown = {} if is_surveyed else {"gpu": None, "memory_slices": 0}
    monkeypatch.setattr(site.made, "gpu", lambda nth: drawn(nth).model_copy(update=unknown))
    _, text = await site.get("/cluster")
    assert ("GPU 0<" in text) is is_surveyed
    assert ("all GPUs<" in text) is not is_surveyed
    assert ("slicewise repartition survey" in text) is not is_surveyed


@pytest.mark.parametrize("is_metered", [True, False])
async def test_the_cluster_s_page_says_what_boards_draw_where_a_meter_tells(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_metered: bool
):
    power = PowerNow(power_mw=3_214_000, boards=16, metered_nodes=2, gpu_nodes=3)
    told = site.made.overview(OverviewRequest()).model_copy(update={"power": power})
    if is_metered:
        monkeypatch.setattr(site.made, "overview", lambda _: told)
    _, text = await site.get("/cluster")
    assert ("Power now: 3.21 kW of 16 boards on 2 of 3 nodes." in text) is is_metered
    assert (" kW of " in text) is is_metered


async def test_tenants_are_found_by_name_beyond_the_first_page(site: Site):
    site.made.count = 1000
    _, text = await site.get("/tenants?name=group-0999")
    assert "/tenants/group-0999" in text
    assert "/tenants/group-0998" in text.partition('id="loans"')[2] or "group-0998" in text
    assert "/tenants/vision" not in text


async def test_services_are_sorted_as_asked(site: Site):
    _, text = await site.get("/services?sort=backlog")
    names = [one.partition('"')[0] for one in text.split('href="/services/')[1:]]
    assert names == ["speech/chat", "nlp/chat", "vision/chat"]


async def test_a_service_s_page_says_what_it_keeps_warm(site: Site):
    _, text = await site.get("/services/nlp/chat")
    said = "0.5 replicas now; 3.2 slice-hours on 2026-11-30 UTC spared at least 1 request a wait."
    assert f"<p>Kept warm, with no request that needs them: {said}</p>" in text
    assert "Kept warm" not in (await site.get("/services/vision/chat"))[1]


async def test_the_page_of_a_service_that_shares_replicas_says_which_has_which_model(site: Site):
    _, text = await site.get("/services/nlp/chat")
    table = text.partition('<h2 id="pool">')[2].partition("</table>")[0]
    rows = [re.sub(r"(<[^>]*>|\n)+", "|", row).strip("|") for row in table.split("<tr>")[2:]]
    assert rows == [
        "m|chat|814_0|gpu1|ready|2|–",
        "m2|ner|814_0|gpu1|loading|0|2.50",
        "m3|wide|814_0|gpu1|refused|0|–|CUDA out of memory",
        "m4|none|absent|–|–",
    ]
    assert 'href="/services/nlp/ner"' in table
    assert 'id="pool"' not in (await site.get("/services/vision/chat"))[1]


async def test_the_queue_goes_on_after_the_last_job_shown(site: Site):
    site.made.count = 100
    _, text = await site.get("/queue")
    assert 'href="/queue?after=100"' in text
    _, text = await site.get("/queue?after=100")
    assert "/jobs/7101" in text
    assert "/jobs/7100" not in text


@pytest.mark.parametrize(("path", "last"), [("/rebalances", 72), ("/repartitions", 37)])
async def test_a_journal_is_shown_in_parts_and_its_steps_too(site: Site, path: str, last: int):
    site.made.count = 1000
    _, text = await site.get(path)
    assert f'href="{path}?before={last}"' in text
    assert text.count('class="entry"') == 20
    assert text.count("that are not shown: 85.") == (20 if path == "/repartitions" else 0)


async def test_operators_pages_are_in_the_menu_of_operators_only(site: Site):
    _, text = await site.get("/cluster")
    assert all(f'href="{path}"' in text for path in FOR_OPERATORS)
    site.made.is_operator = False
    site.server._reads._kept.clear()
    _, text = await site.get("/cluster")
    assert not any(f'href="{path}"' in text for path in FOR_OPERATORS)


async def test_who_is_no_operator_is_told_kindly(site: Site):
    site.made.is_operator = False
    refusal = InvalidInputError("SW-FORBIDDEN", "Only operators may do that.")
    site.made.refused = dict.fromkeys(_asked_by_operators(), refusal)
    for path in FOR_OPERATORS:
        status, text = await site.get(path)
        assert status == (200 if path == "/what-if" else 403)
        assert "This page is for operators" in text
        assert "<textarea" not in text


def _asked_by_operators() -> set[type]:
    return {kind for kind in requests() if kind.asker == "operators"}


async def test_a_refusal_stands_in_the_frame_with_its_status(site: Site):
    site.made.refused[WhyRequest] = InvalidInputError("SW-NAME-UNKNOWN", "There is no job 814.")
    status, text = await site.get("/jobs/814")
    assert status >= 400
    assert "There is no job 814." in text
    assert 'aria-label="Pages"' in text
    status, text = await site.get("/jobs/814.json")
    assert json.loads(text)["code"] == "SW-NAME-UNKNOWN"


async def test_why_says_of_what_a_start_is_and_gives_room_to_sentences_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    plain = site.made.why

    def resting(request: WhyRequest) -> WhyAnswer:
        answer = plain(request)
        return answer.model_copy(update={"start": "when requests need it"})

    monkeypatch.setattr(site.made, "why", resting)
    _, text = await site.get("/jobs/814")
    assert "<p>Expected start: when requests need it.</p>" in text
    assert '<th scope="row">job 814</th>' in text
    site.made.extra = " of a sentence that wraps"
    site.server._reads._kept.clear()
    _, text = await site.get("/jobs/814")
    assert '<th scope="row" class="words">job 814 of a sentence' in text


async def test_a_quota_file_s_plan_is_shown_beside_the_text(site: Site):
    status, text = await site.post("/what-if", text="[tenants.vision]\nnominal = 6 # </textarea>")
    assert status == 200
    assert "[tenants.vision]\nnominal = 6 # &lt;/textarea&gt;</textarea>" in text
    assert "vision: nominal 6 slices (was 4 slices)" in text
    assert "a borrowed replica would be drained" in text
    assert "--overcommit" in text
    ((_, asked),) = (one for one in site.made.asked if isinstance(one[1], QuotaPlanRequest))
    assert asked == QuotaPlanRequest(text="[tenants.vision]\nnominal = 6 # </textarea>")


@pytest.mark.parametrize(
    ("tenants", "said"),
    [(1, ""), (2, "1 other tenant stays as it is."), (3, "2 other tenants stay as they are.")],
)
async def test_a_plan_counts_the_tenants_that_it_leaves_alone(site: Site, tenants: int, said: str):
    site.made.count = tenants
    _, text = await site.post("/what-if", text="[tenants.vision]\nnominal = 6")
    assert said in text
    assert ("as they are" in text or "as it is" in text) == bool(said)


async def test_what_is_wrong_in_a_quota_file_is_said_and_the_text_kept(site: Site):
    refusal = InvalidInputError("SW-INPUT-FILE", "nothing was changed.\nline 2: <b>")
    site.made.refused[QuotaPlanRequest] = refusal
    status, text = await site.post("/what-if", text="[tenants.vision")
    assert status == 200
    assert "line 2: &lt;b&gt;" in text
    assert "[tenants.vision</textarea>" in text


async def test_a_text_that_is_too_long_is_refused_beside_the_form(site: Site):
    status, text = await site.post("/what-if", text="x" * 40_000)
    assert status == 200
    assert "SW-VALUE" in text
    assert not any(isinstance(one, QuotaPlanRequest) for _, one in site.made.asked)


async def test_a_form_of_another_session_asks_nothing(site: Site):
    status, _ = await site.post("/what-if", text="a", form_token="x")  # noqa: S106 -- none
    assert status == 403
    assert site.made.asked == []


MAKE = {"act": "make", "tenant": "vision", "name": "ci", "new_key_id": "0123456789ab"}


def asked_for(site: Site, kind: type[Request]) -> list[Request]:
    return [one for _, one in site.made.asked if isinstance(one, kind)]


async def test_a_key_is_shown_once_and_only_its_hash_is_sent(
    site: Site, capsys: pytest.CaptureFixture[str]
):
    status, text = await site.post("/usage", **MAKE)
    assert status == 200
    (key,) = re.findall(r"swk_0123456789ab_[A-Za-z0-9_-]{43}", text)
    (asked,) = asked_for(site, KeyCreateRequest)
    sha256 = hashlib.sha256(key.encode()).hexdigest()
    fields = {"key_id": "0123456789ab", "sha256": sha256, "may_be_first": False}
    assert asked == KeyCreateRequest(tenant="vision", name="ci", **fields)
    assert key not in "".join(one.model_dump_json() for _, one in site.made.asked)
    for path in ("/usage", "/usage.json", "/usage.csv"):
        _, text = await site.get(path)
        assert key not in text
    said = capsys.readouterr()
    assert key not in said.out + said.err


async def test_the_answer_with_a_key_is_kept_by_no_cache(site: Site):
    fields = {"form_token": site.form_token, **MAKE}
    headers = {"Origin": site.address, "Sec-Fetch-Site": "same-origin"}
    async with site.browser.post(site.address + "/usage", data=fields, headers=headers) as found:
        assert "swk_0123456789ab_" in await found.text()
        assert found.headers["Cache-Control"] == "no-store"
        assert found.headers["Referrer-Policy"] == "same-origin"
        assert not found.history


async def test_what_was_changed_is_seen_at_once(site: Site):
    await site.get("/usage")
    before = len(asked_for(site, KeyListRequest))
    await site.post("/usage", act="end", key_id="0" * 12, sure="yes")
    assert asked_for(site, KeyRevokeRequest) == [KeyRevokeRequest(key_id="0" * 12)]
    assert len(asked_for(site, KeyListRequest)) == before + 1


async def test_a_refused_change_says_code_and_what_to_do_and_keeps_what_was_typed(site: Site):
    site.made.refused[KeyCreateRequest] = InvalidInputError(
        "SW-KEY-FIRST", "First <b>.", "Mark it."
    )
    status, text = await site.post("/usage", **MAKE)
    assert status == 200
    assert "First &lt;b&gt;." in text
    assert "SW-KEY-FIRST" in text
    assert "Mark it." in text
    assert 'value="ci"' in text
    assert "swk_0123456789ab" not in text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
    ids=str,
)
async def test_no_other_site_changes_a_key(site: Site, headers: dict[str, str]):
    own = {"Origin": site.address} if "Sec-Fetch-Site" in headers else {}
    fields = {"form_token": site.form_token, **MAKE}
    address = site.address + "/usage"
    async with site.browser.post(address, data=fields, headers=own | headers) as found:
        assert found.status == 403
    assert site.made.asked == []


async def test_no_key_is_changed_without_the_session_s_own_form(site: Site):
    for form_token in ("", "x", site.form_token[:-1]):
        status, _ = await site.post("/usage", form_token=form_token, **MAKE)
        assert status == 403
    for path in ("/usage?act=end&key_id=000000000000&sure=yes", "/usage?act=make&name=x"):
        await site.get(path)
    assert not any(one.changes for _, one in site.made.asked)


async def test_where_the_page_changes_nothing_it_has_no_such_forms(site: Site):
    web = site.server._settings
    site.server._settings = web.model_copy(update={"change_keys": False})
    _, text = await site.get("/usage")
    assert 'name="act"' not in text
    assert "slicewise key delete ID" in text


async def test_a_page_without_a_form_takes_none(site: Site):
    status, _ = await site.post("/queue", text="a")
    assert status == 404


async def test_a_statement_has_sums_and_rows_of_the_month(site: Site):
    site.made.count = 1
    site.made.now_s = 0
    _, text = await site.get("/statement?month=2026-11")
    assert "By tenant" in text
    assert text.count("1 Nov 0") >= 4
    assert re.findall('data-label="pool">([^<]+)<', text) == ["0.0", "-0.500", "0.500"]
    _, text = await site.get("/statement?month=2026-10")
    assert "Nothing that you may read was used in 2026-10" in text


async def test_the_csv_has_every_run_of_the_month_and_no_formula(site: Site):
    site.made.count = 1500
    site.made.extra = ""
    original = site.made.name
    site.made.name = lambda number: f"=HYPERLINK({original(number)})"  # type: ignore[method-assign]
    async with site.browser.get(f"{site.address}/statement.csv?month=2026-11") as found:
        assert found.status == 200
        assert found.headers["Content-Disposition"] == (
            'attachment; filename="statement-2026-11.csv"'
        )
        assert found.headers["X-Content-Type-Options"] == "nosniff"
        rows = list(csv.DictReader(io.StringIO(await found.text())))
    assert len(rows) == 6000
    assert all(row["tenant"].startswith("'=") for row in rows)
    assert rows[0]["used_millislice_s"] == "14400000"


async def test_a_head_of_the_csv_has_its_name_and_no_rows(site: Site):
    async with site.browser.head(f"{site.address}/statement.csv?month=2026-11") as found:
        assert (found.status, await found.text()) == (200, "")
        assert "statement-2026-11.csv" in found.headers["Content-Disposition"]


async def test_usage_is_shown_and_has_its_lines_as_csv(site: Site):
    status, text = await site.get("/usage?month=2026-11")
    assert status == 200
    assert all(words in text for words in ("Your keys", "By model", "By day", "By key"))
    async with site.browser.get(f"{site.address}/usage.csv?month=2026-11&by=service") as found:
        assert found.headers["Content-Disposition"] == 'attachment; filename="usage-2026-11.csv"'
        rows = list(csv.DictReader(io.StringIO(await found.text())))
    assert len(rows) == site.made.count
    assert (rows[0]["requests"], rows[0]["first_token_ms"]) == ("31", "180.4")


async def test_an_invoice_adds_up_in_each_table_and_is_the_csv_s(site: Site):
    status, text = await site.get("/invoice")
    assert status == 200
    # Of vision: 0.7000001 for a run, 0.175 for a night, 0.493827 for tokens.
    assert ">1.368827<" in text
    assert "<strong>1.37</strong>" in text
    assert "0.35 a slice-hour" in text
    assert "0.175 a slice-hour" in text
    assert "1,234,567" in text
    assert ">93.75<" in text
    assert ">81 %<" in text
    assert "10.000" in text
    for by in ("service", "person", "tenant", "day"):
        async with site.browser.get(f"{site.address}/invoice.csv?month=2026-11&by={by}") as found:
            name = 'attachment; filename="invoice-2026-11.csv"'
            assert found.headers["Content-Disposition"] == name
            rows = list(csv.DictReader(io.StringIO(await found.text())))
        paid = {row["payer"]: row["payer_payable"] for row in rows}
        assert paid == {"vision": "1.37", "nlp": "2.07", "speech": "2.77"}
        of_vision = [int(row["millionths"]) for row in rows if row["payer"] == "vision"]
        assert sum(of_vision) == 1_368_827


async def test_a_tenant_s_page_has_its_money_and_joules_of_this_month(site: Site):
    _, text = await site.get("/tenants/vision")
    assert 'id="money"' in text
    assert ">1.368827<" in text
    assert ">93.75<" in text
    assert 'href="/invoice?tenant=vision"' in text
    assert "speech" not in text[text.index('id="money"') : text.index('id="history"')]
    assert ">2.401<" in text[text.index('id="joules"') :]
    site.made.refused[ChargesRequest] = InvalidInputError("SW-DATABASE-DOWN", "No ledger.")
    site.server._reads._kept.clear()
    status, text = await site.get("/tenants/vision")
    assert status == 200
    assert "SW-DATABASE-DOWN" in text


async def test_without_a_tariff_or_use_an_invoice_says_so(site: Site):
    site.made.has_charges = False
    assert (
        "Nothing that you may read was used in 2026-11"
        in (await site.get("/invoice?month=2026-11"))[1]
    )
    site.made.count = 0
    site.server._reads._kept.clear()
    assert 'id="money"' not in (await site.get("/tenants/vision"))[1]


async def test_the_cluster_s_page_has_the_month_by_tenant_who_costs_most_first(site: Site):
    _, text = await site.get("/cluster")
    month = text[text.index('id="month"') : text.index('id="gpus"')]
    shown = re.findall(r'<th scope="row">(?:<a [^>]*>)?(\w+)', month)
    assert shown == ["speech", "nlp", "vision", "nobody"]
    assert all(words in month for words in (">4.106481<", ">10.000<", ">93%<", "2026-11"))


async def test_joules_that_are_not_known_have_a_dash(site: Site, monkeypatch: pytest.MonkeyPatch):
    whole = site.made.overview

    def without_joules(*request: Any) -> OverviewAnswer:
        answer = whole(*request)
        assert answer.month is not None
        tenants = (TenantThisMonth(tenant="vision", millionths=360_000),)
        month = answer.month.model_copy(update={"tenants": tenants})
        return answer.model_copy(update={"month": month})

    monkeypatch.setattr(site.made, "overview", without_joules)
    _, text = await site.get("/cluster")
    shown = text[text.index('id="month"') : text.index('id="gpus"')]
    assert 'data-label="kWh">–<' in shown
    assert "0.000" not in shown
    assert "Joules could not be added up" in shown


async def test_an_invoice_that_is_cut_has_no_csv_and_says_so(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(daemon_reads._MOST_PAGES, ChargesRequest, 1)
    whole = site.made.charges

    def first(request: ChargesRequest) -> ChargesAnswer:
        after = ChargeCursor(part="shares", now_s=1)
        return whole(request).model_copy(update={"more": after})

    site.made.charges = first  # type: ignore[method-assign]
    _, text = await site.get("/invoice?month=2026-11")
    assert "slicewise ledger invoice --month 2026-11<" in text
    assert all(words not in text for words in ("To pay", "What for", 'id="lines"', "<strong>1.37"))
    _, text = await site.get("/tenants/vision")
    month = re.search(r"slicewise ledger invoice --month (\S+) --tenant vision<", text)
    assert month is not None
    money = text[text.index('id="money"') : text.index('id="joules"')]
    assert "so far" not in money
    assert "By service" not in money
    assert ">93.75<" in money
    status, text = await site.get("/invoice.csv?month=2026-11")
    assert status == 422
    assert "slicewise ledger invoice" in text


async def test_who_has_no_key_and_asked_nothing_is_told_so(site: Site):
    site.made.count = 0
    _, text = await site.get("/usage?month=2026-10")
    assert "You have no key." in text
    assert "No request of yours ended in 2026-10." in text


async def test_other_pages_have_no_csv(site: Site):
    assert (await site.get("/cluster.csv"))[0] == 404
    assert (await site.get("/nothing.csv"))[0] == 404


async def test_a_page_that_does_not_change_is_not_followed(site: Site):
    assert (await site.get("/live/statement"))[0] == 404


async def test_what_is_slow_beside_a_page_is_left_out_of_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("slicewise.slurm_plugin.page.server._BESIDE_S", 0.05)

    async def slow(_: str, request: Request) -> Answer:
        if isinstance(request, HistoryRequest):
            await asyncio.sleep(60)
        return await site.made.ask("alice", request)

    site.server._reads._asked = slow  # type: ignore[method-assign]
    status, text = await site.get("/cluster.json")
    assert status == 200
    assert json.loads(text)["history"]["code"] == "SW-TIMEOUT"


async def test_what_the_ledger_can_t_answer_now_is_no_fault_of_who_asks(site: Site):
    down = InvalidInputError("SW-DATABASE-DOWN", "The ledger does not answer now.")
    site.made.refused[StatementRequest] = down
    assert (await site.get("/statement.json"))[0] == 503


async def test_a_month_ends_where_the_next_begins_and_a_cut_file_has_no_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("slicewise.slurm_plugin.page.server._CSV_PAGES", 1)

    async def endless(_: str, request: Request) -> Answer:
        assert isinstance(request, StatementRequest)
        assert request.until_s is not None
        assert 28 * 86_400 <= request.until_s - request.since_s <= 31 * 86_400
        cursor = StatementCursor(tenant="vision", start_s=1, job_id=1, now_s=2)
        return StatementAnswer(now_s=2, rows=(), more=cursor)

    site.server._reads._asked = endless  # type: ignore[method-assign]
    with pytest.raises(aiohttp.ClientPayloadError):
        await site.get("/statement.csv?month=2026-10")
