"""Hostile messages to the real admission worker: it answers each, and admits nothing wrong.

What may be admitted says an oracle of this module's own, which shares no code with the decision.
"""

import asyncio
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from builders.admission import admitting
from effort import examples
from waiting import PATIENCE_S

from slicewise.slurm_plugin.rules.admission.priority import Formula
from slicewise.slurm_plugin.rules.admission.snapshot import (
    AdmissionRules,
    GpuType,
    Living,
    Snapshot,
)

MESSAGES = examples(20_000, nightly=100_000)
SEED = 41
BATCH = 50
COSTS = {"1g.10gb": 1000, "1g.18gb": 1000, "3g.40gb": 3500}
OWN = {"vision": 3000, "nlp": 2000, "idle": 0}
MOST = {"vision": 3000, "nlp": 5500, "idle": 0}
"""With what may be borrowed."""
TYPE_LIMITS = {"nlp": {"3g.40gb": 1}}
BUDGETS = {"vision": 3000 * 60 * 600}
"""Millislice-seconds: ten hours of its whole quota."""
NO_QOS: frozenset[str] = frozenset()
ACCOUNTS = {
    1001: {"vision": frozenset({"urgent"})},
    1002: {"nlp": NO_QOS, "idle": NO_QOS},
    1003: {"x": NO_QOS},
}
SNAPSHOT = Snapshot(
    partitions=frozenset({"gpu"}),
    quotas=OWN,
    borrowing_limits={"nlp": 3500},
    highest_limits=MOST,
    type_limits=TYPE_LIMITS,
    budgets=BUDGETS,
    used={},
    guaranteed_used={"nlp": 1000},
    shares={},
    gpu_types={
        name: GpuType(name, cost, 1024 * int(name[3:5]), 7, 3, frozenset({"gpu"}))
        for name, cost in COSTS.items()
    },
    node_costs=frozenset({7000, 6500}),
    services={("vision", "taken"): Living(814, 1002)},
    accounts_by_uid=ACCOUNTS,
    formula=Formula(3, 5, 2, 5, max=10_000, wait_full_s=86_400.0, wait_full_limits=4, quantum=100),
    rules=AdmissionRules(high_class_for=frozenset({"nlp"}), class_of_qos={"urgent": "high"}),
)
BASE: Mapping[str, Any] = {
    "v": 1,
    "op": "submit",
    "token": "0123456789abcdef",
    "module": "2.1",
    "mode": "enforce",
    "uid": 1001,
    "account": "vision",
    "partition": "gpu",
    "gres": "gres:gpu:1g.10gb:1",
    "name": "job",
    "tasks": 1,
    "min_nodes": 1,
}
SERVICE = (
    "#SLICEWISE name=bert",
    "#SLICEWISE tenant=vision",
    "#SLICEWISE model_repository=/models",
    "#SLICEWISE model=bert",
    "#SLICEWISE profile=1g.10gb",
    "#SLICEWISE max_replicas=2",
)
META = (
    "'; DROP TABLE entry; --",
    '"]] .. os.execute("touch /tmp/owned") .. [["',
    "$(touch /tmp/owned)`id`",
    "%s%n%d%x",
    "a\nb\r\nc",
    "nul\x00nul",
    "\u202eright to left",
    "\ud800",
    "é" * 40,
    "../../../../etc/passwd",
    "vision tenant=nlp",
    "slicewise:1 token=ffff tenant=nlp",
)
"""Of Lua, the shell, SQL and format strings."""
GRES = (
    "gpu", "gpu:1", "gpu:auto", "gres:gpu:auto:2", "gres/gpu=1", "gpu:1g.10gb", "gpu:3g.40gb:1",
    "gres:gpu:1g.10gb:3", "gres/gpu:1g.18gb=2", "gpu:1g.10gb:1,gpu:3g.40gb:1", "gpu:+1", "gpu:1k",
    "gpu:1g.10gb:-1", "gpu:1g.10gb:99999999", "gpu:1g.10gb:999999999999999999", "gpu:nosuch:1",
    "shard:1", "mps:100", "license:3", "gpu:1g.10gb:0", "gpu:1g.10gb:1.5", "gpu::1", ",,,",
    "gpu:1g.10gb:1,",
    "GPU:1g.10gb:1", "gpu:1g.10gb:1 ", " gpu:1g.10gb:9", "gpu:1g.10gb:٣", "gpu:1g.10gb=1:2",
    "gres:gres:gpu:1", "gpu:1g.10gb:1,gpu:1g.10gb:9", "gpu:auto:1,gpu:auto:9",
)  # fmt: skip
NUMBERS = (0, 1, 2, 3, 100, -1, -(2**31), 2**31, 2**63, 2**64, 10**30, 1.5, 1e308, True)
DIRECTIVES = tuple(
    f"#SLICEWISE{rest}"
    for rest in (
        " need=9GiB", " need=1GiB", " need=900GiB", " need=-1GiB", " need=nan", " need=1e309GiB",
        " class=high", " class=low", " class=", "", " name", " =", " name=taken", " need_gib=9",
        " max_replicas=99999999999",
    )
)  # fmt: skip
TEXTS = ("account", "default_account", "partition", "qos", "name", "array", "token", "module")
TRES = ("gres", "tres_per_job", "tres_per_socket", "tres_per_task")
COUNTS = ("tasks", "min_nodes", "tasks_per_node", "cpus_per_task", "time_limit_min", "uid", "v")
FLAGS = ("exclusive", "interactive", "requeue", "explain")
QOS = (
    "normal",
    "Urgent",
    "slicewise_vision",
    "slicewise_nlp",
    "slicewise_vision_borrowed",
    "slicewise_",
    "",
)

Choose = random.Random
Mutation = Callable[[dict[str, Any], Choose], None]


def _text(message: dict[str, Any], choose: Choose) -> None:
    message[choose.choice(TEXTS + TRES)] = choose.choice((*META, *QOS, "gpu", "gpu,other", "A" * 9))


def _tenant(message: dict[str, Any], choose: Choose) -> None:
    message["account"] = choose.choice((*OWN, "NLP", "x", "", "root"))
    message["uid"] = choose.choice((1001, 1002, 1003, 0, 4242))


def _gres(message: dict[str, Any], choose: Choose) -> None:
    message[choose.choice(TRES)] = ",".join(choose.choices(GRES, k=choose.choice((1, 1, 2))))


def _number(message: dict[str, Any], choose: Choose) -> None:
    message[choose.choice(COUNTS)] = choose.choice(NUMBERS)


def _qos(message: dict[str, Any], choose: Choose) -> None:
    message["qos"] = choose.choice(QOS)


def _flag(message: dict[str, Any], choose: Choose) -> None:
    message[choose.choice(FLAGS)] = choose.choice((True, False, None, 1, "yes"))


def _directives(message: dict[str, Any], choose: Choose) -> None:
    message["directives"] = choose.choices((*DIRECTIVES, *META), k=choose.randrange(4))


def _service(message: dict[str, Any], choose: Choose) -> None:
    message["directives"] = [*SERVICE, *choose.choices(DIRECTIVES, k=choose.randrange(2))]
    message["array"] = choose.choice(("0-1", "0-1", "0-2", "", "0-999999", "0-1%1"))
    choose.choice((_gres, _tenant, lambda *_: None))(message, choose)


def _wrong_type(message: dict[str, Any], choose: Choose) -> None:
    key = choose.choice((*TEXTS, *TRES, *COUNTS, *FLAGS, "op", "directives", "unknown"))
    message[key] = choose.choice((None, [], {}, [[]], "", 0, "\x00", {"a": 1}, [None], 1.5))


def _missing(message: dict[str, Any], choose: Choose) -> None:
    message.pop(choose.choice(list(message)))


def _huge(message: dict[str, Any], choose: Choose) -> None:
    size = choose.choice((1_000, 15_000))
    message[choose.choice(TEXTS + TRES)] = (
        choose.choice(("x", "gpu:1g.10gb:1,", "\x00", "ü")) * size
    )


MUTATIONS: tuple[Mutation, ...] = (
    _text, _tenant, _gres, _gres, _number, _number, _qos, _flag, _directives, _service,
    _wrong_type, _missing,
)  # fmt: skip


Breaking = Callable[[bytes, int, Choose], bytes]
BREAKINGS: tuple[Breaking, ...] = (
    lambda line, at, _: line[:at],
    lambda line, at, choose: line[:at] + choose.randbytes(4) + line[at:],
    lambda line, at, _: line[:at] + b"\xff\xfe\x00\x80" + line[at + 1 :],
    lambda _line, _at, choose: b'{"v":1,"op":"submit","uid":' + b"[" * choose.choice((10, 5000)),
    lambda _line, _at, choose: b'{"a":' * choose.choice((10, 3000)) + b"1" + b"}" * 10,
    lambda line, _at, _: line.replace(b'"uid"', b'"uid":1,"uid"', 1),
    lambda line, _at, _: line.replace(b"1", b"1e999", 1),
    lambda line, _at, choose: choose.choice((b"", b"null", b"[]", b"NaN", b"\x00" * 9, line * 2)),
)
"""What is no message any more, most likely."""


def hostile(choose: Choose) -> bytes:
    """One line, without its end."""
    message = dict(BASE)
    for mutate in choose.choices(MUTATIONS, k=choose.choice((1, 1, 2, 3))):
        mutate(message, choose)
    if choose.random() < 0.005:
        _huge(message, choose)
    line = json.dumps(message).encode()
    if choose.random() < 0.2:
        line = choose.choice(BREAKINGS)(line, choose.randrange(len(line)), choose)
    return line.replace(b"\n", b" ").replace(b"\r", b" ")


_PART = re.compile(r"(?:gres[:/])?gpu:([A-Za-z0-9][A-Za-z0-9_.+-]*)(?:[:=]([0-9]{1,8}))?", re.ASCII)


def least_instances(text: str) -> dict[str, int]:
    """Instances by type that such a text asks for at least; it must name a type for each GPU."""
    found: dict[str, int] = {}
    for part in (one.strip(" \t\n\r\x0b\x0c") for one in text.split(",")):
        # Slurm refuses "gres:gres:gpu" and whatever else is no name of a GRES.
        if re.match(r"(?:gres[:/])?(?:gpu|shard|mps)(?![^:=])", part) is None:
            continue
        match = _PART.fullmatch(part)
        assert match is not None, part
        assert match[1] in COSTS, part
        found[match[1]] = max(found.get(match[1], 0), int(match[2] or 1))
    return found


def check_admitted(asked: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
    """An admission may be right only if all of this holds."""
    tenant = (asked.get("account") or asked.get("default_account") or "").lower()
    assert tenant in OWN
    assert "gpu" in asked["partition"].split(",")
    own, borrowed = f"slicewise_{tenant}", f"slicewise_{tenant}_borrowed"
    assert answer["qos"] in {own, borrowed}
    most = MOST[tenant] if answer["qos"] == borrowed or tenant == "nlp" else OWN[tenant]
    if asked.get("qos") in {own, borrowed}:
        assert answer["qos"] == asked["qos"]
        most = OWN[tenant] if asked["qos"] == own else MOST[tenant]
    if answer["qos"] == borrowed:
        assert tenant == "nlp"
    nodes = asked.get("min_nodes") or 1
    times = {
        "gres": nodes,
        "tres_per_socket": nodes,
        "tres_per_task": asked.get("tasks") or (asked.get("tasks_per_node") or 1) * nodes,
        "tres_per_job": 1,
    }
    instances: dict[str, int] = {}
    for name, factor in times.items():
        for kind, count in least_instances(answer.get(name) or asked.get(name) or "").items():
            instances[kind] = max(instances.get(kind, 0), count * max(1, factor))
    cost = sum(COSTS[kind] * count for kind, count in instances.items())
    if asked.get("exclusive"):
        cost = max(cost, 6500 * nodes)
    assert cost <= most
    for kind, limit in TYPE_LIMITS.get(tenant, {}).items():
        assert instances.get(kind, 0) <= limit
    if tenant in BUDGETS and asked.get("time_limit_min"):
        assert cost * asked["time_limit_min"] * 60 <= BUDGETS[tenant]
    check_tag(asked, answer, tenant)


def check_tag(asked: Mapping[str, Any], answer: Mapping[str, Any], tenant: str) -> None:
    """The job's own token and tenant, nothing else that the message brought along."""
    token = asked.get("token") or "[0-9a-f]{16}"
    service = " service=bert" if answer.get("hold") else ""
    pattern = f"slicewise:1 token={token} tenant={tenant}{service}( class=(low|high))?( flexible)?"
    assert re.fullmatch(pattern, answer["tag"]), answer["tag"]
    if "class=high" in answer["tag"] and tenant != "nlp":
        assert (asked["qos"].lower(), tenant) == ("urgent", "vision")
    if service:
        assert (asked["array"], tenant) == ("0-1", "vision")
        assert not answer["tag"].endswith("flexible")
    assert 0 <= answer["site_factor"] <= 10_000


def check(line: bytes, reply: bytes) -> str:
    """What came of a line; AssertionError if that is wrong."""
    answer = json.loads(reply)
    if answer.get("ok") is False:
        assert answer["code"] == "SW-WIRE", (line, answer)
        return "SW-WIRE"
    assert answer["action"] in {"pass", "admit", "refuse"}
    if answer["action"] == "admit":
        asked = json.loads(line.decode("utf-8", "replace"))
        try:
            check_admitted(asked, answer)
        except (AssertionError, KeyError, TypeError) as error:
            raise AssertionError((line, answer)) from error
    if answer["action"] == "refuse":
        assert answer["code"].startswith("SW-")
        assert answer["message"]
    return str(answer["code"] or answer["action"])


def exchange(path: Path, lines: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Each line with its reply, over one connection, some of them on the way at a time."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(str(path))
        replies = connection.makefile("rb")
        for start in range(0, len(lines), BATCH):
            batch = lines[start : start + BATCH]
            connection.sendall(b"".join(line + b"\n" for line in batch))
            for line in batch:
                reply = replies.readline()
                assert reply.endswith(b"\n"), line
                yield line, reply


def fuzz(path: Path) -> Counter[str]:
    choose = random.Random(SEED)  # noqa: S311 -- no secret
    outcomes: Counter[str] = Counter()
    for _ in range(MESSAGES // 1000):
        for line, reply in exchange(path, [hostile(choose) for _ in range(1000)]):
            outcomes[check(line, reply)] += 1
    return outcomes


async def test_hostile_messages_are_answered_and_nothing_wrong_is_admitted(
    tmp_path: Path,
) -> None:
    async with admitting(tmp_path, on=SNAPSHOT) as (process, path, _):
        outcomes = await asyncio.to_thread(fuzz, path)
        assert process.restarts.total() == 0
    assert sum(outcomes.values()) == MESSAGES
    # The messages reach every kind of answer, else they would show nothing.
    few = MESSAGES // 100
    assert min(outcomes[kind] for kind in ("admit", "pass", "SW-WIRE", "SW-QUOTA-EXCEEDED")) > few
    assert {"SW-GRES", "SW-PROFILE-UNKNOWN", "SW-DIRECTIVE"} <= set(outcomes)


@pytest.mark.parametrize("data", [b"x" * 600_000 + b"\n", b"x" * 600_000])
async def test_what_is_too_long_is_refused_unread(tmp_path: Path, data: bytes) -> None:
    def send(path: Path) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(path))
            with suppress(BrokenPipeError):
                connection.sendall(data)
            return connection.makefile("rb").readline()

    async with admitting(tmp_path, on=SNAPSHOT) as (_, path, _):
        assert json.loads(await asyncio.to_thread(send, path))["code"] == "SW-WIRE"


async def test_peers_that_misbehave_do_not_keep_others_waiting(tmp_path: Path) -> None:
    """Hundreds of connections: idle, half a line, unread answers. A proper one is answered."""

    def crowd(path: Path) -> str:
        line = json.dumps(BASE).encode() + b"\n"
        open_ones = []
        for number in range(300):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(path))
            connection.setblocking(False)
            open_ones.append(connection)
            with suppress(OSError):
                connection.sendall((b"", line[:20], line * 500)[number % 3])
        ((_, reply),) = exchange(path, [line[:-1]])
        for connection in open_ones:
            connection.close()
        return str(json.loads(reply)["action"])

    async with admitting(tmp_path, on=SNAPSHOT) as (process, path, _):
        assert await asyncio.to_thread(crowd, path) == "admit"
        assert process.restarts.total() == 0
