"""Renders templates: batch scripts of services and measurements, the gateway's configuration."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import (
    COMMENT,
    LONGEST_DEADLINE_S,
    OPENAI_NAME,
    ServiceSpec,
)
from slicewise.cluster.settings.file import LauncherSettings
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway.files import STATISTICS
from slicewise.launcher.gateway.identity import KEY
from slicewise.launcher.gateway.kept_lines import MOST_KEPT_BYTES
from slicewise.launcher.gateway.runtime_api import (
    COMPLETE_KEY,
    GRPC,
    MOST_FILES,
    RING,
    TOLD_KEY,
    Maps,
    files_left,
    map_text,
)
from slicewise.launcher.gateway.streams import STREAMS, USE_NOTED_S
from slicewise.launcher.rules.engines.engine import (
    OPENAI_API,
    Engine,
    PooledEngine,
    PromptedEngine,
    StartSettings,
)
from slicewise.launcher.rules.engines.llamacpp_model import BESIDE, parts_pattern
from slicewise.launcher.rules.engines.openai import AUDIO, CHATS, MESSAGES
from slicewise.launcher.rules.engines.registry import ENGINES, engine_named
from slicewise.launcher.rules.gateway.allowances import MOST_HELD_TOKENS
from slicewise.launcher.rules.gateway.fair_orders import DIVISOR, FAIR, FAR_MS, back_ms
from slicewise.launcher.rules.gateway.start_lines import ANSWERED, HELD
from slicewise.launcher.rules.gateway.timings import (
    BOUNDS_MS,
    CAME,
    COUNTERS,
    ERRORS,
    SLOWEST_SPAN_S,
    SLOWEST_SPANS,
    TIMINGS,
)
from slicewise.launcher.rules.gateway.types import IDLE
from slicewise.launcher.rules.gateway.usage_lines import MOST_LINE_BYTES, MOST_TOKENS, USAGE
from slicewise.launcher.rules.profiling.figures import ProfileTask
from slicewise.launcher.rules.profiling.token_figures import TokenTask

if TYPE_CHECKING:
    from jinja2 import Environment

_DOOR = Path(__file__).with_name("door.py")
_LOOPBACK = Path(__file__).with_name("loopback.py")
_MODELS = Path(__file__).with_name("models.py")
_POOL_WEIGHTS = Path(__file__).with_name("pool_weights.py")
_WEIGHTS = Path(__file__).with_name("weights.py")
TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
CONFIGURATION, HOLD, SEQUENCE = "haproxy.cfg", "hold.lua", "sequence.lua"
OPENAI, USAGE_SCRIPT, ALLOWANCES = "openai.lua", "usage.lua", "allowances.lua"
RATE_MAP, CONCURRENT_MAP = "rate.map", "concurrent.map"
_NO_CACHE = LauncherSettings()
_SAFE_PATH = re.compile(r"/[A-Za-z0-9_./@+-]*")
_NO_LIMIT = 1_000_000_000
_OF_TOKENS = {
    "chat_paths": CHATS,
    "messages_path": MESSAGES,
    "usage": USAGE,
    "most_line_bytes": MOST_LINE_BYTES,
    "most_tokens": MOST_TOKENS,
    "most_held_tokens": MOST_HELD_TOKENS,
    "most_kept_bytes": MOST_KEPT_BYTES,
}
_LIMITED = (
    ("tenant", "t", "%[var(txn.payer)]"),
    ("person", "p", "%[var(txn.payer)]/%[var(txn.person)]"),
    ("key", "k", "%[var(txn.payer)]//%[var(txn.key_id)]"),
)
"""Whose limits a request comes under: name, letter for variables, name in the map of limits."""
_FILES_FOR_CLIENT, _FILES_FOR_REQUEST, _FILES_FOR_LIMITED = 5, 6, 20
"""Of so many open files that server lines leave one client may be connected, one request on its
way, and one with limits of its tenant, person or key, by HTTP and one more by gRPC. A connection
takes one, a request three more: both ends of HAProxy's own connection, and that to the replica; and
two more with limits. So clients' connections take a fifth, their requests a half, and the way of
those with limits a fifth. HAProxy itself takes half as many connections as those files, all kinds
together: were all taken by clients, its own could not be made."""
_LEAST_FILES = 100
"""Where it can't start a limit is needed all the same: 0 would be none."""
_LEAST_HOSTS = 5
"""Addresses that it takes to use up all connections of clients."""
_HEADER_BYTES = 8000
"""Bytes of headers, and of path, that the gateway lets in at most; Triton takes 8 KiB a line."""
_QUESTIONS_PER_S = 20
"""Questions of statistics of one tenant a second: each takes the launcher milliseconds."""
_QUESTIONS_AT_ONCE = 20
"""Questions of statistics of one tenant that wait for their answers: of many tenants, each has its
place at the launcher."""
_UNREAD_REFUSALS = 1000
"""Refusals of one host that may be unread, if each takes 16 KiB of HAProxy's memory. Clients read
theirs immediately."""
FRAME_MS = 20_000
"""Milliseconds for which the newest requests go first; then those that have come until then have
their turn."""
_RING_BYTES = 8 * 1024 * 1024
_OF_RING = {"ring": RING, "ring_bytes": _RING_BYTES, "held": HELD, "answered": ANSWERED}
_RETRY_AFTER_S = 30
"""Retry-After, in seconds, of requests that are given up on where the launcher has no estimate."""
_SAFE_BIND = re.compile(r"[A-Za-z0-9_.:*\[\],-]+")
_SAFE_DOMAIN = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)*")
_SAFE_TENANT = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_TENANT_NAME, _SERVICE_NAME = "[A-Za-z0-9_][A-Za-z0-9_.-]*", "[a-z0-9][a-z0-9-]*"
_SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@cache
def _environment() -> "Environment":
    from jinja2 import (  # noqa: PLC0415 -- most commands beside those that render do not
        Environment,
        FileSystemLoader,
        StrictUndefined,
    )

    environment = Environment(  # noqa: S701 -- no HTML: what users choose is checked and quoted
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    return environment


LOG_BYTES = 16 * 1024 * 1024
"""Size at which a replica's log is cut off; what is cut off is kept in one more file."""


def service_script(
    spec: ServiceSpec,
    settings: StartSettings,
    gateway: str,
    launcher: LauncherSettings = _NO_CACHE,
) -> str:
    """Return the batch script of a service; ``sbatch`` takes it as it is.

    ``settings`` are its engine's. ``gateway`` is the certificate in PEM of the only client that its
    replicas let in. ``launcher`` says where on nodes its model's files are kept.
    """
    engine = engine_named(spec.engine)
    brought = _brought(engine, spec, settings, launcher)
    is_shared = spec.pool is not None and brought["weights"]
    template = _environment().get_template("service.sbatch.j2")
    return template.render(
        spec=spec,
        engine=engine,
        words=(*_models_words(engine, spec, settings), *_words(engine, spec, settings)),
        options=engine.options(spec, is_measured=False),
        settings=settings,
        comment=COMMENT,
        gateway=gateway.strip(),
        door=_DOOR.read_text(encoding="utf-8").strip(),
        loopback=_LOOPBACK.read_text(encoding="utf-8").strip(),
        models=_MODELS.read_text(encoding="utf-8").strip() if _has_models(engine, spec) else "",
        brought=brought,
        weights=_WEIGHTS.read_text(encoding="utf-8").strip() if any(brought.values()) else "",
        pool_weights=_POOL_WEIGHTS.read_text(encoding="utf-8").strip() if is_shared else "",
        log_bytes=LOG_BYTES,
    )


def _has_models(engine: Engine, spec: ServiceSpec) -> bool:
    """Whether ``models.py`` starts a server for each model."""
    return spec.pool is not None and isinstance(engine, PooledEngine) and engine.has_server_each


def _models_words(engine: Engine, spec: ServiceSpec, settings: StartSettings) -> Sequence[str]:
    """Return the words of bash that start ``models.py``, if it starts the servers."""
    if not _has_models(engine, spec):
        return ()
    # With pyxis the script's step already runs in the image.
    python = "python3" if spec.runtime == "pyxis" else shlex.quote(settings.python)
    own = map(shlex.quote, (spec.model, spec.name, BESIDE))
    return (python, '"$private/readonly/models.py"', '"$private"', '"$models"', *own)


def _brought(
    engine: Engine, spec: ServiceSpec, settings: StartSettings, launcher: LauncherSettings
) -> Mapping[str, Sequence[str]]:
    """Return how "image" and "weights" come to the node before the server starts there.

    That is in words for ``weights.py``: where it keeps which files, and how many bytes; none for
    what the server reads where it is.
    """
    words: dict[str, Sequence[str]] = {"image": (), "weights": ()}
    if launcher.node_cache is None or spec.nodes > 1:
        return words
    cache = (str(launcher.node_cache), str(launcher.node_cache_bytes))
    # What is no path is an image in a registry, which the runtime keeps itself.
    if settings.image_copies and spec.image is not None and spec.image.startswith("/"):
        image = Path(spec.image)
        words["image"] = (*cache, str(image.parent), f"--model={image.name}")
    words["weights"] = (*cache, *_weights_words(engine, spec))
    return words


def _weights_words(engine: Engine, spec: ServiceSpec) -> Sequence[str]:
    """Return the words for ``weights.py`` that say which files of the repository are read.

    In a pool those for ``pool_weights.py``: its other models are named as they are loaded.
    """
    words = [spec.model_repository]
    if spec.pool is not None:
        return (*words, spec.model)
    if not engine.loads_all:
        words.append(f"--model={spec.model}")
    if spec.model_file:
        words.append(f"--files={parts_pattern(spec.model_file)}")
    # The launcher loads them by their paths in the repository.
    if spec.adapters:
        words.append("--no-adapters")
    return words


def profile_script(
    spec: ServiceSpec, settings: StartSettings, work: ProfileTask | TokenTask, python: str
) -> str:
    """Return the batch script of a job that measures on ``spec.profile``.

    ``settings`` are its engine's. ``python`` is the interpreter that runs our client.
    """
    engine = engine_named(spec.engine)
    slots = None
    if isinstance(work, TokenTask) and isinstance(engine, PromptedEngine):
        slots = work.slots(work.concurrencies[0], each=engine.has_slot_memory)
    return (
        _environment()
        .get_template("profile.sbatch.j2")
        .render(
            spec=spec,
            engine=engine,
            words=_words(engine, spec, settings),
            options=engine.options(spec, is_measured=True),
            settings=settings,
            work=work.model_dump_json(),
            points=work.points,
            slots=slots,
            loopback=_LOOPBACK.read_text(encoding="utf-8").strip(),
            time_limit_min=work.time_limit_min,
            python=python,
        )
    )


def _words(engine: Engine, spec: ServiceSpec, settings: StartSettings) -> tuple[str, ...]:
    """Return the words of bash that start the engine's server; its options follow.

    With pyxis the script's step already runs in the image.
    """
    # Variables are set inside the container, for the server and no other program. Words of its
    # command line could be read by everybody.
    read, *rank = ('. "$0" && exec "$@"',)
    if spec.nodes > 1:
        # The first rank's file is read once more for each of the others.
        read = '. "$0" && { [ "$1" = 0 ] || rm -f "$0"; } && shift && exec "$@"'
        rank = ['"$node_rank"']
    inside = ("sh", "-c", shlex.quote(read), '"$private/environment"', *rank)
    python = settings.python if spec.runtime == "bare" else "python3"
    before = (*(inside if spec.environment else ()), *_own_network(engine, spec, python))
    match spec.runtime:
        case "bare":
            return (*before, shlex.quote(settings.command))
        case "apptainer":
            models = f"{spec.model_repository}:{spec.model_repository}"
            mounted = map(shlex.quote, (settings.apptainer, "exec", "--nv", "--bind", models))
            return (*mounted, '"$image"', *before, shlex.quote(settings.image_command))
        case "pyxis":
            return (*before, shlex.quote(settings.image_command))


def _own_network(engine: Engine, spec: ServiceSpec, python: str) -> tuple[str, ...]:
    """Return the words of bash before a server that can't listen on a unix socket, or may reach
    nothing.

    The network has no way out, and none in but unix sockets and ``loopback.py``. Without it nothing
    is started: every user of the node could reach the port, or a client what the node reaches.
    """
    apart = ("unshare", "--user", "--map-root-user", "--net")
    if not engine.loopback_port:
        return apart if engine.closes_network(spec) else ()
    socket = f'"$private/{engine.sockets[0]}"'
    program = '"$private/readonly/loopback.py"'
    leads = (shlex.quote(python), program, socket, str(engine.loopback_port))
    return (*apart, *leads)


_ANSWER_HEADERS = (
    *("content-(type|length|encoding|language|disposition)", "transfer-encoding", "trailer"),
    *("date", "cache-control", "expires", "etag", "last-modified", "vary", "x-accel-buffering"),
    # What may be sent instead of what was refused.
    *("allow", "accept-encoding"),
    *("retry-after(-ms)?", "x-should-retry", "x-ratelimit-.*", "x-request-id", "openai-.*"),
    *("inference-header-content-length", "endpoint-load-metrics", "x-slicewise-state", "grpc-.*"),
)
"""Headers of an answer that clients of engines read, and that say something of that answer alone:
patterns. No other passes. Those by which browsers remember or do something for a whole host, or
by which a proxy before the gateway does (X-Accel-Redirect), become more with each year, so a list
of them is never whole. No engine answers with a Location; a client that follows it would take its
API key there."""


@dataclass(frozen=True)
class Owners:
    """Users and groups in HAProxy's configuration; "" is the user who starts it.

    Attributes:
        user, group: as which HAProxy works, if root starts it.
        socket_user, socket_group: who may use the runtime socket.
    """

    user: str = ""
    group: str = ""
    socket_user: str = ""
    socket_group: str = ""

    @property
    def options(self) -> str:
        """The options of ``slicewise gateway render`` for these, each after a blank."""
        return "".join(
            f" --{field.name.replace('_', '-')} {value}"
            for field in fields(self)
            if (value := getattr(self, field.name))
        )


def owners_of(text: str) -> Owners:
    """Return the owners with which a haproxy.cfg was rendered."""
    socket = re.search(r"^    stats socket (.*)$", text, re.MULTILINE)
    words = socket[1] if socket else ""
    return Owners(
        *(_after(f"^    {word}", text) for word in ("user", "group")),
        *(_after(f" {word}", words) for word in ("user", "group")),
    )


def _after(word: str, text: str) -> str:
    match = re.search(rf"{word} (\S+)", text, re.MULTILINE)
    return match[1] if match else ""


def gateway_files(
    settings: GatewaySettings, owners: Owners = Owners(), *, most_files: int = MOST_FILES
) -> Mapping[str, str]:
    """Return texts by file name for ``settings.directory``; services and keys come at run time.

    ``most_files`` is how many open files HAProxy may have: its connections are made to fit them.
    Raises InvalidInputError (SW-SETTINGS) for a value that HAProxy would misread.
    """
    _check(settings, owners)
    limits, per_host = settings.limits, settings.limits.connections_per_host
    files = max(_LEAST_FILES, files_left(settings, most_files))
    clients = files // _FILES_FOR_CLIENT
    values = {
        "settings": settings,
        "engines": tuple(ENGINES.values()),
        "openai_api": OPENAI_API,
        "openai_name": OPENAI_NAME,
        "openai_paths": _openai_paths(),
        "openai_groups": [engine.group for engine in ENGINES.values() if engine.api == OPENAI_API],
        "maps": Maps(settings.directory),
        "rate_map": settings.directory / RATE_MAP,
        "concurrent_map": settings.directory / CONCURRENT_MAP,
        "no_limit": _NO_LIMIT,
        "limited": _LIMITED,
        "complete_key": COMPLETE_KEY,
        "told_key": TOLD_KEY,
        "tenant_name": _TENANT_NAME,
        "service_name": _SERVICE_NAME,
        "grpc_suffix": GRPC,
        "idle": IDLE,
        "most_files": most_files,
        "most_clients": clients,
        "most_requests": files // _FILES_FOR_REQUEST,
        "most_limited": files // _FILES_FOR_LIMITED,
        "most_per_host": clients // _LEAST_HOSTS if per_host is None else per_host,
        "deadline_ms": LONGEST_DEADLINE_S * 1000,
        "key": KEY,
        "statistics": STATISTICS,
        "questions_per_s": _QUESTIONS_PER_S,
        "questions_at_once": _QUESTIONS_AT_ONCE,
        "owners": owners,
        "frame_ms": FRAME_MS,
        "kept_lines": settings.kept_lines,
        **_OF_RING,
        **_OF_TOKENS,
        "retry_after_s": _RETRY_AFTER_S,
        "header_bytes": _HEADER_BYTES,
        "most_json_bytes": settings.max_json_mib * 1024 * 1024,
        "unread_refusals": _UNREAD_REFUSALS * 16 // settings.buffer_kib,
        "streams": STREAMS,
        "timings": TIMINGS,
        **_fair_queue(settings),
        "bounds_ms": BOUNDS_MS,
        "errors_counter": ERRORS,
        "came_counter": CAME,
        "timing_counters": COUNTERS,
        "slowest_span_s": SLOWEST_SPAN_S,
        "slowest_spans": SLOWEST_SPANS,
        "use_noted_s": USE_NOTED_S,
        "answer_headers": _ANSWER_HEADERS,
    }
    texts = {
        name: _environment().get_template(f"{name}.j2").render(values)
        for name in (CONFIGURATION, HOLD, SEQUENCE, OPENAI, USAGE_SCRIPT, ALLOWANCES)
    }
    rates = {name: limit.requests_per_s for name, limit in limits.tenants.items()}
    concurrent = {name: limit.concurrent for name, limit in limits.tenants.items()}
    return {**texts, RATE_MAP: _limits_text(rates), CONCURRENT_MAP: _limits_text(concurrent)}


def _fair_queue(settings: GatewaySettings) -> Mapping[str, object]:
    back, far = back_ms(settings.hold_s), FAR_MS
    return {"fair": FAIR, "fair_back_ms": back, "fair_far_ms": far, "fair_divisor": DIVISOR}


def _openai_paths() -> Sequence[str]:
    """Return all paths of OpenAI's API to which some engine takes JSON, each once."""
    engines = (engine for engine in ENGINES.values() if engine.api == OPENAI_API)
    paths = dict.fromkeys(path for engine in engines for path in engine.http_paths)
    return tuple(path for path in paths if path != AUDIO)


def _limits_text(limits: Mapping[str, int | None]) -> str:
    return map_text({name: str(limit or _NO_LIMIT) for name, limit in limits.items()})


def _check(settings: GatewaySettings, owners: Owners) -> None:
    _require("gateway.directory", str(settings.directory), _SAFE_PATH)
    _require("gateway.runtime_socket", str(settings.runtime_socket), _SAFE_PATH)
    _require("gateway.bind", settings.bind, _SAFE_BIND)
    if settings.domain:
        _require("gateway.domain", settings.domain, _SAFE_DOMAIN)
    if settings.certificate is not None:
        _require("gateway.certificate", str(settings.certificate), _SAFE_PATH)
    for tenant in settings.limits.tenants:
        _require("gateway.limits.tenants", tenant, _SAFE_TENANT)
    for name, value in asdict(owners).items():
        if value:
            _require(f"--{name.replace('_', '-')}", value, _SAFE_NAME)


def _require(key: str, value: str, allowed: re.Pattern[str]) -> None:
    if allowed.fullmatch(value) is None:
        raise InvalidInputError(
            Code.SETTINGS,
            f"{key}: {value!r} can't stand in HAProxy's configuration.",
            f"Allowed: {allowed.pattern}",
        )
