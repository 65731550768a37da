"""Looks into a model repository: what a service's model needs, and what could not run.

A server that loads every model of its repository (Triton) ends if one can't be loaded, so the
neighbours of a service's model count, too.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from errno import ELOOP, ENOENT
from hashlib import sha256
from math import ceil
from pathlib import Path, PurePath
from types import MappingProxyType

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ServiceSpec
from slicewise.launcher.rules.engines.engine import Engine, TokenEngine
from slicewise.launcher.rules.engines.lora_adapter import CONFIG
from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelIndex, ModelNeeds, listed
from slicewise.launcher.rules.engines.registry import ENGINES, engine_named
from slicewise.launcher.services.plain_file import open_file

_MOST_BYTES = 1024 * 1024
"""Bytes of a configuration at most; one of 1 MiB takes 0.4 s to read."""
_MOST_INDEX_BYTES = 64 * 1024 * 1024
"""Bytes of an index at most; the one of a model with a trillion weights has 14 MB."""
_MOST_INDEX_PARTS = 1_000_000
"""Entries of an index, and brackets in it, at most: each takes some hundred bytes to read."""
_INDEXED = re.compile(r"[^/\x00-\x1f]{1,243}[.]safetensors")
_POINTER, _MOST_POINTER_BYTES = b"version https://git-lfs.", 1024
"""How Git's pointer to a large file begins, and how long one is at most.
https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
"""
_DIGEST_LENGTH = 16
_MIB = 1024**2
_FEW = 4
"""Entries of a directory up to which each is named; of more, how many there are of each kind."""
_SKIP = "--skip-model-check submits it all the same, such as for a newer version of the engine."


def require_runnable(spec: ServiceSpec) -> ModelNeeds:
    """Return what the service's model needs; it was found by ``require_model``.

    Raises InvalidInputError: SW-SERVICE-MODEL if the model or another directory of the repository
    can't be loaded; SW-SERVICE if requests of one sequence would go to several replicas, for a
    model that can't be in a pool, or for an objective of tokens that no replica can time.
    """
    engine = engine_named(spec.engine)
    if (spec.ttft_ms or spec.tpot_ms) and not isinstance(engine, TokenEngine):
        raise InvalidInputError(
            Code.SERVICE,
            f"ttft_ms, tpot_ms: {engine.title} does not say how long tokens take.",
            "Say p95_ms or max_queue_s instead.",
        )
    if spec.model_file and not engine.chooses_file:
        raise InvalidInputError(
            Code.SERVICE,
            f"model_file: {engine.title} serves all of a model's directory.",
            "Leave it out.",
        )
    needs_by_model = _spec_needs(spec)
    needs = needs_by_model[spec.model]
    if needs.problems:
        raise InvalidInputError(
            Code.SERVICE_MODEL,
            f"Model {spec.model} can't be loaded: {'; '.join(needs.problems).removesuffix('.')}.",
            f"Correct {Path(spec.model_repository) / spec.model}. {_SKIP}",
        )
    outside = () if spec.runtime == "bare" else _outside(Path(spec.model_repository), needs)
    if outside:
        raise InvalidInputError(
            Code.SERVICE_MODEL,
            f"Model {spec.model}: {listed(outside)} leads out of model_repository, and a container "
            "sees nothing else.",
            f"Copy what the links lead to there, or name a directory above both. {_SKIP}",
        )
    broken = {
        name: model_needs for name, model_needs in needs_by_model.items() if model_needs.problems
    }
    if broken and engine.loads_all and spec.pool is None:
        problems = "; ".join(
            f"{name}: {', '.join(needs_of_model.problems)}"
            for name, needs_of_model in broken.items()
        )
        raise InvalidInputError(
            Code.SERVICE_MODEL,
            f"A server that can't load each model of its repository ends; beside {spec.model} "
            f"there is {problems}.",
            f"Correct it, or give {spec.model} a repository of its own. {_SKIP}",
        )
    keep_state = [
        model for model in (spec.model, *needs.parts) if needs_by_model[model].has_sequences
    ]
    if spec.pool is not None:
        require_poolable(needs, keeps_state=bool(keep_state))
    if keep_state and spec.max_replicas > 1 and spec.session_affinity == "none":
        raise InvalidInputError(
            Code.SERVICE,
            f"Model {keep_state[0]} keeps the state of sequences (sequence_batching): requests of "
            f"one sequence would go to any of {spec.max_replicas} replicas.",
            'Set session_affinity = "sequence", or max_replicas = 1.',
        )
    return needs


def require_poolable(needs: ModelNeeds, *, keeps_state: bool) -> None:
    """Raise InvalidInputError (SW-SERVICE) for a model that no replica of a pool could serve."""
    if needs.parts or keeps_state:
        runs = f"runs {listed(needs.parts)}, which no replica of a pool would load"
        keeps = "keeps the state of sequences, and requests of one would go to several replicas"
        raise InvalidInputError(
            Code.SERVICE,
            f"Model {needs.name} {runs if needs.parts else keeps}.",
            "Leave pool out.",
        )


def _outside(repository: Path, needs: ModelNeeds) -> tuple[str, ...]:
    """Return the model's files that are links to somewhere else."""
    root = os.path.realpath(repository)
    real = {file: os.path.realpath(repository / needs.name / file) for file in needs.files}
    return tuple(
        version for version, path in real.items() if not path.startswith(f"{root}{os.sep}")
    )


def model_needs(spec: ServiceSpec) -> ModelNeeds:
    """Return what the service's model needs; it was found by ``require_model``."""
    return _spec_needs(spec)[spec.model]


def _spec_needs(spec: ServiceSpec) -> Mapping[str, ModelNeeds]:
    chosen = {spec.model: spec.model_file or ""}
    repository, gpus = Path(spec.model_repository), spec.replica_shape.gpus
    return repository_needs(engine_named(spec.engine), repository, gpus, chosen)


def require_choice(needs: ModelNeeds) -> None:
    """Raise InvalidInputError (SW-USAGE) if one of several models in a directory is to be named."""
    if needs.choices:
        raise InvalidInputError(
            Code.USAGE,
            f"{needs.name} has {len(needs.choices)} models to choose from.",
            f"Name one, --model-file: {listed(needs.choices)}.",
        )


def engine_name_of(model: Path) -> str | None:
    """Return the name of the first engine that takes a directory for a model; None if none does."""
    entries_there = entries(model)
    return next((name for name, engine in ENGINES.items() if engine.is_model(entries_there)), None)


def repository_needs(
    engine: Engine, repository: Path, gpus: int, chosen: Mapping[str, str] = MappingProxyType({})
) -> Mapping[str, ModelNeeds]:
    """Return what each directory of a repository needs, by its name, in order.

    ``chosen`` are files of services' ``model_file``, by the directory's name.
    """
    models = {
        directory.name: model_files(engine, directory, chosen.get(directory.name, ""))
        for directory in directories(repository)
    }
    needs_by_model = {
        name: engine.model_needs(files, models, gpus) for name, files in models.items()
    }
    return {
        name: _without_pointers(repository / name, needs) for name, needs in needs_by_model.items()
    }


def _without_pointers(directory: Path, needs: ModelNeeds) -> ModelNeeds:
    """Return the needs, with a problem where a file is only Git's pointer to a large one."""
    pointers = [file for file in needs.files if _is_pointer(directory / file)]
    if not pointers:
        return needs
    said = (
        f"{listed(pointers)} {'are pointers' if len(pointers) > 1 else 'is a pointer'} of Git LFS"
    )
    return replace(needs, problems=(*needs.problems, f"{said}: git lfs pull gets what it names"))


def _is_pointer(path: Path) -> bool:
    try:
        if not 0 < path.stat().st_size <= _MOST_POINTER_BYTES:
            return False
        with open_file(path) as file:
            return file.read(len(_POINTER)) == _POINTER
    except OSError:
        return False


def with_files(spec: ServiceSpec) -> ServiceSpec:
    """Return the service with what its files say, if this host sees them.

    That is their digest and, in a pool, how much memory its model takes.
    """
    repository = Path(spec.model_repository)
    if spec.pool is None:
        model = spec.model if spec.adapters else None
        digest = repository_digest(repository, but_adapters_of=model)
        return spec.model_copy(update={"model_digest": digest})
    own = repository / spec.model
    model_mib = spec.model_mib or files_model_mib(own)
    return spec.model_copy(update={"model_digest": repository_digest(own), "model_mib": model_mib})


def files_model_mib(model: Path) -> int | None:
    """Return how much memory a model takes if that is not known better: a fifth more than the files
    of its directory have, in MiB; None if not all can be seen.
    """
    try:
        size = sum(size for _, size, _ in _files(model, "", frozenset(), None))
    except OSError:
        return None
    return ceil(1.2 * max(1, ceil(size / _MIB)))


def repository_digest(repository: Path, *, but_adapters_of: str | None = None) -> str | None:
    """Return a digest of all files by path, size and time; None if not all can be seen.

    The batch script computes the same where a replica starts. What Python keeps of a model's
    modules (``__pycache__``) is left out, since a replica may write it. So are LoRA adapters of the
    model ``but_adapters_of``: they come and go while replicas stay. The model's own directory
    counts, even if it looks like one.
    """
    try:
        files = list(_files(repository, "", frozenset(), but_adapters_of))
    except OSError:
        return None
    lines = sorted(os.fsencode(f"{path} {size} {_find_s(ns)}\n") for path, size, ns in files)
    return sha256(b"".join(lines)).hexdigest()[:_DIGEST_LENGTH]


def _files(
    directory: Path, prefix: str, above: frozenset[tuple[int, int]], model: str | None
) -> Iterator[tuple[str, int, int]]:
    """Yield path, size and time of each file; raises OSError, also for a link to a folder above."""
    found = directory.stat()
    if (found.st_dev, found.st_ino) in above:
        raise OSError(ELOOP, "a link leads to a folder above")
    above |= {(found.st_dev, found.st_ino)}
    if model and prefix not in {"", f"{model}/"} and (directory / CONFIG).exists():
        return
    for entry in os.scandir(directory):
        path = f"{prefix}{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(Path(entry.path), f"{path}/", above, model)
        elif entry.is_file():
            status = entry.stat()
            yield path, status.st_size, status.st_mtime_ns


def _find_s(time_ns: int) -> str:
    """Write a time as ``find -printf %T@`` does."""
    return f"{time_ns // 10**9}.{time_ns % 10**9:09d}0"


def model_files(engine: Engine, directory: Path, chosen: str = "") -> ModelFiles:
    """Read a model's directory, its configuration and the index of its weights."""
    entries_there = entries(directory)
    versions = {
        version_directory.name: entries(version_directory)
        for version_directory in directories(directory)
        if version_directory.name.isascii() and version_directory.name.isdecimal()
    }
    index = next(
        (
            _index(directory / model_index)
            for model_index in engine.model_indexes
            if model_index in entries_there
        ),
        None,
    )
    config, trouble = None, ""
    if engine.model_config in entries_there:
        try:
            config = _config(directory / engine.model_config)
        except OSError as error:
            trouble = str(error.strerror)
        except ValueError as error:
            trouble = str(error)
    return ModelFiles(directory.name, entries_there, versions, config, trouble, index, chosen)


def _index(path: Path) -> ModelIndex:
    """Read an index: its files are those beside it, whatever it says of others."""
    try:
        return ModelIndex(path.name, _indexed(path))
    except OSError as error:
        return ModelIndex(path.name, trouble=str(error.strerror))
    except ValueError as error:
        return ModelIndex(path.name, trouble=str(error))


def _indexed(path: Path) -> tuple[str, ...]:
    """Return the files that an index names; raises OSError, or ValueError with a text for users."""
    weights = _json_object(path).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise ValueError("it has no weight_map")
    for weight in weights.values():
        if not isinstance(weight, str) or _INDEXED.fullmatch(weight) is None:
            raise ValueError(
                f"its weight_map names {weight!r:.80}, which is no .safetensors beside it"
            )
    return tuple(sorted(set(weights.values())))


def _json_object(path: Path) -> Mapping[str, object]:
    """Read a file of JSON; raises OSError, or ValueError with a text for users."""
    with open_file(path) as file:
        text = file.read(_MOST_INDEX_BYTES + 1)
    if len(text) > _MOST_INDEX_BYTES:
        raise ValueError(f"it has more than {_MOST_INDEX_BYTES} bytes")
    if sum(map(text.count, (b"[", b"{", b","))) > _MOST_INDEX_PARTS:
        raise ValueError(f"it has more than {_MOST_INDEX_PARTS} entries")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004
    return content


def _config(path: Path) -> Mapping[str, object]:
    """Read a configuration; raises OSError, or ValueError with a text for users."""
    if path.suffix == ".json":
        return _json_object(path)
    # Protobuf takes 30 ms to import, and only a service's file needs it.
    from slicewise.launcher.services.config_pbtxt import parse_config  # noqa: PLC0415

    with open_file(path) as file:
        text = file.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    try:
        return parse_config(text.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def entries(directory: Path) -> frozenset[str]:
    """Return what is in a directory, as ``Engine.is_model`` takes it; nothing if unreadable.

    A link that leads nowhere is nothing: downloads keep weights elsewhere, and link to them.
    """
    return frozenset(
        f"{path.name}{'/' * _is_directory(path)}" for path in _inside(directory) if _is_there(path)
    )


def description(directory: Path) -> str:
    """Say what lies in a directory that no engine takes for a model."""
    entries_there = entries(directory)
    if not entries_there:
        return "nothing, or nothing that you may see"
    many = Counter(PurePath(entry).suffix or entry for entry in entries_there)
    kinds = [f"{count} {kind}" if count > 1 else kind for kind, count in many.most_common()]
    return listed(kinds) if len(entries_there) > _FEW else listed(sorted(entries_there))


def directories(directory: Path) -> tuple[Path, ...]:
    """Return the directories in a directory, by name."""
    return tuple(sorted(path for path in _inside(directory) if _is_directory(path)))


def _is_directory(entry: Path) -> bool:
    """Whether it is one for certain: a link may lead where the submitter may not look."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _is_there(entry: Path) -> bool:
    """Whether it is no link that leads nowhere, for certain."""
    try:
        entry.stat()
    except OSError as error:
        return error.errno not in {ENOENT, ELOOP}
    return True


def _inside(directory: Path) -> tuple[Path, ...]:
    try:
        return tuple(directory.iterdir())
    except OSError:
        return ()
