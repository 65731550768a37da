"""The whole line: a service file, Slurm, Triton, the gateway, the ledger; and bad service files."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from effort import is_nightly
from hypothesis import given, settings
from hypothesis import strategies as st
from quotas import until_daemon_leads, until_in_force
from service_status import services, until_routed
from waiting import until, until_is

from slicewise.cluster.language.codes import Code
from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models, write_service_file
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.record import RequestRecord
from slicewise.sandbox.demo.scenario import VISION
from slicewise.sandbox.demo.trace import Arrival

pytestmark = pytest.mark.integration

NOMINAL = 3
TOKENS = (1000, 100)
TASK = ("sbatch", "--parsable", "--output=/dev/null", "--time=5", "--gres=gpu:1g.10gb:1")


class Line:
    """What tenants and operators see of one sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.models = publish_models(sandbox.layout.models)
        self.home = sandbox.layout.home / sandbox.state.users["alice"].name
        self.file = write_service_file(replace(VISION, concurrency=2), self.models, self.home)

    def slicewise(self, user: str, *words: str, check: bool = True) -> tuple[int, str]:
        argv = ("env", "COLUMNS=500", "slicewise", *words)
        done = self.sandbox.run(user, argv, check=check)
        return done.returncode, done.stdout + done.stderr

    def replicas(self) -> tuple[int, int]:
        """Ready ones; all that cost something."""
        slots = [service["slots"] for service in services(self.sandbox).values()]
        ready = sum(len(s["ready"]) for s in slots)
        return ready, ready + sum(len(s["starting"]) + len(s["draining"]) for s in slots)

    def billing(self, account: str = "vision") -> int:
        """Millislices that Slurm has allotted to the account now."""
        argv = ("squeue", "-h", "-r", "-A", account, "-t", "R,CG", "-O", "tres-alloc:500")
        lines = self.sandbox.run("root", argv).stdout.split()
        return sum(
            int(item.partition("=")[2])
            for line in lines
            for item in line.split(",")
            if item.startswith("billing=")
        )

    def jobs(self) -> str:
        return self.sandbox.run("root", ("squeue", "-h", "-r")).stdout

    def submitted(self) -> str:
        """How far the job ids have come."""
        shown = self.sandbox.run("root", ("scontrol", "show", "config")).stdout
        return next(row for row in shown.splitlines() if row.startswith("NEXT_JOB_ID"))

    async def send(self, count: int) -> list[RequestRecord]:
        # The daemon knows of a service before the launcher has given it a route.
        await asyncio.to_thread(until_routed, self.sandbox, VISION.service)
        async with Load(self.sandbox.layout.gateway_url, [VISION.service], 240.0) as load:
            arrivals = [Arrival(0.02 * i, VISION.service, *TOKENS) for i in range(count)]
            await load.replay(arrivals)
            return list(load.records)

    def cancel_all(self) -> None:
        self.sandbox.run("root", ("scancel", "--account=vision"), check=False)
        until(lambda: not self.jobs())


@pytest.fixture(scope="module")
def line(sandbox: Sandbox) -> Iterator[Line]:
    found = Line(sandbox)
    found.slicewise("root", "tenant-quota", "set", "vision", "--nominal", str(NOMINAL))
    until_in_force(sandbox, "vision")
    yield found
    found.cancel_all()


@pytest.fixture
def address_404(line: Line) -> Iterator[None]:
    yield
    line.cancel_all()
    until_is(lambda: services(line.sandbox), {})


@pytest.mark.promise("Plain sbatch of the rendered script is a service, too.")
@pytest.mark.usefixtures("address_404")
def test_plain_sbatch_of_the_rendered_script_is_a_service(line: Line) -> None:
    script = line.slicewise("alice", "service", "render", str(line.file))[1]
    done = line.sandbox.run("alice", ("sbatch", "--parsable"), input=script)
    until(lambda: VISION.service in services(line.sandbox))
    assert VISION.service_name in line.slicewise("alice", "service", "list")[1]
    assert line.replicas() == (0, 0)
    records = asyncio.run(line.send(1))
    assert [record.error for record in records] == [""]
    until_is(line.replicas, (0, 0))
    assert done.stdout.strip() in line.jobs()


@pytest.mark.promise(
    "Services grow with waiting requests up to the quota, shrink to zero and lose no request."
)
@pytest.mark.usefixtures("address_404")
def test_no_request_is_lost_from_zero_to_the_quota_and_back(line: Line) -> None:
    line.slicewise("alice", "service", "apply", str(line.file))
    records = asyncio.run(line.send(100))
    assert [record.error for record in records if record.error] == []
    assert len(records) == 100
    assert line.billing() <= NOMINAL * 1000
    until_is(line.replicas, (0, 0))
    until_is(line.billing, 0)
    assert json.loads(line.slicewise("root", "ledger", "verify", "--json")[1])["imbalance"] == 0


@pytest.mark.promise("Slurm enforces the quotas also while every process of Slicewise is dead.")
@pytest.mark.usefixtures("address_404")
def test_daemon_and_launcher_killed_under_load_the_limits_hold(line: Line) -> None:
    """With both killed a tenant still can't run more than its quota; then all goes on."""
    line.slicewise("alice", "service", "apply", str(line.file))

    async def killed_while_it_serves() -> list[RequestRecord]:
        sending = asyncio.create_task(line.send(150))
        # However long Slurm and Triton take: until then requests are held.
        await asyncio.to_thread(until, lambda: line.replicas()[0])
        for name in ("daemon", "launcher"):
            line.sandbox.kill(name)
        return await sending

    try:
        records = asyncio.run(killed_while_it_serves())
        assert [record.error for record in records if record.error] == []
        assert line.billing() > 0
        for extra in ((), ("--qos=normal",), ("--array=0-4",)):
            line.sandbox.run("alice", (*TASK, *extra, "--wrap=sleep 300"), check=False)
        until_is(line.billing, NOMINAL * 1000)
        assert most_billed(line) == NOMINAL * 1000
        line.sandbox.run("root", ("scancel", "--account=vision", "--name=wrap"))
    finally:
        line.sandbox.restore(print)
    until_daemon_leads(line.sandbox)
    assert [record.error for record in asyncio.run(line.send(20))] == [""] * 20
    if is_nightly():
        # A launcher that was away shrinks nothing for a minute.
        until_is(line.replicas, (0, 0), 180)


@pytest.mark.usefixtures("address_404")
def test_the_limits_of_several_qos_do_not_add_up(line: Line) -> None:
    line.sandbox.kill("daemon")
    try:
        for extra in (("--qos=normal", "--array=0-1"), ("--array=0-4",)):
            line.sandbox.run("alice", (*TASK, *extra, "--wrap=sleep 300"))
            until(line.billing)
        until_is(line.billing, NOMINAL * 1000)
        assert most_billed(line) == NOMINAL * 1000
    finally:
        line.sandbox.restore(print)
    until_daemon_leads(line.sandbox)


def most_billed(line: Line) -> int:
    """What the tenant holds at most during the next seconds."""
    seen = []
    for _ in range(25):
        seen.append(line.billing())
        time.sleep(0.2)
    return max(seen)


PATH = ["model_repository: an absolute path of letters, digits and _ . / @ % + = : , -"]
BAD = [
    # what is wrong, replacement in the service file, what must be named
    ("unknown tenant", ('tenant = "vision"', 'tenant = "vsion"'), ["tenant", "vision"]),
    ("tenant of others", ('tenant = "vision"', 'tenant = "nlp"'), ["tenant", "vision"]),
    ("profile", ('"1g.10gb"', '"1g.99gb"'), ["profile", "1g.10gb", "1g.18gb", "3g.40gb"]),
    (
        "min > max",
        ("min_replicas = 0", "min_replicas = 99"),
        ["min_replicas", f"max_replicas {VISION.max_replicas}"],
    ),
    ("metacharacter", ('/demo"', '/demo;reboot"'), PATH),
    ("substitution", ('/demo"', '/$(reboot)"'), PATH),
    ("newline", ('/demo"', '/demo\\n#SBATCH --uid=0"'), PATH),
    ("no repository", ('/demo"', '/none"'), ["model_repository", "not a directory"]),
    ("no such model", ('model = "tokens"', 'model = "bert"'), ["model", "tokens"]),
    (
        "unknown key",
        ("min_replicas", "minimum"),
        ["minimum: no such key", "Keys: ", "min_replicas"],
    ),
    ("no TOML", ("[service]", "[service"), ["not TOML"]),
    (
        "huge",
        (f"max_replicas = {VISION.max_replicas}", "max_replicas = 100000"),
        ["max_replicas: a whole number from 1 to 256"],
    ),
]


@pytest.mark.parametrize(("change", "named"), [row[1:] for row in BAD], ids=[r[0] for r in BAD])
def test_a_wrong_service_file_is_explained_and_submits_nothing(
    line: Line, change: tuple[str, str], named: list[str]
) -> None:
    before = line.submitted()
    bad = line.home / "bad.toml"
    text = line.file.read_text().replace(*change)
    assert text != line.file.read_text()
    bad.write_text(text)
    code, said = line.slicewise("alice", "service", "apply", str(bad), check=False)
    assert code == Code(re.findall(r"SW-[A-Z-]+", said)[-1]).exit_code
    assert [word for word in named if word not in said] == []
    assert "Traceback" not in said
    assert "SW-" in said
    assert line.submitted() == before


@settings(max_examples=15)
@given(path=st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=40))
def test_no_path_that_a_user_writes_becomes_a_command(line: Line, path: str) -> None:
    mark = Path(line.home, "mark")
    text = line.file.read_text().replace(str(line.models), "PATH")
    hostile = json.dumps(f"/{path}`touch {mark}`;$(touch {mark})")
    bad = line.home / "hostile.toml"
    bad.write_text(text.replace('"PATH"', hostile))
    code, said = line.slicewise("alice", "service", "render", str(bad), check=False)
    assert code == Code(re.findall(r"SW-[A-Z-]+", said)[-1]).exit_code
    assert not mark.exists()
