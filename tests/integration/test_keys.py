"""API keys through the gateway: made by a member, revoked by another, closed for all others."""

import json
import time
from collections.abc import Iterator, Mapping
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from api_keys import forget_keys
from quotas import until_in_force
from waiting import until, until_is

from slicewise.cluster.language.codes import Code
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models

pytestmark = pytest.mark.integration

NAME = "keyed"
AT_THE_GATEWAY_S = 5.0
FILE = """\
[service]
name = "keyed"
tenant = "{tenant}"
model_repository = {models}
model = "tokens"
profile = "1g.18gb"
max_replicas = 1
min_replicas = 1
lease_s = 600
memory_mib = 512
"""


class Site:
    """A service of bob's in nlp, and one of alice's in vision."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        models = json.dumps(str(publish_models(sandbox.layout.models)))
        for user, tenant in (("bob", "nlp"), ("alice", "vision")):
            self.slicewise("root", "tenant-quota", "set", tenant, "--nominal", "1")
            until_in_force(sandbox, tenant)
            file = sandbox.layout.home / sandbox.state.users[user].name / "keyed.toml"
            file.write_text(FILE.format(tenant=tenant, models=models))
            self.slicewise(user, "service", "apply", str(file))

    def slicewise(self, user: str, *words: str) -> str:
        return self.sandbox.run(user, ("slicewise", *words)).stdout

    def refusal(self, user: str, *words: str) -> str:
        """The last line of what is said."""
        ran = self.sandbox.run(user, ("slicewise", *words), check=False)
        code = ran.stderr.splitlines()[-1]
        assert ran.returncode == Code(code).exit_code
        return code

    def status(self, tenant: str, headers: Mapping[str, str] | None = None) -> int:
        url = f"{self.sandbox.layout.gateway_url}/{tenant}/{NAME}/v2/models/tokens"
        try:
            asked = Request(url, headers=dict(headers or {}))  # noqa: S310 -- the gateway's
            with urlopen(asked, timeout=240) as answer:  # noqa: S310
                return int(answer.status)
        except HTTPError as error:
            return error.code

    def create(self, user: str, tenant: str) -> Mapping[str, str]:
        answer = self.slicewise(user, "key", "create", tenant, "--name", "ci", "--yes", "--json")
        return dict(json.loads(answer))


@pytest.fixture(scope="module")
def site(sandbox: Sandbox) -> Iterator[Site]:
    found = Site(sandbox)
    yield found
    for user, tenant in (("bob", "nlp"), ("alice", "vision")):
        found.slicewise(user, "service", "delete", f"{tenant}/{NAME}", "--now")
    until(lambda: NAME not in sandbox.run("root", ("squeue", "-h", "-o", "%j")).stdout)
    forget_keys(sandbox, "nlp", "vision")


def test_the_first_key_closes_a_tenants_services_and_opens_them_to_who_has_it(site: Site) -> None:
    for tenant in ("nlp", "vision"):
        until_is(lambda tenant=tenant: site.status(tenant), 200)
    own = site.create("bob", "nlp")
    until_is(lambda: site.status("nlp"), 401)
    assert site.status("nlp", {"Authorization": f"Bearer {own['key']}"}) == 200
    assert site.status("nlp", {"x-api-key": own["key"]}) == 200
    assert site.status("nlp", {"x-api-key": own["key"][:-1]}) == 401
    # No key is asked for where there is none; a key of another tenant opens nothing.
    assert site.status("vision") == 200
    other = site.create("alice", "vision")
    until_is(lambda: site.status("vision"), 401)
    assert site.status("vision", {"x-api-key": other["key"]}) == 200
    assert site.status("nlp", {"x-api-key": other["key"]}) == 403


def test_a_key_is_shown_once_and_kept_as_a_hash_alone(site: Site) -> None:
    made = site.create("bob", "nlp")
    for user in ("bob", "root"):
        listed = site.slicewise(user, "key", "list", "--json")
        assert made["key_id"] in listed
        assert made["key"] not in listed
    assert made["key_id"] not in site.slicewise("alice", "key", "list", "--json")
    for log in site.sandbox.layout.log.glob("*.log"):
        assert made["key"] not in log.read_text(errors="replace")


def test_a_revoked_key_opens_nothing_and_its_tenant_stays_closed(site: Site) -> None:
    keys = [site.create("bob", "nlp") for _ in range(2)]
    headers = [{"x-api-key": key["key"]} for key in keys]
    until_is(lambda: [site.status("nlp", one) for one in headers], [200, 200])
    assert site.refusal("alice", "key", "delete", keys[0]["key_id"]) == "SW-NAME-UNKNOWN"
    site.slicewise("bob", "key", "delete", keys[0]["key_id"])
    until_is(lambda: [site.status("nlp", one) for one in headers], [401, 200])
    for key in json.loads(site.slicewise("bob", "key", "list", "--json")):
        site.slicewise("bob", "key", "delete", key["key_id"], "--yes")
    until_is(lambda: [site.status("nlp", one) for one in headers], [401, 401])
    time.sleep(AT_THE_GATEWAY_S)
    assert site.status("nlp") == 401
    site.slicewise("bob", "key", "open", "nlp", "--yes")
    until_is(lambda: site.status("nlp"), 200)


def test_strangers_make_no_keys(site: Site) -> None:
    assert site.refusal("alice", "key", "create", "nlp", "--name", "a") == "SW-TENANT-UNKNOWN"
    assert site.refusal("root", "key", "create", "typo", "--name", "a") == "SW-TENANT-UNKNOWN"
    assert site.refusal("bob", "key", "create", "nlp", "--name", "a b") == "SW-VALUE"


def test_limits_are_set_live_and_who_has_left_lets_nothing_in(site: Site) -> None:
    site.slicewise("root", "key", "require", "nlp", "--from", "1h")
    until_is(lambda: site.status("nlp"), 200)
    sacctmgr = ("sacctmgr", "-i")
    member = ("user", "carol", "account=nlp")
    site.sandbox.run("slurm", (*sacctmgr, "add", *member))
    words = ("key", "create", "nlp", "--name", "ci", "--person", "carol", "--yes", "--json")

    def made() -> bool:
        return site.sandbox.run("root", ("slicewise", *words), check=False).returncode == 0

    until(made)
    (key,) = (
        one
        for one in json.loads(site.slicewise("root", "key", "list", "--json"))
        if one["person"] == "carol"
    )
    assert key["key_id"] in site.slicewise("carol", "key", "list", "--json")
    assert key["key_id"] not in site.slicewise("bob", "key", "list", "--json")
    own = site.create("bob", "nlp")
    headers = {"x-api-key": own["key"]}
    until_is(lambda: site.status("nlp", headers), 200)
    site.slicewise("root", "key", "limit", "nlp/bob", "--requests-per-minute", "0")
    until_is(lambda: site.status("nlp", headers), 429)
    assert site.refusal("bob", "key", "limit", "nlp/bob", "--concurrent", "9") == "SW-FORBIDDEN"
    site.slicewise("root", "key", "limit", "nlp/bob", "--lift", "requests-per-minute")
    until_is(lambda: site.status("nlp", headers), 200)
    site.sandbox.run("slurm", (*sacctmgr, "delete", *member))
    until(
        lambda: (
            key["key_id"]
            in [
                one["key_id"]
                for one in json.loads(site.slicewise("root", "key", "list", "--json"))
                if one["has_left"]
            ]
        )
    )
    # At once, though keys are wanted in an hour only.
    site.slicewise("root", "key", "require", "nlp", "--from", "2020-01-01", "--yes")
    until_is(lambda: site.status("nlp"), 401)
