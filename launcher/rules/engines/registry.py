"""The engines, by the name that a service file gives as ``engine``.

Triton, llama.cpp, vLLM and SGLang come with Slicewise. A site adds its own by entry points of the
group ``slicewise.engines``: each names an ``Engine``, by the name in service files. They are loaded
once, and only when an engine is asked for that does not come with Slicewise, or all are.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.engine_names import ENGINE_NAME
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.launcher.rules.engines.engine import IDLE_SUFFIX, Engine, StartSettings
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp
from slicewise.launcher.rules.engines.sglang import SGLang
from slicewise.launcher.rules.engines.triton import Triton
from slicewise.launcher.rules.engines.vllm import Vllm

_DEFAULT = "triton"
_GROUP = "slicewise.engines"
_GROUP_NAME = re.compile("[a-z]+")


class _EntryPoint(Protocol):
    @property
    def name(self) -> str: ...

    def load(self) -> object: ...


class Engines(Mapping[str, Engine]):
    """Engines by name: Slicewise's own, and those that ``find`` finds when they are needed."""

    def __init__(
        self, own: Mapping[str, Engine], find: Callable[[], Iterable[_EntryPoint]]
    ) -> None:
        self._own = own
        self._find = find

    def __getitem__(self, name: str) -> Engine:
        return self._own[name] if name in self._own else self._site[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **self._site[0]})

    def __len__(self) -> int:
        return len(self._own) + len(self._site[0])

    @property
    def broken(self) -> Mapping[str, str]:
        """Why engines of the site can't be used, by name."""
        return self._site[1]

    @cached_property
    def _site(self) -> tuple[Mapping[str, Engine], Mapping[str, str]]:
        loaded: dict[str, Engine] = {}
        broken: dict[str, str] = {}
        for entry in self._find():
            usable = {**self._own, **loaded}
            try:
                loaded[entry.name] = _usable(entry.name, entry.load(), usable)
            except Exception as error:  # noqa: BLE001 -- a site's module may raise anything
                broken[entry.name] = f"{type(error).__name__}: {error}"
        return loaded, broken


def _usable(name: str, engine: object, engines: Mapping[str, Engine]) -> Engine:
    """Return it; raises ValueError or TypeError if it is no engine, or can't be beside others."""
    if re.fullmatch(ENGINE_NAME, name) is None:
        raise ValueError(f"its name is not {ENGINE_NAME}")
    if name in engines:
        raise ValueError("there is another engine of this name")
    if not isinstance(engine, Engine) or isinstance(engine, type):
        raise TypeError("it names no object that is a Slicewise engine")
    if _GROUP_NAME.fullmatch(engine.group) is None:
        raise ValueError(f"group {engine.group!r} is not {_GROUP_NAME.pattern}")
    if engine.group.endswith(IDLE_SUFFIX):
        raise ValueError(
            f"group {engine.group!r} ends in {IDLE_SUFFIX!r}, as backends without servers do"
        )
    if engine.group in {engine.group for engine in engines.values()}:
        raise ValueError(f"another engine has group {engine.group!r}")
    return engine


def _entry_points() -> Iterable[_EntryPoint]:
    # All installed packages are looked at.
    from importlib.metadata import entry_points  # noqa: PLC0415 -- most commands do not need it

    return entry_points(group=_GROUP)


OWN_ENGINES: Mapping[str, Engine] = {
    "triton": Triton(),
    "llamacpp": LlamaCpp(),
    "vllm": Vllm(),
    "sglang": SGLang(),
}
ENGINES = Engines(OWN_ENGINES, _entry_points)


def engine_of(directives: Mapping[str, str]) -> Engine:
    """Return the engine that a service's directives name.

    If they name none, that is Triton; also if they name one that is not known, as a newer Slicewise
    has: its replicas never prove to be ours.
    """
    return ENGINES.get(directives.get("engine", _DEFAULT), ENGINES[_DEFAULT])


def engine_named(name: str) -> Engine:
    """Return the engine of a service file; raises InvalidInputError (SW-SERVICE-ENGINE)."""
    if name in ENGINES:
        return ENGINES[name]
    why = ENGINES.broken.get(name)
    raise InvalidInputError(
        Code.SERVICE_ENGINE,
        f"engine: {name} can't be used: {why}." if why else f"engine: there is no {name!r} here.",
        f"Engines here: {', '.join(ENGINES)}.",
    )


def unknown_engines(sections: Iterable[str]) -> Sequence[str]:
    """Return the names in [engines] of slicewise.toml that are no engines here.

    An engine of the site that can't be loaded is known: others need not wait until it is mended.
    """
    return [name for name in sections if name not in ENGINES and name not in ENGINES.broken]


def require_known(sections: Iterable[str]) -> None:
    """Raise InvalidInputError (SW-SETTINGS) if [engines] of slicewise.toml names no engine here."""
    if unknown := unknown_engines(sections):
        raise InvalidInputError(
            Code.SETTINGS,
            f"slicewise.toml: engines.{unknown[0]}: there is no such engine here.",
            f"Engines here: {', '.join(ENGINES)}.",
        )


def start_settings(name: str, sections: Mapping[str, EngineSettings]) -> StartSettings:
    """Return how a service's engine is started: as slicewise.toml says, else as the engine does.

    Raises InvalidInputError if there is no such engine, or if neither names the server
    (SW-SERVICE-ENGINE), or if slicewise.toml has a section of another that is none (SW-SETTINGS).
    """
    engine = engine_named(name)
    require_known(sections)
    own = sections.get(name, EngineSettings())
    if command := own.command or engine.command:
        return StartSettings(
            command=str(command),
            image_command=(
                engine.image_command if own.image_command is None else own.image_command
            ),
            apptainer=own.apptainer,
            image_copies=own.image_copies,
            python=own.python,
            private_shm=engine.private_shm if own.private_shm is None else own.private_shm,
            interface=own.interface,
        )
    raise InvalidInputError(
        Code.SERVICE_ENGINE,
        f"engine: slicewise.toml does not say how {name} is started.",
        f'Add [engines.{name}] with command = "..." to it.',
    )
