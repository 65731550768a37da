"""Drafts a service's file from a model repository."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.measurements import Measurement
from slicewise.cluster.language.service import AUTO, ServiceSpec, service_spec
from slicewise.cluster.language.token_cost import TokenCost, TokenObjective, cheapest, slice_hours
from slicewise.launcher.rules.autoscale.measured import measured_text
from slicewise.launcher.rules.engines.engine import (
    Engine,
    MeasuredEngine,
    PromptedEngine,
    SlottedEngine,
)
from slicewise.launcher.rules.engines.model_files import ModelNeeds, listed
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.services.apply_plan import SEQUENCES
from slicewise.launcher.services.model_repository import (
    description,
    directories,
    engine_name_of,
    entries,
    files_model_mib,
    repository_needs,
    require_choice,
    require_poolable,
)
from slicewise.launcher.services.service_file import require_pool_engine

_DEFAULT = "triton"
_GIB, _MIB = 1024**3, 1024**2
_REPLICAS = 2
_DEADLINE_S = 60
_LONGEST_NAME = 32
_SNAPSHOTS = "snapshots"
"""Where a cache has a directory for each version of a model, beside ``blobs`` and ``refs``.
https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""


@dataclass(frozen=True)
class Draft:
    """A service's file that is yet to be written.

    Attributes:
        title: its engine's.
        problems: why the repository's models could not be loaded, each with its model's name.
    """

    spec: ServiceSpec
    title: str
    text: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredModels:
    """Figures of ``slicewise profile``, from which GPU type and concurrency are chosen.

    Attributes:
        costs: millislices by GRES type.
        day: when they were measured, as ``2026-11-29``.
    """

    rows: Sequence[Measurement]
    costs: Mapping[str, int]
    objective: TokenObjective
    day: str

    def cheapest(self, model: str) -> TokenCost:
        """Return the cheapest point of a model that keeps the objective.

        Raises InvalidInputError: SW-INPUT-FILE if there are no figures of its tokens, or of
        different requests, SW-SLO-UNREACHABLE if none keeps the objective.
        """
        rows = [row for row in self.rows if row.model == model and row.tokens is not None]
        loads = {row.load for row in rows}
        if len(loads) != 1:
            raise InvalidInputError(
                Code.INPUT_FILE,
                f"The measurements of {model} are of {len(loads) or 'no'} kinds of prompts.",
                "Name a file with figures of its tokens; of others: slicewise mig instances.",
            )
        cost = cheapest(rows, self.costs, self.objective)
        if cost is None:
            raise InvalidInputError(
                Code.SLO_UNREACHABLE,
                f"No measured configuration of {model} keeps the objective.",
                "Raise it, or measure fewer requests at a time or larger types.",
            )
        return cost


@dataclass(frozen=True)
class DraftChoice:
    """What the user has chosen of a draft; "" and None leave it to what is found."""

    tenant: str
    model: str = ""
    name: str = ""
    profile: str = ""
    measured: MeasuredModels | None = None
    partition: str = ""
    model_file: str = ""
    pool: str = ""


def draft(repository: Path, chosen: DraftChoice) -> Draft:
    """Return the file of a service for a model of the repository.

    Raises InvalidInputError: SW-USAGE if there is not one model to choose, SW-SERVICE for
    what can't be a value of a service.
    """
    name, model = _choice(repository, chosen.model)
    engine = ENGINES[name]
    needs_by_model = repository_needs(engine, repository, 1, {model: chosen.model_file})
    needs = needs_by_model[model]
    require_choice(needs)
    keys = _keys(repository.absolute(), name, chosen, needs_by_model, needs)
    if chosen.pool:
        keep_state = (needs_by_model[key] for key in _with_parts(needs_by_model, needs))
        require_poolable(needs, keeps_state=any(each.has_sequences for each in keep_state))
        keys |= _pool_keys(chosen.pool, repository / model)
    spec = service_spec({key: value for key, (value, _) in keys.items()})
    require_pool_engine(spec)
    lines = (f"{_line(key, value)}{note and f'  # {note}'}" for key, (value, note) in keys.items())
    head = (
        "# All keys: slicewise service schema. What it would do: slicewise service apply --dry-run"
    )
    text = "\n".join((head, "[service]", *lines, ""))
    loaded = needs_by_model.values() if engine.loads_all else (needs,)
    problems = (f"{report.name}: {problem}" for report in loaded for problem in report.problems)
    return Draft(spec, engine.title, text, tuple(problems))


def _choice(repository: Path, model: str) -> tuple[str, str]:
    """Return the engine and name of the model that is named, else of the only one that no other
    model runs.
    """
    entries_there = directories(repository)
    kinds = {path.name: kind for path in entries_there if (kind := engine_name_of(path))}
    by_engine = (repository_needs(ENGINES[key], repository, gpus=1) for key in set(kinds.values()))
    parts = {part for needs in by_engine for need in needs.values() for part in need.parts}
    choice = [model] if model else [name for name in kinds if name not in parts]
    if len(choice) == 1 and choice[0] in kinds:
        return kinds[choice[0]], choice[0]
    what = f"no model {model!r}" if model else f"{len(choice) or 'no'} models to choose from"
    unknown = (
        [repository / model]
        if model
        else [path for path in entries_there if path.name not in kinds]
    )
    lies = "" if kinds and not model else listed(tuple(map(_described, unknown)))
    raise InvalidInputError(
        Code.USAGE,
        f"{repository} has {what}{lies and f': {lies}'}.",
        _where(repository, tuple(kinds)),
    )


def _described(directory: Path) -> str:
    if not directory.is_dir():
        return f"there is no {directory.name}"
    return f"in {directory.name} lies {description(directory)}"


def _where(repository: Path, models: Sequence[str]) -> str:
    """Say which model to name, or what would be one."""
    if models:
        return f"Name one, --model: {listed(models)}."
    if engine_name_of(repository):
        name = repository.absolute().name
        return f"It is a model itself: name the directory above it, and --model {name}."
    if inner := _below(repository):
        return f"One is deeper: name {inner.parent.absolute()}, and --model {inner.name}."
    layouts = dict.fromkeys(
        f"{engine.model_layout} ({engine.title})" for engine in ENGINES.values()
    )
    return f"A repository has one directory for each model: {'; '.join(layouts)}."


def _below(repository: Path) -> Path | None:
    """Return a model one directory too deep, or in a cache of Hugging Face's tools."""
    for directory in directories(repository):
        if all(entry.endswith("/") for entry in entries(directory)):
            for inner in (*directories(directory), *directories(directory / _SNAPSHOTS)):
                if engine_name_of(inner):
                    return inner
    return None


Keys = dict[str, tuple[str | int | float, str]]
"""Value and remark, by key."""


def _keys(
    repository: Path,
    engine: str,
    chosen: DraftChoice,
    needs_by_model: Mapping[str, ModelNeeds],
    needs: ModelNeeds,
) -> Keys:
    has_sequences = any(
        needs_by_model[key].has_sequences for key in _with_parts(needs_by_model, needs)
    )
    keys: Keys = {
        "name": (chosen.name or _name(needs.name), ""),
        "tenant": (chosen.tenant, ""),
        "model_repository": (str(repository), ""),
        "model": (needs.name, ""),
        **({"model_file": (chosen.model_file, "")} if chosen.model_file else {}),
        **({"engine": (engine, "")} if engine != _DEFAULT else {}),
        **({"partition": (chosen.partition, "managed")} if chosen.partition else {}),
        "max_replicas": (_REPLICAS, "slots of the job array"),
        "concurrency": _concurrency(needs, has_sequences=has_sequences),
        "deadline_s": (
            _DEADLINE_S,
            "longer than any answer; a replica that hangs is replaced",
        ),
    }
    if chosen.measured is not None:
        keys |= _measured_keys(chosen.measured, needs.name, ENGINES[engine])
    elif chosen.profile:
        keys["profile"] = (chosen.profile, "")
    else:
        size = sum(
            map(_size, (repository / needs.name / file for file in needs.files))
            if not ENGINES[engine].loads_all
            else (_bytes(repository / part) for part in (needs.name, *needs.parts))
        )
        has_figures = isinstance(ENGINES[engine], MeasuredEngine | PromptedEngine)
        by = "; slicewise profile measures it" if has_figures else ""
        remark = f"estimated from {size / _GIB:.1f} GiB of files{by}"
        keys["need_gib"] = (_need_gib(size), remark)
    if has_sequences:
        keys["session_affinity"] = ("sequence", "the model keeps the state of sequences")
    return keys


def _pool_keys(pool: str, model: Path) -> Keys:
    """Return the keys of a service that shares replicas: what a replica is stays with the others.

    No engine says how much memory a model takes, so it is estimated by the files.
    """
    keys: Keys = {"pool": (pool, "shares replicas with services that are alike")}
    model_mib = files_model_mib(model)
    if model_mib is not None:
        remark = f"estimated: 1.2 times {_bytes(model) / _MIB:.0f} MiB of files, not measured"
        keys["model_mib"] = (model_mib, remark)
    return keys


def _measured_keys(measured: MeasuredModels, model: str, engine: Engine) -> Keys:
    """Return what the cheapest point says, and the objective that it keeps.

    With an objective the number of requests at a time is learnt, from what was measured on, unless
    the engine would have fewer slots then than were measured.
    """
    cheapest = measured.cheapest(model)
    cost = f"measured: {slice_hours(cheapest.millislice_s)} slice-hours per million output tokens"
    concurrency: Keys = {"concurrency": (cheapest.row.batch, "as measured")}
    rows = [row for row in measured.rows if (row.model, row.type) == (model, cheapest.row.type)]
    most, figures = max(row.batch for row in rows), measured_text(rows, measured.day)
    has_slots = not isinstance(engine, SlottedEngine) or engine.slots >= most
    if figures and measured.objective.keys and has_slots:
        concurrency = {
            "concurrency": (AUTO, f"learnt from what was measured on: {cheapest.row.batch} there"),
            "measured": (figures, ""),
        }
    return {
        "profile": (cheapest.row.type, cost),
        **concurrency,
        **{name: (bound, "") for name, bound in measured.objective.keys.items()},
    }


def _concurrency(needs: ModelNeeds, *, has_sequences: bool) -> tuple[int | str, str]:
    """Return how many requests a replica takes in parallel, and why.

    A sequence that begins waits in the replica until another one ends, and takes one of these
    places: if it takes the last, the next request of that other one can't come through.
    """
    if has_sequences:
        return SEQUENCES, "more than there are sequences at one time; with fewer they block"
    if needs.batch > 1:
        return AUTO, "learnt: it puts requests that wait together into batches"
    return needs.instances, "as many as the model has instances"


def _with_parts(needs_by_model: Mapping[str, ModelNeeds], needs: ModelNeeds) -> Iterable[str]:
    return (part for part in (needs.name, *needs.parts) if part in needs_by_model)


def _need_gib(size: int) -> float:
    """Return the memory for files of ``size`` bytes, a fifth more and 1 GiB, in halves of a GiB."""
    return ceil(2 * (1 + 1.2 * size / _GIB)) / 2


def _name(model: str) -> str:
    """Return a service's name that resembles the model's."""
    plain = re.sub("[^a-z0-9]+", "-", model.lower())[:_LONGEST_NAME].strip("-")
    return plain or "model"


def _line(key: str, value: object) -> str:
    return f"{key} = {json.dumps(value)}"


def _bytes(directory: Path) -> int:
    """Return the size of all files in a directory; what can't be seen counts nothing."""
    return sum(map(_size, directory.rglob("*")))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0
