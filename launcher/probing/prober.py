"""The only module that talks to a service's replicas: asks for identity, inference, statistics."""

import asyncio
import logging
import secrets
import time
from asyncio import IncompleteReadError
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import compress, islice
from pathlib import Path
from ssl import SSLContext
from typing import TypeVar

from slicewise.cluster.language.adapters import MOST_ADAPTERS
from slicewise.cluster.language.service import DEFAULT_START_TIMEOUT_S
from slicewise.cluster.runtime.log import bound, emit
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.launcher.gateway.identity import context
from slicewise.launcher.probing import grpc_call
from slicewise.launcher.probing.bounded_tls import (
    BoundedTls,
    NotLetInError,
    TooLongError,
    connected,
)
from slicewise.launcher.probing.engine_failures import ENGINE_FAILURES
from slicewise.launcher.rules.engines.engine import (
    AdapterEngine,
    Answer,
    BatchingEngine,
    Call,
    CountedEngine,
    Engine,
    PooledEngine,
    Probe,
    ReadyTimes,
    Request,
    TokenCounts,
    TokenEngine,
)
from slicewise.launcher.rules.engines.least_versions import LEAST_VERSIONS, is_too_old, upgrade
from slicewise.launcher.rules.engines.load import EngineLoad
from slicewise.launcher.rules.engines.statistics import Answered, Counts
from slicewise.launcher.rules.pools.server_memory import MEMORY, server_memory
from slicewise.launcher.rules.pools.types import ReplicaModels
from slicewise.launcher.rules.probing import pool_loads
from slicewise.launcher.rules.probing.http_answer import HEAD_BYTES, Head, parse_head, parse_size
from slicewise.launcher.rules.probing.start_marks import MOST_BYTES, PROTOCOL, marks_s, weights

DEADLINE_S = 1.0
INFERENCE_DEADLINE_S = 60.0
"""Seconds for one inference: a model's first one may compile it."""
_ADAPTERS_DEADLINE_S = 120.0
"""Seconds for loading all adapters of a replica; what is left then is loaded once it is ready."""
_MOST_UNLOADED = 2 * MOST_ADAPTERS
"""Adapters, or models, that a replica is told to unload at a time: its tenant controls how many it
names."""
_CHECK_S = 2.0
"""Seconds in which a model of a pool may answer a made-up request, now and then."""
_LEAVES_S = 10.0
"""Seconds for which a load waits for the memory of models that are being unloaded."""
_FINDS_S = 5.0
"""Seconds in which a replica may say from where it is about to load a model."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _REFUSED_PAUSE_S = 0.03, 0.25, 5.0
"""Seconds from one question to the next: the first; the longest; and after a refused inference. A
door lets a question wait for a server that starts, so that the next one comes right after it."""
_LONGEST_COSTLY_PAUSE_S = 5.0
_OK, _UNAVAILABLE = 200, 503
_SAID = 200
"""Characters shown of a model's own error message."""
_MOST_BYTES = 256 * 1024
"""Bytes read of an answer at most: its tenant controls what runs in a replica, and all tenants
share the launcher. The configuration of a model with 1000 inputs has 200 KB, and so has vLLM's
list of 400 LoRA modules."""
_MOST_WORDS_BYTES = 16 * 1024
"""Bytes read of an answer at most that is an error."""
_MOST_CHUNKS = 64
"""Chunks read of an answer at most, where chunks are read: Python's servers send metrics as one."""
_MOST_SIZE_BYTES = 16
"""Bytes of the line before a chunk."""
_PART_BYTES = 64 * 1024
"""Bytes of a request sent at a time: other replicas are asked in between."""
_MOST_WARNINGS = 10
_VERSION_CHARACTERS = 40
_LOG = logging.getLogger("slicewise.launcher")
_SILENT = Answer(Probe.SILENT)
_NOT_LET_IN = Answer(
    Probe.SILENT,
    "the replica does not let the gateway in: its script has another certificate than the"
    " gateway's, or that has ended. Copy gateway.identity from the gateway's host to where the"
    " service was applied, and apply it with --force",
)
_NO_ANSWER = (
    TimeoutError,
    ValueError,
    TypeError,
    OSError,
    IncompleteReadError,
)
"""Errors that mean that no server answers, or that what answers is none of its engine."""
_Figures = TypeVar("_Figures")


@dataclass(frozen=True)
class Replica:
    """One run of a slot's replica, to be asked for its identity.

    Attributes:
        certificate: base64 of DER; a server that does not have its key is not asked.
        start_s: when the run began, which distinguishes it from the slot's previous run.
        identity: what its server calls itself, which reveals that Slurm has since given the port
            to another job.
        engine: its engine, which says what to ask and reads the answers.
        infers: whether its model must answer an inference; if not, its own word that it is ready is
            enough.
        service: its service's name, without the tenant.
        tenant, node: whose it is, and where it runs, for the log.
        adapters: the LoRA adapters that it is to have: names and directories.
        models: the models of its pool that it is to have beside its own.
        loading: those of them that it was told to load by another call, which goes on.
        services: the service of each of them, without the tenant.
        checked: those models that must answer an inference.
        answered: requests that models had answered and failed when it was asked last.
        load_timeout_s: seconds that loading one of them may take.
        grpc_port: where it is called by gRPC.
    """

    address: str
    port: int
    certificate: str
    start_s: int
    model: str
    identity: str
    engine: Engine
    infers: bool = True
    service: str = ""
    adapters: tuple[tuple[str, str], ...] = ()
    models: frozenset[str] = frozenset()
    services: tuple[tuple[str, str], ...] = ()
    checked: frozenset[str] = frozenset()
    answered: tuple[tuple[str, Answered], ...] = field(default=(), compare=False)
    load_timeout_s: float = field(default=DEFAULT_START_TIMEOUT_S, compare=False)
    grpc_port: int = field(default=0, compare=False)
    loading: frozenset[str] = frozenset()
    tenant: str = field(default="", compare=False)
    node: str = field(default="", compare=False)


class Prober:
    """Asks replicas in the background until they prove to be ours, so that none delays a turn."""

    def __init__(self, news: asyncio.Event, ask: Callable[[Replica], Awaitable[Answer]]) -> None:
        """``news`` is set when an answer differs from the one before; ``ask`` is ``probe``."""
        self._news = news
        self._ask = ask
        self._asking: dict[Replica, asyncio.Task[None]] = {}
        self._answers: dict[Replica, Answer] = {}
        self._warned: set[tuple[Engine, str]] = set()

    def look(self, replicas: Collection[Replica]) -> Mapping[Replica, Answer]:
        """Return what these replicas have answered so far; go on asking them, and no others."""
        for replica in self._asking.keys() - frozenset(replicas):
            self._asking.pop(replica).cancel()
            self._answers.pop(replica, None)
        for replica in frozenset(replicas) - self._asking.keys():
            self._asking[replica] = asyncio.create_task(self._follow(replica))
        return {replica: self._answers.get(replica, _SILENT) for replica in replicas}

    @property
    def old_engines(self) -> Mapping[str, str]:
        """Engine and version of a replica below the least, by ``tenant/service``."""
        engines: dict[str, str] = {}
        for replica, answer in self._answers.items():
            if answer.too_old:
                key = f"{replica.tenant}/{replica.service}"
                engine = f"{replica.engine.title} {answer.too_old}"
                engines[key] = min(engine, engines.get(key, engine))
        return engines

    async def _follow(self, replica: Replica) -> None:
        service = f"{replica.tenant}/{replica.service}"
        ids = {"service": service, "tenant": replica.tenant, "node": replica.node}
        with bound(**ids, replica=replica.identity):
            await self._ask_until_ours(replica)

    async def _ask_until_ours(self, replica: Replica) -> None:
        pause_s, costly_pause_s = _FIRST_PAUSE_S, _LONGEST_PAUSE_S
        loaded_s = None
        while True:
            asked_s = time.monotonic()
            answer = await self._answer(replica)
            if (times := answer.times) is not None:
                # An inference that fails is asked again, of a model that was loaded before.
                loaded_s = loaded_s or times.loaded_s
                answer = replace(answer, times=replace(times, loaded_s=loaded_s))
            if answer != self._answers.get(replica, _SILENT):
                self._answers[replica] = answer
                self._news.set()
            if answer.probe is Probe.OURS:
                self._warn(answer.too_old, replica)
                return
            if answer.said:
                await asyncio.sleep(_REFUSED_PAUSE_S)
            elif answer.is_costly:
                await asyncio.sleep(costly_pause_s)
                costly_pause_s = min(2 * costly_pause_s, _LONGEST_COSTLY_PAUSE_S)
            else:
                await asyncio.sleep(max(_FIRST_PAUSE_S, asked_s + pause_s - time.monotonic()))
                pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)

    async def _answer(self, replica: Replica) -> Answer:
        """Ask; a site's own engine that raises has found no answer, and is asked less and less."""
        try:
            return await self._ask(replica)
        except Exception as error:  # noqa: BLE001 -- other engines' replicas are asked on
            ENGINE_FAILURES.failed(replica.engine, error)
            return replace(_SILENT, is_costly=True)

    def _warn(self, too_old: str, replica: Replica) -> None:
        """Warn once per version, of a limited number of versions: a tenant could make up many."""
        engine, warning = replica.engine, (replica.engine, too_old)
        if too_old and warning not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(warning)
            fields = {"engine": engine.title, "version": too_old, "replica": replica.identity}
            emit(_LOG, logging.WARNING, "engine_too_old", fields | {"why": upgrade(engine.title)})


async def probe(gateway: Path, replica: Replica) -> Answer:
    """Ask a replica for its identity, as the gateway that has the directory ``gateway``.

    The answer is OURS if server and model are ready, the server is the one that is meant, and its
    model answers. Never raises: whatever a foreign server answers, the replica is not ready. Asks
    no other server that an answer names. Reads a bounded part of each answer, within a deadline, at
    a cost of milliseconds.
    """
    try:
        tls_context = context(gateway, replica.certificate)
    except (OSError, ValueError):
        # What the replica's batch script has published is no certificate.
        return _SILENT
    # A handshake for each question would take longer than all else of a start that loads at once.
    async with AsyncExitStack() as stack:
        return await _proven(gateway, _Peer(replica, tls_context, _Line(stack)))


async def _proven(gateway: Path, peer: "_Peer") -> Answer:
    try:
        async with asyncio.timeout(DEADLINE_S):
            answer = await _introduced(peer)
    except TooLongError as error:
        # Only who has the replica's key comes so far: the owner learns of it.
        words = f"asked who it is and whether it is ready, its server has sent {error}"
        return replace(_SILENT, is_costly=True, said=words)
    except NotLetInError:
        return _NOT_LET_IN
    except _NO_ANSWER:
        return _SILENT
    return await _ready(gateway, peer, answer) if answer.probe is Probe.OURS else answer


async def _ready(gateway: Path, peer: "_Peer", answer: Answer) -> Answer:
    """Return the answer of a replica that says it is ready, once it has shown that."""
    replica, loaded_s = peer.replica, wall_s()
    # Meanwhile: no start takes longer since it is timed.
    marks = asyncio.create_task(_told(gateway, replica, PROTOCOL))
    try:
        # Before the inference, whose answer is not read to its end.
        too_old = await _too_old(peer)
        if replica.adapters:
            # One that can't be loaded keeps neither the model nor other adapters from serving.
            await fit_adapters(gateway, replica)
        if replica.infers:
            answer = replace(await _inferred(peer), is_costly=True)
        times = ReadyTimes(loaded_s, wall_s())
        if answer.probe is not Probe.OURS:
            return replace(answer, times=times)
        text, told_s = await marks
        times = replace(times, marks_s=marks_s(text, told_s), weights=weights(text))
        return replace(answer, too_old=too_old, times=times)
    finally:
        marks.cancel()


async def _told(gateway: Path, replica: Replica, protocol: str) -> tuple[bytes, float]:
    """Ask a replica's door what a protocol tells, and say when; b"" if it does not tell."""
    try:
        tls_context = context(gateway, replica.certificate, protocol)
        async with (
            asyncio.timeout(DEADLINE_S),
            connected(replica.address, replica.port, tls_context, MOST_BYTES) as tls,
        ):
            # A door of an earlier version leads to the server, which would wait for a request.
            text = await tls.rest(MOST_BYTES) if tls.protocol == protocol else b""
            return text, wall_s()
    except (TooLongError, *_NO_ANSWER):
        return b"", 0.0


async def _too_old(peer: "_Peer") -> str:
    """Return the version of a replica's engine if it is below the least; "" too if none is told."""
    engine = peer.replica.engine
    if engine.title not in LEAST_VERSIONS:
        return ""
    try:
        async with asyncio.timeout(DEADLINE_S):
            version = engine.version(
                await _read(peer, engine.version_path, _MOST_BYTES, _MOST_CHUNKS)
            )
    except (TooLongError, *_NO_ANSWER):
        return ""
    return _plain(version)[:_VERSION_CHARACTERS] if is_too_old(engine.title, version) else ""


async def fit_adapters(gateway: Path, replica: Replica) -> Mapping[str, str] | None:
    """Let a replica load the adapters that it lacks, and unload those that it is not to have.

    Return why some were refused, by name; None if the replica does not answer, so that nothing is
    known. Never raises, whatever the engine's code does. Reads a bounded part of each answer.
    """
    engine = replica.engine
    if not isinstance(engine, AdapterEngine):
        return {}
    try:
        peer = _Peer(replica, context(gateway, replica.certificate))
        async with asyncio.timeout(DEADLINE_S):
            body = await _read(peer, engine.adapters_path, _MOST_BYTES)
        async with asyncio.timeout(_ADAPTERS_DEADLINE_S):
            return await _fitted(peer, engine, engine.loaded_adapters(body, replica.service))
    except _NO_ANSWER:
        return None
    except Exception as error:  # noqa: BLE001 -- other engines' replicas are asked on
        ENGINE_FAILURES.failed(engine, error)
        return None


async def _fitted(
    peer: "_Peer", engine: AdapterEngine, loaded: Mapping[str, str]
) -> Mapping[str, str]:
    service, wanted = peer.replica.service, dict(peer.replica.adapters)
    refused: dict[str, str] = {}
    for name, path in islice(loaded.items(), _MOST_UNLOADED):
        is_replaced = name in wanted and wanted[name] != path and not engine.replaces_adapters
        if name not in wanted or is_replaced:
            await _ordered(peer, engine.unload_adapter(service, name))
    for name, path in wanted.items():
        if loaded.get(name) != path and (
            why := await _ordered(peer, engine.load_adapter(service, name, path))
        ):
            refused[name] = why
    return refused


async def fit_models(gateway: Path, replica: Replica) -> ReplicaModels | None:
    """Let a replica unload the models that it is not to have, then load one that it lacks.

    One in each call, so that whoever asks for the next knows what came of this one. Its own model
    is never unloaded. If it lacks none, and no other call loads one, another one that fails all
    requests since it was asked last, an inference for us included, is loaded again: a model's
    process may have ended, and its server not have noticed.

    Return what it has then, with what was loaded or refused in this call, and the memory that it
    takes, if no other model takes some of it: one that is being loaded or unloaded, or that was not
    loaded to its end. Return None if it does not answer, so that nothing is known. Never raises,
    whatever the engine's code does. Reads a bounded part of each answer.
    """
    engine = replica.engine
    if not isinstance(engine, PooledEngine):
        return None
    try:
        peer = _Peer(replica, context(gateway, replica.certificate))
        ready, leaving = await _without_surplus(peer, engine)
        lacking, answered = replica.models - ready - replica.loading, dict(replica.answered)
        if lacking:
            leaving = await _until_others_left(peer, engine)
        elif engine.answered_path and not replica.loading:
            before, answered = answered, dict(await _answered(peer, engine))
            in_doubt = {
                model
                for model, counts in answered.items()
                if counts.only_fails_since(before.get(model, Answered()))
            }
            lacking = await _failing(peer, (ready & replica.checked & in_doubt) - {replica.model})
            # A load of what is loaded does nothing, unless its files have changed. A model whose
            # process has ended has no memory to wait for, and Triton calls it unloading for ever.
            await _unload(peer, engine, lacking)
            ready, leaving = ready - lacking, leaving | lacking
        models = ReplicaModels(ready)
        if lacking:
            models = await _with(gateway, peer, engine, ready, min(lacking))
            with suppress(*_NO_ANSWER):
                # Another call may have loaded one meanwhile.
                seen = await _models(peer, engine)
                models = replace(models, ready=engine.ready_models(seen).difference(models.refused))
                leaving |= engine.loading_models(seen)
        is_known = not (leaving or models.refused or replica.loading)
        text, _ = await _told(gateway, replica, MEMORY) if is_known else (b"", 0.0)
        return replace(models, answered=answered, memory=server_memory(text))
    except _NO_ANSWER:
        return None
    except Exception as error:  # noqa: BLE001 -- other engines' replicas are asked on
        ENGINE_FAILURES.failed(engine, error)
        return None


async def _without_surplus(
    peer: "_Peer", engine: PooledEngine
) -> tuple[frozenset[str], frozenset[str]]:
    """Unload the models that the replica is not to have.

    Return those that are ready then, and those that are being unloaded.
    """
    replica = peer.replica
    models = await _models(peer, engine)
    surplus = engine.ready_models(models) - replica.models - {replica.model}
    if surplus:
        await _unload(peer, engine, surplus)
        models = await _models(peer, engine)
    return engine.ready_models(models), engine.leaving_models(models)


async def _answered(peer: "_Peer", engine: PooledEngine) -> Mapping[str, Answered]:
    async with asyncio.timeout(DEADLINE_S):
        return engine.answered(await _read(peer, engine.answered_path, _MOST_BYTES))


async def _failing(peer: "_Peer", models: Collection[str]) -> frozenset[str]:
    """Return the models that answer an inference with an error.

    One that is busy answers later than is waited for: whoever waits for a load waits for this.
    """

    async def is_failing(model: str) -> bool:
        with suppress(*_NO_ANSWER):
            async with asyncio.timeout(_CHECK_S):
                answer = await _inferred(replace(peer, replica=replace(peer.replica, model=model)))
                return answer.is_failure
        return False

    asked = sorted(models)
    failing = await asyncio.gather(*map(is_failing, asked))
    return frozenset(compress(asked, failing))


async def _unload(peer: "_Peer", engine: PooledEngine, models: Collection[str]) -> None:
    for model in islice(sorted(models), _MOST_UNLOADED):
        async with asyncio.timeout(DEADLINE_S):
            await _ordered(peer, engine.unload_model(model))


async def _until_others_left(peer: "_Peer", engine: PooledEngine) -> frozenset[str]:
    """Wait for the memory of models that are being unloaded, but not for ever.

    Return those that still are.
    """
    until_s = time.monotonic() + _LEAVES_S
    while True:
        leaving = engine.leaving_models(await _models(peer, engine))
        if not leaving or time.monotonic() >= until_s:
            return leaving
        await asyncio.sleep(_LONGEST_PAUSE_S)


async def _with(
    gateway: Path, peer: "_Peer", engine: PooledEngine, ready: frozenset[str], model: str
) -> ReplicaModels:
    replica, begin_s = peer.replica, time.monotonic()
    load = engine.load_model(model, dict(replica.services).get(model, ""))
    try:
        async with (
            _found(gateway, peer, engine, model) as is_from_node,
            asyncio.timeout(replica.load_timeout_s),
        ):
            why = await (
                _called(gateway, peer.replica, load)
                if isinstance(load, Call)
                else _ordered(peer, load)
            )
    except TimeoutError:
        why = f"not loaded within {replica.load_timeout_s:g} s"
        # What it has loaded until now would take memory for nothing.
        with suppress(*_NO_ANSWER):
            await _unload(peer, engine, (model,))
    if why:
        return ReplicaModels(ready, refused={model: why})
    return ReplicaModels(
        ready | {model},
        loads=1,
        load_s={model: time.monotonic() - begin_s},
        from_node=frozenset({model} if is_from_node else ()),
    )


@asynccontextmanager
async def _found(
    gateway: Path, peer: "_Peer", engine: PooledEngine, model: str
) -> AsyncIterator[bool]:
    """Let a replica look on its node for a model that is about to be loaded; say if it is there.

    The replica knows by the end of this that the load is over. One that does not answer loads the
    model from where it would.
    """
    replica, is_from_node = peer.replica, False
    async with AsyncExitStack() as open_until_loaded:
        with suppress(*_NO_ANSWER):
            models = await _models(peer, engine)
            kept = engine.ready_models(models) | engine.leaving_models(models)
            tls_context = context(gateway, replica.certificate, pool_loads.WEIGHTS)
            most = pool_loads.MOST_BYTES
            async with asyncio.timeout(_FINDS_S):
                tls = await open_until_loaded.enter_async_context(
                    connected(replica.address, replica.port, tls_context, most)
                )
                # A door of an earlier version leads to the server.
                if tls.protocol == pool_loads.WEIGHTS:
                    await tls.until(b"\n", most)
                    await tls.write(pool_loads.load_line(model, kept))
                    is_from_node = pool_loads.is_from_node(await tls.until(b"\n", most))
        yield is_from_node


async def _models(peer: "_Peer", engine: PooledEngine) -> bytes:
    """Ask which models the replica has."""
    async with asyncio.timeout(DEADLINE_S):
        return await _content(peer, engine.models_request(), _MOST_BYTES)


async def _ordered(peer: "_Peer", request: Request) -> str:
    """Return why the server refuses what it is told to do; "" if it does it."""
    async with _exchange(peer, request, _MOST_WORDS_BYTES) as answer:
        if answer.head.status == _OK:
            return ""
        message = _plain(peer.replica.engine.failure(await answer.body()))
        return message or f"status {answer.head.status}"


async def _called(gateway: Path, replica: Replica, call: Call) -> str:
    """Return why the server refuses what it is called for; "" if it does it."""
    tls_context = context(gateway, replica.certificate, grpc_call.PROTOCOL)
    opened = connected(replica.address, replica.grpc_port, tls_context, _MOST_WORDS_BYTES)
    async with opened as tls:
        status = await grpc_call.called(tls, call.path, call.message)
    return "" if status.code == 0 else _plain(status.message) or f"status {status.code}"


async def statistics(gateway: Path, replica: Replica) -> Counts | None:
    """Ask a replica what its models have counted; None if it does not say in time.

    Never raises, whatever the engine's code does. Reads a bounded part within a deadline. Reading
    counts takes the event loop some ten milliseconds at most, so the caller must leave pauses.
    """
    engine = replica.engine
    if not isinstance(engine, CountedEngine):
        return None
    try:
        peer = _Peer(replica, context(gateway, replica.certificate))
        async with asyncio.timeout(DEADLINE_S):
            return engine.counted(await _read(peer, engine.statistics_path, _MOST_BYTES))
    except _NO_ANSWER:
        return None
    except Exception as error:  # noqa: BLE001 -- other engines' replicas are asked on
        ENGINE_FAILURES.failed(engine, error)
        return None


@dataclass(frozen=True)
class EngineMetrics:
    """What a replica's engine says of itself; None of what it does not say."""

    tokens: TokenCounts | None = None
    load: EngineLoad | None = None


async def engine_metrics(gateway: Path, replica: Replica) -> EngineMetrics | None:
    """Ask a replica what it works on and how long its tokens take; None if it is silent.

    Never raises, whatever the engine's code does. Reads a bounded part within a deadline.
    """
    engine = replica.engine
    if not isinstance(engine, TokenEngine):
        return None
    try:
        peer = _Peer(replica, context(gateway, replica.certificate))
        async with asyncio.timeout(DEADLINE_S):
            body = await _read(peer, engine.metrics_path, _MOST_BYTES, _MOST_CHUNKS)
    except _NO_ANSWER:
        return None
    except Exception as error:  # noqa: BLE001 -- other engines' replicas are asked on
        ENGINE_FAILURES.failed(engine, error)
        return None
    load = None
    if isinstance(engine, BatchingEngine):
        load = _understood(engine, engine.engine_load, body)
    return EngineMetrics(_understood(engine, engine.token_counts, body), load)


def _understood(engine: Engine, read: Callable[[bytes], _Figures], body: bytes) -> _Figures | None:
    try:
        return read(body)
    except (TypeError, ValueError):
        return None
    except Exception as error:  # noqa: BLE001 -- other engines' replicas are asked on
        ENGINE_FAILURES.failed(engine, error)
        return None


@dataclass
class _Line:
    """A connection on which a replica is asked one question after the other.

    Attributes:
        stack: closes it.
        free: the connection, if its last answer was read to its end.
    """

    stack: AsyncExitStack
    free: BoundedTls | None = None


@dataclass(frozen=True)
class _Peer:
    """A replica, and the TLS context by which each side proves its identity.

    Without a line each question has a connection of its own, which none is left open for.
    """

    replica: Replica
    tls: SSLContext
    line: _Line | None = None


async def _introduced(peer: _Peer) -> Answer:
    engine, replica = peer.replica.engine, peer.replica
    body = await _read(peer, engine.identity_path, _MOST_BYTES)
    found = engine.identified(body, replica.identity)
    if found.probe is Probe.OURS:
        for path in engine.ready_paths(replica.model):
            async with _exchange(peer, _get(path)) as answer:
                _require_ok(answer.head)
    return found


async def _inferred(peer: _Peer) -> Answer:
    paths = peer.replica.engine.model_paths(peer.replica.model)
    try:
        async with asyncio.timeout(DEADLINE_S):
            bodies = [await _read(peer, path, _MOST_BYTES) for path in paths]
    except TooLongError as error:
        return _refused(str(error))
    except _NO_ANSWER:
        return _SILENT
    return await _tried(peer, bodies)


async def _tried(peer: _Peer, bodies: Sequence[bytes]) -> Answer:
    engine, model = peer.replica.engine, peer.replica.model
    try:
        request = engine.smallest_request(model, bodies, 1 + secrets.randbits(62))
        if request is None:
            return Answer(Probe.OURS)
        async with asyncio.timeout(INFERENCE_DEADLINE_S):
            return await _answer(peer, request)
    except TimeoutError:
        return _refused(f"no answer within {INFERENCE_DEADLINE_S:.0f} s")
    except ValueError as error:
        return _refused(str(error))
    except _NO_ANSWER:
        return _SILENT


async def _answer(peer: _Peer, request: Request) -> Answer:
    async with _exchange(peer, request, _MOST_WORDS_BYTES) as answer:
        if answer.head.status == _OK:
            return Answer(Probe.OURS)
        if answer.head.status == _UNAVAILABLE:
            # The server is not ready, or full: nothing is wrong with the model.
            return _SILENT
        failed = _refused(peer.replica.engine.failure(await answer.body()))
        return replace(failed, is_failure=True)


async def _read(peer: _Peer, path: str, most_bytes: int, most_chunks: int = 0) -> bytes:
    return await _content(peer, _get(path), most_bytes, most_chunks)


async def _content(peer: _Peer, request: Request, most_bytes: int, most_chunks: int = 0) -> bytes:
    async with _exchange(peer, request, most_bytes) as answer:
        _require_ok(answer.head)
        return await answer.body(most_chunks)


def _require_ok(head: Head) -> None:
    if head.status != _OK:
        raise ValueError(f"status {head.status}")


def _get(path: str) -> Request:
    return Request("GET", path)


@dataclass
class _HttpAnswer:
    head: Head
    tls: BoundedTls
    most_bytes: int
    is_read: bool

    async def body(self, most_chunks: int = 0) -> bytes:
        """Return the whole body; raises TooLongError without having read more than the bound.

        Raises ValueError for a body in more than ``most_chunks`` chunks.
        """
        if self.head.is_chunked:
            return await self._joined(most_chunks)
        length = self.head.body_bytes
        if length is None:
            return await self.tls.rest(self.most_bytes)
        if length > self.most_bytes:
            raise TooLongError(self.most_bytes)
        content = await self.tls.exactly(length)
        self.is_read = True
        return content

    async def _joined(self, most_chunks: int) -> bytes:
        whole = b""
        for _ in range(most_chunks):
            size = parse_size(await self.tls.until(b"\r\n", _MOST_SIZE_BYTES))
            if not size:
                return whole
            if len(whole) + size > self.most_bytes:
                raise TooLongError(self.most_bytes)
            whole += (await self.tls.exactly(size + 2))[:-2]
        raise ValueError(f"an answer in more than {most_chunks} chunks")


@asynccontextmanager
async def _exchange(
    peer: _Peer, request: Request, most_bytes: int = 0
) -> AsyncIterator[_HttpAnswer]:
    """Send one request, on the peer's line if it has one, else on a connection of its own.

    The answer's body may have ``most_bytes``. An HTTP library is not used: its own parser would
    read on, in the event loop that all replicas share, for as long as the server sends: interim
    answers, chunks of one byte, content that unpacks to gigabytes.
    """
    async with AsyncExitStack() as stack:
        line = peer.line or _Line(stack)
        tls, line.free = line.free, None
        head = None
        if tls is not None:
            tls.allow(most_bytes)
            # The server may have ended the connection meanwhile.
            with suppress(OSError, IncompleteReadError):
                sending, head = await _asked(stack, tls, peer, request)
        if tls is None or head is None:
            address, port = peer.replica.address, peer.replica.port
            opened = connected(address, port, peer.tls, most_bytes)
            tls = await line.stack.enter_async_context(opened)
            sending, head = await _asked(stack, tls, peer, request)
        answer = _HttpAnswer(head, tls, most_bytes, is_read=head.body_bytes == 0)
        yield answer
        if answer.is_read and sending.done() and not head.is_last:
            line.free = tls


async def _asked(
    stack: AsyncExitStack, tls: BoundedTls, peer: _Peer, request: Request
) -> tuple[asyncio.Task[None], Head]:
    """Send a request until ``stack`` ends; return the task that sends it, and the answer's head."""
    # The replica may answer, and close, before it has read the whole request.
    sending = asyncio.create_task(_send(tls, peer, request))

    async def end() -> None:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    stack.push_async_callback(end)
    return sending, parse_head(await tls.until(b"\r\n\r\n", HEAD_BYTES))


async def _send(tls: BoundedTls, peer: _Peer, request: Request) -> None:
    headers = {
        "Host": f"{peer.replica.address}:{peer.replica.port}",
        "Connection": "close" if peer.line is None else "keep-alive",
        "Content-Length": str(len(request.head) + len(request.rest)),
        **request.headers,
    }
    lines = [
        f"{request.method} {request.path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    await tls.write("\r\n".join((*lines, "", "")).encode() + request.head)
    for start in range(0, len(request.rest), _PART_BYTES):
        await tls.write(request.rest[start : start + _PART_BYTES])


def _refused(words: str) -> Answer:
    return Answer(
        Probe.SILENT,
        f"the model refused a made-up request: {_plain(words)};"
        ' if it must refuse that, set readiness = "model"',
    )


def _plain(words: str) -> str:
    """Return the beginning of a server's words as one line that any terminal may show."""
    plain = " ".join("".join(sign if " " <= sign <= "~" else " " for sign in words).split())
    return plain[:_SAID]
