"""What another user of the cluster can do to a replica: real Slurm, Triton, HAProxy, two users.

Carol has a shell on the nodes, no share in the service and no key of it.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from quotas import until_in_force
from service_status import services, until_routed
from waiting import until, until_is

from slicewise.sandbox.cluster import Sandbox
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.record import RequestRecord
from slicewise.sandbox.demo.trace import Arrival

pytestmark = pytest.mark.integration

PYTHON = "/usr/bin/python3"
NAME, SERVICE = "guarded", "nlp/guarded"
SECRET_TOKENS = 321
"""Of each request: a neighbour who reads one sees that number."""
FILE = """\
[service]
name = "guarded"
tenant = "nlp"
model_repository = {models}
model = "tokens"
profile = "1g.18gb"
max_replicas = 1
keep_alive_s = 3600
memory_mib = 512
"""
SQUATTER = r"""
import json, resource, selectors, socket, subprocess, sys

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
first, last, array, *addresses = sys.argv[1:]
ready = selectors.DefaultSelector()
for address in addresses:
    for port in range(int(first), int(last)):
        listener = socket.socket()
        listener.setblocking(False)
        try:
            listener.bind((address, port))
        except OSError:
            continue
        listener.listen()
        ready.register(listener, selectors.EVENT_READ)
print("holds", len(ready.get_map()), flush=True)
while True:
    for key, _ in ready.select():
        connection, _ = key.fileobj.accept()
        connection.settimeout(0.5)
        try:
            came = connection.recv(65536)
            if came.startswith((b"GET", b"POST", b"PRI")):
                print("read", came, flush=True)
            # It says that it is the service's replica: squeue shows everybody how that is called.
            body = json.dumps({"name": f"guarded.{array}.0"}).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            connection.sendall(head + body)
        except OSError:
            pass
        connection.close()
"""
KNOCK = r"""
import socket, ssl, sys

first, last, *addresses = sys.argv[1:]
context = ssl._create_unverified_context()
open_ports, answered = 0, []
for address in addresses:
    for port in range(int(first), int(last)):
        for tls in (False, True):
            try:
                with socket.create_connection((address, port), timeout=2) as plain:
                    open_ports += not tls
                    with context.wrap_socket(plain) if tls else plain as to:
                        to.sendall(b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n"
                                   b"Content-Length: 2\r\n\r\n{}")
                        if (said := to.recv(100)).startswith(b"HTTP"):
                            answered.append((port, said.decode()))
            except OSError:
                pass
print(open_ports, answered)
"""
SOCKETS = r"""
import socket, sys

for path in {line.split()[-1] for line in open("/proc/net/unix") if "/http" in line}:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        print("came in at", path)
    except OSError as error:
        print(type(error).__name__)
"""


class Service:
    """One service of bob's."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.home = sandbox.layout.home / sandbox.state.users["bob"].name
        self.models = publish_models(sandbox.layout.models)

    def apply(self) -> int:
        file = self.home / f"{NAME}.toml"
        file.write_text(FILE.format(models=json.dumps(str(self.models))))
        words = ("slicewise", "service", "apply", str(file), "--json")
        return int(json.loads(self.sandbox.run("bob", words).stdout)["array_job_id"])

    async def send(self, count: int) -> list[RequestRecord]:
        async with Load(self.sandbox.layout.gateway_url, [SERVICE], 240.0) as load:
            await load.replay([Arrival(0.05 * i, SERVICE, SECRET_TOKENS, 1) for i in range(count)])
            return list(load.records)

    def log(self, array: int) -> str:
        log = self.home / f"{NAME}.logs" / f"{array}_0.log"
        return log.read_text() if log.exists() else ""

    def as_carol(self, program: str, *words: str) -> str:
        return self.sandbox.run("carol", (PYTHON, "-c", program, *words)).stdout

    @property
    def places(self) -> tuple[str, ...]:
        """The ports that Slurm allots, and the nodes' addresses."""
        ports, nodes = self.sandbox.layout.reserved_ports, self.sandbox.layout.node_addresses
        return (str(ports.start), str(ports.stop), *nodes.values())

    @contextmanager
    def squatter(self, array: int) -> Iterator[Path]:
        """Carol holds every port that a replica could get; what she reads goes to that file."""
        first, last, *addresses = self.places
        log = self.home / "squatter.log"
        with log.open("w") as output:
            words = (PYTHON, "-c", SQUATTER, first, last, str(array), *addresses)
            squatter = self.sandbox.popen("carol", words, stdout=output)
        try:
            until(lambda: "holds" in log.read_text())
            yield log
        finally:
            squatter.kill()
            squatter.wait()


@pytest.fixture(scope="module")
def service(sandbox: Sandbox) -> Service:
    sandbox.run("root", ("slicewise", "tenant-quota", "set", "nlp", "--nominal", "3"))
    until_in_force(sandbox, "nlp")
    return Service(sandbox)


@pytest.fixture
def applied(service: Service) -> Iterator[int]:
    array = service.apply()
    until_routed(service.sandbox, SERVICE)
    yield array
    service.sandbox.run("bob", ("slicewise", "service", "delete", SERVICE), check=False)
    until(lambda: SERVICE not in services(service.sandbox))


async def test_who_holds_all_ports_reads_no_request_and_answers_none(
    service: Service, applied: int
) -> None:
    with service.squatter(applied) as log:
        sending = asyncio.create_task(service.send(10))
        await asyncio.to_thread(until, lambda: "no door" in service.log(applied))
        assert str(SECRET_TOKENS) not in log.read_text()
        assert not sending.done()
    # Once she has gone, the same requests are answered by the replica.
    records = await sending
    assert [record.error for record in records] == [""] * 10
    assert str(SECRET_TOKENS) not in log.read_text()


@pytest.mark.promise("A replica answers nobody but the gateway.")
async def test_a_replica_answers_nobody_but_the_gateway(service: Service, applied: int) -> None:
    assert [record.error for record in await service.send(3)] == [""] * 3
    open_ports, answered = service.as_carol(KNOCK, *service.places).split(maxsplit=1)
    assert (int(open_ports) >= 2, answered.strip()) == (True, "[]")
    came_in = service.as_carol(SOCKETS)
    assert "PermissionError" in came_in
    assert "came in" not in came_in
    # The gateway's neighbours do not read what Triton shares with its Python backend, either.
    mine = service.sandbox.state.users["bob"].uid
    assert mine not in owners_in_shared_memory()
    assert [record.error for record in await service.send(3)] == [""] * 3


async def test_what_a_killed_replica_shared_is_gone_with_it(service: Service, applied: int) -> None:
    uid = service.sandbox.state.users["bob"].uid
    of_bob = ("-u", str(uid), "tritonserver")

    def servers() -> set[str]:
        return set(service.sandbox.run("root", ("pgrep", *of_bob), check=False).stdout.split())

    before = in_shared_memory(uid)
    assert [record.error for record in await service.send(1)] == [""]
    killed = servers()
    assert killed
    service.sandbox.run("root", ("pkill", "-KILL", *of_bob))
    # Another one may be there before anybody has seen that there was none.
    await asyncio.to_thread(until, lambda: not killed & servers())
    # Its batch script takes it away, once it has seen the end of its Triton.
    await asyncio.to_thread(until_is, lambda: in_shared_memory(uid) - before, set())


def owners_in_shared_memory() -> set[int]:
    return set(_shared_memory().values())


def in_shared_memory(uid: int) -> set[str]:
    """Of that user's replicas: the host's other clusters have some there, too."""
    return {
        name for name, owner in _shared_memory().items() if "slicewise" in name and owner == uid
    }


def _shared_memory() -> dict[str, int]:
    """Owners by name; what goes away meanwhile is left out."""
    found: dict[str, int] = {}
    for one in Path("/dev/shm").iterdir():
        with suppress(FileNotFoundError):
            found[one.name] = one.stat().st_uid
    return found


def test_nobody_but_its_user_reaches_the_triton_of_a_measurement(service: Service) -> None:
    """It loads any model on request: a user who reaches it runs code as its user."""
    model = ("slicewise", "profile", "measure", "tokens", "--model-repository", str(service.models))
    options = ("--account", "nlp", "--types", "1g.18gb", "--batches", "1", "--seconds", "20")
    measuring = service.sandbox.popen(
        "bob", (*model, *options), cwd=service.home, stdout=subprocess.DEVNULL
    )
    try:
        mine = service.sandbox.state.users["bob"].uid

        until(lambda: _listeners(mine) or "/http" in Path("/proc/net/unix").read_text())
        assert "came in" not in service.as_carol(SOCKETS)
        assert service.as_carol(KNOCK, *service.places).split(maxsplit=1)[1].strip() == "[]"
        assert _listeners(mine) == []
    finally:
        measuring.terminate()
        with suppress(subprocess.TimeoutExpired):
            measuring.wait(30)
        measuring.kill()
        measuring.wait()


def _listeners(uid: int) -> list[str]:
    """Addresses at which that user's Tritons listen on TCP."""
    sockets = {
        link
        for process in Path("/proc").iterdir()
        if process.name.isdecimal() and b"tritonserver" in _bytes_of(process / "cmdline")[:200]
        for link in _links_of(process / "fd")
    }
    tables = (Path("/proc/net", name) for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in _bytes_of(table).decode().splitlines()[1:]]
    return [
        row[1]
        for row in rows
        if row[3] == "0A" and int(row[7]) == uid and f"socket:[{row[9]}]" in sockets
    ]


def _bytes_of(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _links_of(folder: Path) -> list[str]:
    try:
        return [str(link.readlink()) for link in folder.iterdir()]
    except OSError:
        return []
