"""Checks the LoRA adapters of a service before anything is submitted."""

import json
from collections.abc import Mapping
from pathlib import Path

from slicewise.cluster.language.adapters import model_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec
from slicewise.launcher.rules.engines.engine import AdapterEngine
from slicewise.launcher.rules.engines.lora_adapter import CONFIG, adapter_problems, other_base
from slicewise.launcher.rules.engines.registry import engine_named
from slicewise.launcher.services.model_repository import entries
from slicewise.launcher.services.plain_file import open_file

_MOST_BYTES = 1024 * 1024
"""Bytes of an adapter's configuration at most."""
_SKIP = "If only the nodes see that path, add --skip-model-check."


def require_adapter_engine(spec: ServiceSpec) -> None:
    """Check that the engine has models of their own for adapters.

    Raises InvalidInputError (SW-SERVICE-MODEL).
    """
    engine = engine_named(spec.engine)
    if spec.adapters and not isinstance(engine, AdapterEngine):
        raise InvalidInputError(
            Code.SERVICE_MODEL,
            f"adapters: {engine.title} can't load adapters as models of their own names while it "
            "serves.",
            'Leave adapters out, or write engine = "vllm" or "sglang".',
        )


def require_adapters(spec: ServiceSpec) -> tuple[str, ...]:
    """Check the adapters' files; return what their owner should know besides.

    Raises InvalidInputError (SW-SERVICE-MODEL) that names each adapter that can't be loaded.
    """
    notes, problems = list[str](), list[str]()
    for name, path in spec.adapters:
        directory = Path(spec.model_repository) / path
        entries_there = entries(directory)
        config = _config(directory / CONFIG) if CONFIG in entries_there else {}
        wrong = (
            [f"{CONFIG} is no JSON object"]
            if config is None
            else list(adapter_problems(entries_there, config, spec.largest_rank))
        )
        problems += [f"{name} ({directory}): {', '.join(wrong)}"] if wrong else []
        if config and (base := other_base(config, spec.model)):
            notes.append(f"{model_name(spec.name, name)} was made for {base}, not for {spec.model}")
    if problems:
        raise InvalidInputError(
            Code.SERVICE_MODEL, f"Adapters can't be loaded: {'; '.join(problems)}.", _SKIP
        )
    return tuple(notes)


def _config(path: Path) -> Mapping[str, object] | None:
    """Read a configuration; None if it is none."""
    try:
        with open_file(path) as file:
            config = json.loads(file.read(_MOST_BYTES + 1))
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None
