"""The only door to a replica: asks a Triton server who it is and whether it answers."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, TCPConnector

from launcher.decide.inference import Inference, smallest_inference
from launcher.decide.runs import Answer, Probe
from launcher.identity import context

DEADLINE_S = 1.0
INFERENCE_DEADLINE_S = 60.0
"""A model's first inference may compile it."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _REFUSED_PAUSE_S = 0.1, 0.25, 5.0
_OK, _UNAVAILABLE = 200, 503
_SAID = 200
"""Characters of a model's own words."""
_MOST_BYTES = 4 * 1024 * 1024
"""Of an answer: what runs in a replica is its tenant's, and the launcher is everybody's."""
_SILENT = Answer(Probe.SILENT)
_NO_ANSWER = (
    ClientError,
    TimeoutError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OSError,
)
"""Nobody is there, or what answers is no Triton."""


@dataclass(frozen=True)
class Replica:
    """One run of a slot's replica, which shall say who it is.

    Attributes:
        identity: Triton's ``--id``, so a port that Slurm has given to somebody else since is found
            out.
        certificate: base64 of DER: whoever else listens there is not asked.
        start_s: when the run began, which tells it from the slot's run before.
        infers: its model must answer an inference; else it is enough that it says it is ready.
    """

    address: str
    port: int
    certificate: str
    start_s: int
    model: str
    identity: str
    infers: bool = True

    @property
    def url(self) -> str:
        """Of its server."""
        return f"https://{self.address}:{self.port}/v2"

    @property
    def model_url(self) -> str:
        """Of its model."""
        return f"{self.url}/models/{self.model}"


class Prober:
    """Asks replicas until they are found to be ours, beside the turns: none of them delays one."""

    def __init__(self, news: asyncio.Event, ask: Callable[[Replica], Awaitable[Answer]]) -> None:
        """``news`` is set when an answer differs from the one before; ``ask`` is ``probe``."""
        self._news = news
        self._ask = ask
        self._asking: dict[Replica, asyncio.Task[None]] = {}
        self._answers: dict[Replica, Answer] = {}

    def look(self, replicas: Collection[Replica]) -> Mapping[Replica, Answer]:
        """What these have said so far; they are asked on, and all others no more."""
        for one in self._asking.keys() - frozenset(replicas):
            self._asking.pop(one).cancel()
            self._answers.pop(one, None)
        for one in frozenset(replicas) - self._asking.keys():
            self._asking[one] = asyncio.create_task(self._follow(one))
        return {one: self._answers.get(one, _SILENT) for one in replicas}

    async def _follow(self, replica: Replica) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            answer = await self._ask(replica)
            if answer != self._answers.get(replica, _SILENT):
                self._answers[replica] = answer
                self._news.set()
            if answer.probe is Probe.OURS:
                return
            await asyncio.sleep(_REFUSED_PAUSE_S if answer.said else pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)


async def probe(gateway: Path, replica: Replica) -> Answer:
    """Ask as the gateway whose directory that is.

    OURS if server and model are ready, it is the one that is meant, and its model answers.

    Never raises: whatever a stranger's server answers, it is not ready. Asks nobody else that it
    names.
    """
    try:
        tls = context(gateway, replica.certificate)
    except (OSError, ValueError):
        # What its script has published is no certificate.
        return _SILENT
    # A connection of its own: of a replica that has ended none is left open.
    connector = TCPConnector(force_close=True, ssl=tls)
    async with ClientSession(connector=connector, raise_for_status=True) as session:
        try:
            async with asyncio.timeout(DEADLINE_S):
                found = await _introduced(session, replica)
        except _NO_ANSWER:
            return _SILENT
        if found is not Probe.OURS or not replica.infers:
            return Answer(found)
        return await _inferred(session, replica)


async def _introduced(session: ClientSession, replica: Replica) -> Probe:
    if (await _read(session, replica.url))["name"] != replica.identity:
        return Probe.STRANGER
    for place in (f"{replica.url}/health/ready", f"{replica.model_url}/ready"):
        async with session.get(place, allow_redirects=False):
            pass
    return Probe.OURS


async def _inferred(session: ClientSession, replica: Replica) -> Answer:
    try:
        metadata = await _read(session, replica.model_url)
        config = await _read(session, f"{replica.model_url}/config")
    except _NO_ANSWER:
        return _SILENT
    try:
        request = smallest_inference(metadata, config, 1 + secrets.randbits(62))
        if request is None:
            return Answer(Probe.OURS)
        return await _answer(session, replica, request)
    except TimeoutError:
        return _refused(f"no answer within {INFERENCE_DEADLINE_S:.0f} s")
    except ValueError as error:
        return _refused(str(error))
    except _NO_ANSWER:
        return _SILENT


async def _answer(session: ClientSession, replica: Replica, request: Inference) -> Answer:
    async with session.post(
        f"{replica.model_url}/infer",
        data=request.head + request.tensors,
        headers={
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(request.head)),
        },
        timeout=ClientTimeout(INFERENCE_DEADLINE_S),
        raise_for_status=False,
        allow_redirects=False,
    ) as answer:
        if answer.status == _OK:
            return Answer(Probe.OURS)
        # Its server is not ready, or full: nothing is wrong with the model.
        is_busy = answer.status == _UNAVAILABLE
        return _SILENT if is_busy else _refused(await _text(answer))


async def _read(session: ClientSession, url: str) -> Any:
    timeout = ClientTimeout(DEADLINE_S)
    async with session.get(url, timeout=timeout, allow_redirects=False) as answer:
        return json.loads(await _text(answer))


async def _text(answer: ClientResponse) -> str:
    """Raises ValueError if it is too long."""
    found = bytearray()
    async for part in answer.content.iter_any():
        found += part
        if len(found) > _MOST_BYTES:
            raise ValueError(f"an answer of more than {_MOST_BYTES} bytes")
    return found.decode(errors="replace")


def _refused(words: str) -> Answer:
    with suppress(ValueError, KeyError, TypeError):
        words = str(json.loads(words)["error"])
    plain = " ".join("".join(sign if " " <= sign <= "~" else " " for sign in words).split())
    return Answer(
        Probe.SILENT,
        f"the model refused an inference of zeros: {plain[:_SAID]};"
        ' if that is how it is, set readiness = "model"',
    )
