"""The page in the browser: each page, its JSON and its live part, for each kind of user."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from api_keys import forget_keys
from browser import NARROW, Browser, Viewer
from browser import Page as Window
from jobs_as_users import Modes
from quotas import until_in_force
from waiting import until
from web_site import COOKIE, Reply, Site

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.slurm_plugin.page.pages import PAGES, Page

pytestmark = pytest.mark.integration

OPERATOR, WITHOUT_ACCOUNT, VISITOR = "irc", "nobody", ""
"""Users whom Debian has; who isn't logged in."""
TENANTS = {"vision": "alice", "nlp": "bob", "guest": "carol"}
OPERATORS = ("root", OPERATOR)
EVERYBODY = (*OPERATORS, *TENANTS.values(), WITHOUT_ACCOUNT, VISITOR)
QUOTAS = {
    "vision": ("5", "--lending-limit", "1"),
    "nlp": ("1", "--borrowing-limit", "1"),
    "guest": ("1",),
}
JOBS = 3
"""Of each tenant. All of vision's run, and what it has left runs nlp's second; the others wait."""
SERVICE = """\
[service]
name = "{name}"
tenant = "{tenant}"
model_repository = "{models}"
model = "tokens"
profile = "1g.10gb"
max_replicas = 1
memory_mib = 512
"""
HEADERS = {
    "content-security-policy": re.compile(
        r"default-src 'self'; (?!.*unsafe).*frame-ancestors 'none'.*"
    ),
    "cross-origin-opener-policy": re.compile("same-origin"),
    "cross-origin-resource-policy": re.compile("same-origin"),
    "referrer-policy": re.compile("no-referrer|same-origin|strict-origin"),
    "server": re.compile("slicewise"),
    "x-content-type-options": re.compile("nosniff"),
}
HOSTILE = '=HYPERLINK("http://evil.example")<script>alert(1)</script>{{7*7}}\x1b[31m\u202e'
HOSTILE_ACCOUNTS = (
    *("<script>alert(1)</script>", "{{7*7}}", "+sum(1)", "a\x1b[31mb"),
    *("[red]x[/red]", "naïve", "a|b"),
)
"""sacctmgr adds these. It makes ` of ', and refuses a name that begins with = or has other letters
than Latin ones; none of them can be a tenant.
"""
FORMS = ("{}", "{}.json", "/live{}")


@dataclass(frozen=True)
class Planted:
    """What a tenant has, and the words by which anything of it is known.

    Attributes:
        jobs: their numbers in Slurm.
        words: the tenant, its user, and names that occur nowhere else.
    """

    user: str
    service: str
    jobs: Sequence[str]
    words: frozenset[str]

    def found_in(self, text: str, but_for: str) -> set[str]:
        """The words in a text, without those that were asked for."""
        asked = set(re.findall(r"\w+", but_for))
        return {word for word in self.words if word not in asked and word in text}


def planted(sandbox: Sandbox, tenant: str) -> Planted:
    """Give a tenant a service, a key, and jobs with a name, a comment and an output."""
    user = TENANTS[tenant]
    service, key, job, comment, line = (f"{kind}{uuid4().hex[:10]}" for kind in "skjcl")
    file = sandbox.layout.home / sandbox.state.users[user].name / f"{service}.toml"
    models = sandbox.layout.models / "demo"
    file.write_text(SERVICE.format(name=service, tenant=tenant, models=models))
    sandbox.run(user, ("slicewise", "service", "apply", str(file)))
    sandbox.run(user, ("slicewise", "key", "create", tenant, "--name", key, "--yes"))
    options = (f"--job-name={job}", f"--comment={comment}", "--gres=gpu:1g.10gb:1", "--parsable")
    script = f"#!/bin/sh\necho {line}\nsleep 3600\n"
    jobs = [
        sandbox.run(user, ("sbatch", *options), input=script).stdout.strip() for _ in range(JOBS)
    ]
    words = (tenant, sandbox.state.users[user].name, service, key, job, comment, line)
    return Planted(user, service, jobs, frozenset(words))


@pytest.fixture(scope="module")
def site(sandbox: Sandbox) -> Iterator[Site]:
    """The page, with everybody logged in; one user is an operator by web.operators."""
    settings = sandbox.layout.settings_file
    before = settings.read_text()
    settings.write_text(before.replace("[web]\n", f'[web]\noperators = ["{OPERATOR}"]\n'))
    Modes(sandbox).restart_daemon()
    made = Site(sandbox, sandbox.serve_page())
    for user in EVERYBODY:
        if user != VISITOR:
            made.log_in(user)
    yield made
    # The daemon reads it when another module starts it again.
    settings.write_text(before)


@pytest.fixture(scope="module")
def tenants(sandbox: Sandbox, site: Site) -> Iterator[Mapping[str, Planted]]:
    """Three tenants, each with its own; the daemon knows them all."""
    publish_models(sandbox.layout.models)
    for tenant, quota in QUOTAS.items():
        sandbox.run("root", ("slicewise", "tenant-quota", "set", tenant, "--nominal", *quota))
    until_in_force(sandbox, *QUOTAS)
    with ThreadPoolExecutor() as pool:
        found = dict(zip(TENANTS, pool.map(partial(planted, sandbox), TENANTS), strict=True))
    until(lambda: are_known(site, found))
    yield found
    for tenant in TENANTS:
        sandbox.run("slurm", ("scancel", "-A", tenant))
    forget_keys(sandbox, *TENANTS)


def are_known(site: Site, tenants: Mapping[str, Planted]) -> bool:
    """Whether every service is shown, jobs run and wait, and nlp has borrowed."""
    told = json.loads(site.get("/cluster.json", "root").text)["overview"]
    services = {one["name"] for one in told["services"]}
    waiting = {one["tenant"] for one in told["waiting"]}
    return (
        services >= {one.service for one in tenants.values()}
        and waiting == {"nlp", "guest"}
        and told["slices"]["lent_millislices"] > 0
    )


def paths_of(page: Page, tenant: str, own: Planted) -> Iterator[str]:
    """The page's addresses with everything that a tenant has."""
    words = {"tenant": (tenant,), "service": (own.service,), "job": own.jobs}
    names = re.findall(r"\{(\w+)\}", page.pattern)
    for chosen in product(*(words[name] for name in names)):
        yield page.pattern.format(**dict(zip(names, chosen, strict=True)))


def shown(site: Site, form: str, path: str, user: str) -> Reply:
    is_live = form.startswith("/live")
    return site.live(path, user) if is_live else site.get(form.format(path), user)


def assert_hardened(reply: Reply) -> None:
    for name, wanted in HEADERS.items():
        assert wanted.fullmatch(reply.headers.get(name, "")), (name, reply)
    is_asset = "immutable" in reply.headers["cache-control"]
    assert is_asset or reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.pattern)
@pytest.mark.parametrize("user", EVERYBODY)
def test_nobody_sees_anything_of_another_tenant(
    site: Site, tenants: Mapping[str, Planted], page: Page, user: str
):
    forms = FORMS if page.is_live else FORMS[:2]
    is_refused = page.is_for_operators and user not in OPERATORS
    for tenant, own in tenants.items():
        for path, form in product(paths_of(page, tenant, own), forms):
            reply = shown(site, form, path, user)
            assert_hardened(reply)
            hidden = [one for one in tenants.values() if user not in (*OPERATORS, one.user)]
            leaked = {word for one in hidden for word in one.found_in(reply.text, path)}
            assert not leaked, (form, path, reply.text)
            if user == VISITOR:
                assert reply.status == 401, (form, path)
            elif is_refused and form != "/live{}":
                # The form of what-if asks nothing yet, and says that it is for operators.
                assert reply.status == (200 if page.form_asks else 403), (form, path, reply.text)
                assert "<textarea" not in reply.text
            elif own not in hidden:
                assert reply.status == 200, (form, path, reply.text)
                assert (
                    reply.headers["content-type"].partition(";")[0]
                    == {
                        "{}": "text/html",
                        "{}.json": "application/json",
                        "/live{}": "text/event-stream",
                    }[form]
                )
            elif "{" in page.pattern and form != "/live{}":
                assert reply.status in (403, 404), (form, path, reply.text)


@pytest.mark.usefixtures("tenants")
@pytest.mark.parametrize("path", ["/jobs/4711", "/tenants/none", "/services/vision/none"])
def test_what_does_not_exist_is_not_found_by_who_may_see_all(site: Site, path: str):
    assert [site.get(path, user).status for user in (*OPERATORS, "alice")] == [404, 404, 403]


def test_a_head_is_answered_as_a_get(site: Site):
    for path in ("/cluster", "/cluster.json", "/statement.csv"):
        reply = site.ask("HEAD", path, "alice")
        assert (reply.status, reply.text) == (200, "")
        assert_hardened(reply)


def test_a_login_address_says_whose_it_is(site: Site):
    said = site.sandbox.run("alice", ("slicewise", "web", "login")).stdout
    assert f"It logs in {site.sandbox.state.users['alice'].name}, once" in said


@pytest.mark.promise("Operators see on the page what all tenants have.")
def test_operators_see_what_all_tenants_have(site: Site, tenants: Mapping[str, Planted]):
    for user in OPERATORS:
        for path in ("/cluster", "/services"):
            text = site.get(f"{path}.json", user).text
            assert all(one.service in text or one.jobs[-1] in text for one in tenants.values())


def test_a_tenant_s_user_sees_the_own_in_full(site: Site, tenants: Mapping[str, Planted]):
    for tenant, own in tenants.items():
        paths = ("/tenants", f"/tenants/{tenant}", "/services", "/queue")
        html = "".join(site.get(path, own.user).text for path in paths)
        assert {tenant, own.service, *own.jobs} <= set(re.findall(r"\w+", html))
        assert "of other tenants" in html


@pytest.mark.parametrize("user", EVERYBODY)
@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "/nothing",
            "/cluster/",
            "/cluster.json.json",
            "/live",
            "/live/nothing",
            "/static/x",
        ),
        *("/static/../../etc/passwd", "/%2e%2e/etc/passwd", "/static/x", "/jobs/"),
        *("//cluster", "/login.json", "/%00", "/cluster%0d%0aX:%20y"),
    ],
)
def test_what_is_no_page_is_not_there(site: Site, user: str, path: str):
    reply = site.get(path, user)
    assert_hardened(reply)
    expected = {"/": 303}.get(path, 404) if user else 401
    assert reply.status == expected, reply


@pytest.mark.parametrize("origin", [None, "", "null", "http://evil.example", "https://127.0.0.1"])
def test_a_form_of_another_site_is_refused(site: Site, origin: str | None):
    headers = {} if origin is None else {"Origin": origin}
    for path in ("/logout", "/login", *(page.pattern for page in PAGES)):
        reply = site.ask("POST", path, "alice", headers, "token=x&form_token=x")
        assert (reply.status, "SW-FORBIDDEN" in reply.text) == (403, True), (path, reply)
        assert_hardened(reply)
    assert site.get("/cluster", "alice").status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_is_done_by_other_methods(site: Site, method: str):
    reply = site.ask(method, "/cluster", "alice")
    assert reply.status == 400, reply
    assert_hardened(reply)


def test_a_session_that_ended_sees_nothing(site: Site):
    cookie, other = site.log_in("carol"), site.log_in("carol")
    text = site.get("/cluster", "carol").text
    token = re.search(r'name="form_token" value="([^"]+)"', text)
    assert token is not None
    form = f"form_token={quote(token[1])}"
    assert site.ask("POST", "/logout", "carol", {"Origin": site.base}, form).status == 303
    assert site.get("/cluster", "carol").status == 401
    site.cookies["carol"] = cookie
    assert site.get("/cluster", "carol").status == 200
    assert cookie != other


def test_a_job_s_hostile_name_is_inert_on_page_terminal_and_in_csv(
    site: Site, tenants: Mapping[str, Planted]
):
    names = (f"--job-name={HOSTILE}", f"--comment={HOSTILE}")
    job = submit(site, "alice", *names)
    until(lambda: site.get(f"/jobs/{job}", "alice").status == 200)
    pages = ("/cluster", f"/jobs/{job}", "/tenants/vision", "/queue")
    commands = ("overview", f"why {job}", "why vision", "ledger statement --journal --csv")
    told = [site.get(path, "alice").text for path in pages]
    printed = [
        site.sandbox.run("alice", ("slicewise", *words.split())).stdout for words in commands
    ]
    cancel(site, "alice", f"job-{job}")
    for text in (*told, *printed):
        assert not re.search('<script>alert|\x1b|\u202e|(^|[,"])=', text, re.MULTILINE), text


@pytest.fixture
def jobs_of_hostile_accounts(
    site: Site, tenants: Mapping[str, Planted]
) -> Iterator[Mapping[str, str]]:
    """A job that waits in each account, by the account's name; carol is a user of them all."""
    run, user = site.sandbox.run, site.sandbox.state.users["carol"].name
    for name in HOSTILE_ACCOUNTS:
        run("root", ("sacctmgr", "-i", "add", "account", name))
        run("root", ("sacctmgr", "-i", "add", "user", user, f"account={name}"))
    # Otherwise they are refused as they are submitted.
    run("root", ("slicewise", "admission", "off"))
    try:
        jobs = {name: submit(site, "carol", f"--account={name}") for name in HOSTILE_ACCOUNTS}
    finally:
        run("root", ("slicewise", "admission", "on"))
    until(lambda: all(site.get(f"/jobs/{one}", "root").status == 200 for one in jobs.values()))
    yield jobs
    run("root", ("scancel", *jobs.values()))
    for name in HOSTILE_ACCOUNTS:
        run("root", ("sacctmgr", "-i", "delete", "user", user, f"account={name}"))
        run("root", ("sacctmgr", "-i", "delete", "account", name))


def test_account_names_that_slurm_allows_are_inert_on_page_terminal_and_in_csv(
    site: Site, jobs_of_hostile_accounts: Mapping[str, str]
):
    assert_inert_on_pages(site, jobs_of_hostile_accounts)
    assert_inert_in_a_terminal(site)


def assert_inert_on_pages(site: Site, jobs: Mapping[str, str]) -> None:
    paths = ["/cluster", "/queue", "/tenants", "/jobs/4711"]
    paths += [f"/jobs/{job}" for job in jobs.values()]
    paths += [f"/tenants/{quote(name, safe='')}" for name in jobs]
    for user, path, form in product(("root", "carol"), paths, FORMS):
        text = shown(site, form, path, user).text
        inert = "\x1b" if form == "{}.json" else "<script>alert|\x1b|>49<"
        assert not re.search(inert, text), (user, path, form, text)
    queue = site.get("/queue", "carol").text
    for name in ("&lt;script&gt;alert(1)&lt;/script&gt;", "{{7*7}}", "[red]x[/red]", "naïve"):
        assert f">{name}<" in queue
    for user in ("root", "carol"):
        csv = site.get("/statement.csv", user).text
        assert not re.search('(^|[,"])[=+@]', csv, re.MULTILINE), csv


def assert_inert_in_a_terminal(site: Site) -> None:
    def said(user: str, *words: str) -> str:
        ended = site.sandbox.run(user, ("slicewise", *words), check=False)
        return ended.stdout + ended.stderr

    red, escape = "[red]x[/red]", "a\x1b[31mb"
    refused = said("root", "tenant-quota", "set", escape, "--nominal", "1")
    check, none = said("root", "tenant", "check"), said("carol", "why", "4711")
    explained, whole = said("carol", "why", red), said("root", "overview")
    for text in (refused, check, none, explained, whole, said("root", "why", escape)):
        assert "\x1b" not in text
    assert "SW-VALUE" in refused
    assert f"{red} is no tenant" in explained
    assert all(red in text and "\ufffd[31m" in text for text in (check, none, whole))


# In a browser

in_browser = pytest.mark.asyncio(loop_scope="session")


def viewer(site: Site, user: str, **more: Any) -> Viewer:
    return Viewer(site.base, {COOKIE: site.cookies[user]}, **more)


@in_browser
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.pattern)
async def test_a_page_is_sound_in_light_and_dark_and_without_scripts(
    site: Site, tenants: Mapping[str, Planted], browser: Browser, page: Page
):
    path = next(paths_of(page, "nlp", tenants["nlp"]))
    async with browser.page(viewer(site, "root")) as opened:
        assert await opened.open(path) == 200
        found = await opened.axe()
        await opened.look(scheme="dark")
        found += await opened.axe()
        await opened.look(width=NARROW)
        assert [*found, *await opened.axe()] == []
        assert await overflow_px(opened) == 0
        assert opened.troubles == []
        async with opened.without_javascript() as plain:
            assert await plain.open(path) == 200
            heading = await opened.tab.locator("h1").text_content()
            assert await plain.tab.locator("h1").text_content() == heading
            assert plain.troubles == []


async def overflow_px(opened: Window) -> int:
    """By how much a page is wider than its window: only tables scroll sideways."""
    root = "document.documentElement"
    return int(await opened.tab.evaluate(f"{root}.scrollWidth - {root}.clientWidth"))


@pytest.mark.promise("The page in the browser shows a user's cluster, also without scripts.")
@in_browser
async def test_without_scripts_a_user_logs_in_goes_round_and_logs_out(
    site: Site, tenants: Mapping[str, Planted], browser: Browser
):
    async with browser.page(Viewer(site.base, scripts=False)) as opened:
        address = await asyncio.to_thread(site.login_address, "bob")
        await opened.open(address.removeprefix(site.base))
        await opened.tab.get_by_role("button", name="Log in").click()
        await opened.tab.get_by_role("link", name="Queue").click()
        await opened.tab.get_by_role("link", name=tenants["nlp"].jobs[-1]).click()
        await opened.tab.locator("h1", has_text="Job").wait_for()
        await opened.tab.get_by_role("button", name="Log out").click()
        await opened.tab.wait_for_url(f"{site.base}/login")
        assert opened.troubles == []
        assert await opened.open("/cluster") == 401


@in_browser
@pytest.mark.usefixtures("tenants")
async def test_the_keyboard_reaches_everything_and_is_not_disturbed_by_live_changes(
    site: Site, browser: Browser
):
    async with browser.page(viewer(site, "root")) as opened:
        await opened.open("/queue")
        tab = opened.tab
        await tab.keyboard.press("Tab")
        assert await focused(tab) == "To the content"
        await tab.keyboard.press("Enter")
        assert await tab.evaluate("document.activeElement.id") == "main"
        await tab.keyboard.press("Tab")  # the table, which scrolls
        await tab.keyboard.press("Tab")
        chosen = await focused(tab)
        assert chosen.isdecimal()
        await tab.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
        job = await asyncio.to_thread(submit, site, "carol")
        await tab.locator(f"#job-{job}").wait_for()
        assert await focused(tab) == chosen
        assert await tab.evaluate("getSelection().toString()") == "Queue"
        await asyncio.to_thread(site.sandbox.run, "carol", ("scancel", job))
        await tab.locator(f"#job-{job}").wait_for(state="detached")
        assert await focused(tab) == chosen
        await tab.keyboard.press("Enter")
        await tab.wait_for_url(f"**/jobs/{chosen}")
        assert opened.troubles == []


async def focused(tab: Any) -> str:
    """The words of what has the focus."""
    return str(await tab.evaluate("document.activeElement.textContent")).strip()


@in_browser
@pytest.mark.usefixtures("tenants")
async def test_what_is_folded_out_stays_so_over_live_changes(site: Site, browser: Browser):
    for path in ("/cluster", "/tenants/nlp"):
        async with browser.page(viewer(site, "root")) as opened:
            await opened.open(path)
            fold = opened.tab.locator("details").first
            if not await fold.count():
                continue
            await fold.locator("summary").click()
            before = await opened.tab.locator("#live").inner_html()
            job = await asyncio.to_thread(submit, site, "bob")
            changed = "before => document.querySelector('#live').innerHTML != before"
            await opened.tab.wait_for_function(changed, arg=before)
            assert await fold.get_attribute("open") is not None
            await asyncio.to_thread(site.sandbox.run, "bob", ("scancel", job))


CELL = """([id, column, text]) => {
  const row = document.getElementById(id);
  return row !== null && row.cells[column].textContent.trim() === text;
}"""
HELD = "job => document.querySelector('.gpus').textContent.includes(`job ${job}`)"
SHOWN, GONE = "id => document.getElementById(id)", "id => !document.getElementById(id)"


@in_browser
@pytest.mark.usefixtures("tenants")
async def test_a_change_is_seen_on_a_page_that_is_open(site: Site, browser: Browser):
    async def see(tab: Any, change: Change, seen: str, arg: object = None) -> str:
        """Make the change; wait until the page shows it."""
        done = await asyncio.to_thread(change)
        await tab.wait_for_function(seen, arg=done if arg is None else arg)
        return done

    async with browser.page(viewer(site, "root")) as one, browser.page(viewer(site, "bob")) as two:
        await two.open("/queue")
        row = await see(two.tab, lambda: f"job-{submit(site, 'bob')}", SHOWN)
        await see(two.tab, partial(cancel, site, "bob", row), GONE)
        await one.open("/tenants")
        for slices in ("1.5", "1"):
            cell = ["tenant-guest", 3, slices]
            await see(one.tab, partial(set_quota, site, "guest", slices), CELL, cell)
        await one.open("/cluster")
        job = await see(one.tab, lambda: started(site, "alice"), HELD)
        cancel(site, "alice", f"job-{job}")


Change = Callable[[], str]


def cancel(site: Site, user: str, row: str) -> str:
    site.sandbox.run(user, ("scancel", row.removeprefix("job-")))
    return row


def set_quota(site: Site, tenant: str, slices: str) -> str:
    """Returns as soon as it is recorded."""
    argv = ("slicewise", "tenant-quota", "set", tenant, "--nominal", slices, "--timeout", "0")
    assert site.sandbox.run("root", argv, check=False).returncode in (0, 7)
    return tenant


def started(site: Site, user: str) -> str:
    """A job that has just started; its number."""
    job = submit(site, user)
    squeue = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
    until(lambda: "RUNNING" in site.sandbox.run(user, squeue).stdout)
    return job


def submit(site: Site, user: str, *more: str) -> str:
    """A job for a slice; its number."""
    options = ("--gres=gpu:1g.10gb:1", "--parsable", "--output=/dev/null", "--wrap=sleep 600")
    return site.sandbox.run(user, ("sbatch", *options, *more)).stdout.strip()
