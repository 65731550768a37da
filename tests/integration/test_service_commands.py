"""The commands for services as their user types them, on the sandbox: one service's life."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from quotas import until_in_force
from service_status import until_routed
from waiting import until, until_is

from slicewise.cluster.language.starts import MOMENTS
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.trace import Arrival

pytestmark = pytest.mark.integration

NAME, SERVICE, USER = "commanded", "vision/commanded", "alice"
FILE = """\
[service]
name = "commanded"
tenant = "vision"
model_repository = "{models}"
model = "tokens"
profile = "1g.10gb"
max_replicas = 2
keep_alive_s = 1
memory_mib = 512
environment = {{ GREETING = "it's \\"$HOME\\" & more" }}
"""


class User:
    """Who types, and his service's file."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.home = sandbox.layout.home / sandbox.state.users[USER].name
        self.file = self.home / f"{NAME}.toml"

    def types(self, *words: str, check: bool = True) -> str:
        """What ``slicewise service ...`` prints."""
        return self.sandbox.run(USER, ("slicewise", "service", *words), check=check).stdout

    def reads(self, *words: str) -> Any:
        return json.loads(self.types(*words, "--json"))

    def status(self) -> Any:
        return self.reads("status", NAME)

    def slots(self, state: str) -> list[int]:
        return list(self.status()["slots"][state])

    def arrays(self) -> list[int]:
        return [one["array_job_id"] for one in self.status()["generations"]]

    def asks(self) -> None:
        """One inference through the gateway, answered."""

        async def answered() -> str:
            async with Load(self.sandbox.layout.gateway_url, [SERVICE], 240.0) as load:
                return (await load.request(Arrival(0.0, SERVICE, 1, 1))).error

        assert asyncio.run(answered()) == ""

    def applies(self) -> Any:
        """What ``apply`` says, once the address leads to the service: it waits for seconds only."""
        said = self.reads("apply", str(self.file))
        until(self.is_there)
        until_routed(self.sandbox, SERVICE)
        return said

    def ready(self) -> list[Any]:
        return [one for one in self.status()["replicas"] if one["state"] == "ready"]

    def is_there(self) -> bool:
        return any(one["service"] == SERVICE for one in self.reads("list"))


@pytest.fixture(scope="module")
def user(sandbox: Sandbox) -> Iterator[User]:
    found = User(sandbox)
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "vision", "--nominal", "3"))
    until_in_force(sandbox, "vision")
    found.file.write_text(FILE.format(models=publish_models(sandbox.layout.models)))
    yield found
    if found.is_there():
        found.types("delete", NAME, "--now", check=False)


@pytest.fixture(scope="module")
def service(user: User) -> User:
    assert "would be new: 0 to 2 replicas" in user.types("apply", str(user.file), "--dry-run")
    applied = user.applies()
    assert applied["action"] == "create"
    assert (user.status()["array_job_id"], user.arrays()) == (
        applied["array_job_id"],
        [applied["array_job_id"]],
    )
    return user


@pytest.mark.promise("Applying the same service file again changes nothing.")
def test_the_same_file_again_changes_nothing(service: User):
    before = service.arrays()
    assert service.reads("apply", str(service.file), "--dry-run")["action"] == "nothing"
    assert "Nothing was submitted" in service.types("apply", str(service.file))
    assert service.arrays() == before


@pytest.mark.promise(
    "A service that sleeps is woken by the next request, which is held and answered."
)
def test_the_first_request_wakes_it_and_its_log_is_there(service: User):
    service.asks()
    lines = [
        json.loads(line)
        for line in service.types("logs", NAME, "--lines", "500", "--json").splitlines()
    ]
    started = {line["slot"] for line in lines if "starting on" in line["line"]}
    assert started
    assert started == {line["slot"] for line in lines}


@pytest.mark.promise(
    "Where the seconds of a service's last starts went is told, from the request to the first byte."
)
def test_a_wake_is_traced_from_the_request_to_the_first_byte(service: User):
    def woken() -> tuple[float, float, Any] | None:
        """None where a busy daemon has not looked at the slot between its start and its answer."""
        until_is(lambda: service.status()["state"], "asleep")
        began_s = time.time()
        service.asks()
        answered_s = time.time()

        def told() -> Any:
            (start,) = service.reads("trace", NAME)["starts"][-1:] or ({"state": ""},)
            return start if start["state"] == "ready" and start["at_s"]["desired"] > began_s else 0

        start = until(told)
        return (began_s, answered_s, start) if "started" in start["at_s"] else None

    began_s, answered_s, start = until(woken)
    times_s = list(start["at_s"].values())
    # Without a cache on the node nothing is brought to it.
    assert list(start["at_s"]) == [
        one for one in MOMENTS if one not in {"booted", "brought", "ended"}
    ]
    assert times_s == sorted(times_s)
    assert began_s < times_s[0] < times_s[-1] < answered_s
    spent_s = sum(phase["seconds"] for phase in start["phases"])
    assert spent_s == pytest.approx(times_s[-1] - times_s[0], abs=0.01)
    (remote,) = service.reads("trace", NAME)["classes"]
    assert remote["start_class"] == "remote"
    assert "longest" in service.types("trace", NAME)
    assert "last start" in service.types("status", NAME)


def test_start_shows_that_its_model_starts_and_gives_the_slice_back(service: User):
    until_is(lambda: service.status()["state"], "asleep")
    said = service.reads("apply", str(service.file), "--start")
    assert said["action"] == "nothing"
    assert said["started"]["inferred"]
    assert said["started"]["replica"].startswith(f"{service.arrays()[0]}_")
    until_is(lambda: service.status()["state"], "asleep")
    assert not service.status()["is_scaled"]
    # It sleeps as soon as nothing is asked for; the run's end is seen a look later.
    expected = {"started", "ready", "ended"}
    until(lambda: expected <= {event["what"] for event in service.reads("events", NAME)})


def test_scale_holds_replicas_until_it_is_reset(service: User):
    service.types("scale", NAME, "--min", "2")
    assert service.types("wait", NAME, "--for", "ready") == f"{SERVICE} is ready\n"
    assert service.slots("ready") == [0, 1]
    assert service.status()["min_replicas"] == 2
    service.types("scale", NAME, "--reset")
    until_is(lambda: service.slots("held"), [0, 1])


def test_restart_replaces_what_runs(service: User):
    service.types("scale", NAME, "--min", "1")
    (before,) = until(service.ready)
    service.types("restart", NAME)

    def replaced() -> bool:
        return [one["slot"] for one in service.ready()] not in ([], [before["slot"]])

    until(replaced)
    service.types("scale", NAME, "--reset")


def test_a_changed_file_rolls_over_also_by_plain_sbatch(service: User):
    (before,) = service.arrays()
    text = service.file.read_text()
    service.file.write_text(text.replace("max_replicas = 2", "max_replicas = 3"))
    plan = service.reads("apply", str(service.file), "--dry-run")
    assert plan["changes"] == [{"key": "max_replicas", "before": "2", "after": "3"}]
    script = service.types("render", str(service.file))
    said = service.sandbox.run(USER, ("sbatch", "--parsable"), input=script).stdout
    after = int(said.strip().splitlines()[-1])
    assert after > before
    until_is(service.arrays, [after])
    service.asks()
    assert service.reads("apply", str(service.file), "--dry-run")["action"] == "nothing"


def test_a_rollback_brings_the_generation_before_back(service: User):
    def recorded() -> list[int]:
        return [one["array_job_id"] for one in service.reads("history", NAME)]

    (newest,) = service.arrays()
    until(lambda: recorded()[0] == newest)
    past = service.reads("history", NAME)
    assert past[0]["changes"] == [{"key": "max_replicas", "before": "2", "after": "3"}]
    arrays = [one["array_job_id"] for one in past]
    assert sorted(set(arrays), reverse=True) == arrays
    assert [one["state"] for one in past[:2]] == ["newest", "ended"]
    done = service.reads("rollback", NAME, "--wait")
    assert (done["action"], done["state"]) == ("roll over", "asleep")
    assert len(service.status()["slots"]["held"]) == 2
    until(lambda: recorded()[0] == done["array_job_id"])
    assert service.reads("history", NAME)[0]["changes"][0]["after"] == "2"
    forth = service.reads("rollback", NAME, "--wait")
    until_is(service.arrays, [forth["array_job_id"]])
    service.asks()


BROKEN = "raise RuntimeError('no weights')\n"


def test_a_roll_over_whose_replica_fails_is_aborted_and_the_one_before_stays(service: User):
    (before,) = service.arrays()
    models = service.sandbox.layout.models / "commanded-broken"
    (models / "tokens" / "1").mkdir(parents=True, exist_ok=True)
    (models / "tokens" / "1" / "model.py").write_text(BROKEN)
    whole = publish_models(service.sandbox.layout.models)
    configuration = (Path(whole) / "tokens" / "config.pbtxt").read_text()
    (models / "tokens" / "config.pbtxt").write_text(configuration)
    text = service.file.read_text()
    broken = text.replace(str(whole), str(models)) + "abort_roll_after = 1\n"
    service.file.write_text(broken)
    words = ("slicewise", "service", "apply", str(service.file), "--start")
    done = service.sandbox.run(USER, words, check=False)
    service.file.write_text(text)
    assert done.returncode == 1
    assert f"and {before} before it stays: " in done.stderr
    assert "was aborted after a failed start" in done.stderr
    until_is(service.arrays, [before])
    assert not service.status()["is_scaled"]
    service.asks()


@pytest.mark.promise("A service that is deleted finishes what is in flight.")
def test_delete_lets_what_is_in_flight_finish_and_ends(service: User):
    service.asks()
    assert service.types("delete", NAME).endswith(f"{SERVICE}: has ended\n")
    assert not service.is_there()


def test_delete_now_does_not_wait(user: User):
    user.applies()
    user.asks()
    user.types("delete", NAME, "--now")
    assert not user.is_there()


def test_start_of_a_service_that_failed_tries_one_and_its_cause_is_shown(user: User):
    models = user.sandbox.layout.models / "commanded-failing"
    (models / "tokens" / "1").mkdir(parents=True, exist_ok=True)
    whole = Path(publish_models(user.sandbox.layout.models)) / "tokens"
    (models / "tokens" / "config.pbtxt").write_text((whole / "config.pbtxt").read_text())
    model = models / "tokens" / "1" / "model.py"
    model.write_text(BROKEN)
    user.file.write_text(FILE.format(models=models))
    words = ("apply", str(user.file), "--start", "--skip-model-check")
    done = user.sandbox.run(USER, ("slicewise", "service", *words), check=False)
    assert done.returncode == 1
    assert "no weights" in done.stderr
    assert user.status()["report"]["failed_starts"] >= 3
    # Mended where it lies: no generation is new, and its next start would be minutes away.
    model.write_text((whole / "1" / "model.py").read_text())
    said = user.reads(*words)
    assert (said["action"], said["started"]["inferred"]) == ("nothing", True)
    user.types("delete", NAME, "--now")


def test_names_of_nobody_are_refused(user: User):
    done = user.sandbox.run(USER, ("slicewise", "service", "restart", "nobody"), check=False)
    assert (done.returncode, "SW-SERVICE-UNKNOWN" in done.stderr) == (3, True)
