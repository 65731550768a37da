"""Each engine that a service file may name is there, and gives the gateway what it needs."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from slicewise.cluster.language.engine_names import ENGINE_NAME
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.launcher.rules.engines import registry
from slicewise.launcher.rules.engines.engine import (
    Answer,
    Engine,
    Parallelism,
    Probe,
    SlottedEngine,
    TokenEngine,
)
from slicewise.launcher.rules.engines.openai import (
    AUDIO,
    COUNT_TOKENS,
    MESSAGES,
    SCORES,
    OpenAIEngine,
)
from slicewise.launcher.rules.engines.registry import (
    ENGINES,
    OWN_ENGINES,
    Engines,
    engine_named,
    engine_of,
    start_settings,
)
from slicewise.launcher.rules.engines.triton import Triton

EVERY = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())


def test_a_service_file_may_name_each():
    assert all(re.fullmatch(ENGINE_NAME, name) for name in ENGINES)
    assert ServiceSpec.model_fields["engine"].default in ENGINES


@pytest.mark.parametrize("name", OWN_ENGINES)
def test_those_of_slicewise_are_started_without_a_word_in_the_settings(name: str):
    engine = OWN_ENGINES[name]
    start = start_settings(name, {})
    assert (start.command, start.image_command) == (engine.command, engine.image_command)
    assert start.command.startswith("/")
    assert start.image_command
    assert start.private_shm is (name != "llamacpp")


def test_what_the_settings_say_comes_before_what_an_engine_says():
    said = EngineSettings(command=Path("/opt/llama"), private_shm=True, interface="ib0")
    start = start_settings("llamacpp", {"llamacpp": said, "triton": EngineSettings()})
    assert (start.command, start.private_shm, start.interface) == ("/opt/llama", True, "ib0")
    assert start.image_command == ENGINES["llamacpp"].image_command
    assert start_settings("triton", {"triton": EngineSettings(private_shm=False)}) == replace(
        start_settings("triton", {}), private_shm=False
    )


def test_a_section_of_no_engine_is_refused():
    """A misspelled name would leave the engine's own path in force."""
    with pytest.raises(InvalidInputError, match=r"engines\.trion: .*triton, llamacpp, vllm") as no:
        start_settings("triton", {"trion": EngineSettings(command=Path("/opt/triton"))})
    assert no.value.refusal.code == "SW-SETTINGS"


def test_directives_that_name_none_or_an_unknown_one_are_the_default_s():
    default = ENGINES[ServiceSpec.model_fields["engine"].default]
    assert engine_of({}) is engine_of({"engine": "of a newer Slicewise"}) is default
    assert [engine_of({"engine": name}) for name in ENGINES] == list(ENGINES.values())


def test_no_two_share_backends_of_the_gateway():
    groups = [engine.group for engine in ENGINES.values()]
    assert len(set(groups)) == len(groups)
    assert all(re.fullmatch("[a-z]+", group) for group in groups)


@EVERY
def test_clients_reach_what_follows_a_service_s_address(engine: Engine):
    assert any(path.startswith(f"{engine.api}/") for path in engine.http_paths)
    paths = (*engine.http_paths, *engine.grpc_paths, *engine.health_paths)
    assert all(path.startswith("/") for path in paths)


@EVERY
@pytest.mark.parametrize(
    "path", ["", "/", "/metrics", "/v2/repository/models/m/load", "/v2/logging", "/../v2"]
)
def test_clients_change_nothing_that_a_replica_serves(engine: Engine, path: str):
    let_in = product((*engine.http_paths, *engine.grpc_paths, *engine.health_paths), (path,))
    assert not any(re.fullmatch(*one) for one in let_in)


class Small(OpenAIEngine):
    """What docs/how-to/engines.md says that an engine of OpenAI's API must say itself."""

    title, group = "Small", "small"
    parallelism = Parallelism()
    log_notice = re.compile("INFO")

    def options(self, spec: ServiceSpec, /, *, is_measured: bool) -> tuple[str, ...]:
        return ("serve",)

    def log_message(self, line: str) -> str:
        return line

    def identified(self, said: bytes, identity: str) -> Answer:
        return Answer(Probe.OURS if said.decode() == identity else Probe.STRANGER)


def test_an_engine_of_openai_s_api_says_only_what_differs():
    entry = SimpleNamespace(name="small", load=Small)
    engines = Engines({}, lambda: [entry])
    assert engines["small"].ready_paths("m") == ("/health",)
    assert not engines.broken
    # What it does not say, it does not do.
    assert not isinstance(engines["small"], SlottedEngine | TokenEngine)


def test_engines_of_openai_s_api_differ_in_what_they_say():
    shared = ("stream_paths", "api", "served", "failure", "smallest_request")
    for name in ("llamacpp", "vllm", "sglang"):
        assert isinstance(ENGINES[name], OpenAIEngine)
        of_its_own = {SCORES, MESSAGES, COUNT_TOKENS, AUDIO}
        assert set(ENGINES[name].http_paths) - of_its_own == set(OpenAIEngine.http_paths)
        assert not any(one in vars(type(ENGINES[name])) for one in shared)


class Entry(SimpleNamespace):
    """An entry point; ``load`` is what it does."""

    name: str


def of_site(**entries: object) -> Engines:
    """Engines of a site beside Triton: objects, or an error that is raised."""

    def load(found: object) -> object:
        if isinstance(found, Exception):
            raise found
        return found

    def find() -> list[Entry]:
        return [Entry(name=name, load=lambda one=one: load(one)) for name, one in entries.items()]

    return Engines({"triton": Triton()}, find)


def with_group(name: str) -> Engine:
    engine = Triton()
    engine.group = name
    return engine


def test_a_broken_engine_of_the_site_costs_no_other_one():
    fit = with_group("fit")
    found = of_site(
        raises=ImportError("no module"),
        number=7,
        triton=with_group("again"),
        fit=fit,
        taken=with_group("fit"),
        odd=with_group("odd-1"),
        bridle=with_group("bridle"),
        kind=Triton,
        **{"odd-name": with_group("oddname")},
    )
    assert dict(found) == {"triton": found["triton"], "fit": fit}
    assert len(found) == 2
    assert found.broken == {
        "raises": "ImportError: no module",
        "number": "TypeError: it names no object that is a Slicewise engine",
        "kind": "TypeError: it names no object that is a Slicewise engine",
        "bridle": "ValueError: group 'bridle' ends in 'idle', as backends without servers do",
        "triton": "ValueError: there is another engine of this name",
        "taken": "ValueError: another engine has group 'fit'",
        "odd": "ValueError: group 'odd-1' is not [a-z]+",
        "odd-name": "ValueError: its name is not [a-z][a-z0-9]{0,31}",
    }


def test_site_engines_are_looked_for_once_and_only_if_needed():
    looks: list[int] = []
    engines = Engines({"triton": Triton()}, lambda: looks.append(1) or [])
    assert "triton" in engines
    assert engines["triton"].title == "Triton"
    assert looks == []
    assert "other" not in engines
    assert list(engines) == ["triton"]
    assert looks == [1]


def test_an_engine_that_is_not_there_or_that_nobody_says_how_to_start_is_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(registry, "ENGINES", of_site(small=Small()))
    for act in (lambda: engine_named("other"), lambda: start_settings("small", {})):
        with pytest.raises(InvalidInputError) as caught:
            act()
        assert caught.value.refusal.code == "SW-SERVICE-ENGINE"
    assert start_settings("small", {"small": EngineSettings(command=Path("/s"))}).command == "/s"


def test_every_language_model_may_be_asked_to_rerank_and_those_that_score_for_scores():
    asked = {
        path: {name for name, one in ENGINES.items() if allows(one, path)}
        for path in ("/v1/rerank", "/v1/score", "/v1/score/x", "/score")
    }
    assert asked == {
        "/v1/rerank": {"llamacpp", "vllm", "sglang"},
        "/v1/score": {"vllm", "sglang"},
        "/v1/score/x": set(),
        "/score": set(),
    }


def allows(engine: Engine, path: str) -> bool:
    return any(re.fullmatch(one, path) for one in engine.http_paths)
