"""Says of a directory which model llama.cpp would serve from it, and why there is none.

A large model may be split into files ``NAME-00001-of-00003.gguf`` ...; llama.cpp finds the others
by the first (its tool gguf-split), so these numbers are true. A directory as it is published may
have the model several times, in other precisions, and files of the same format that are none.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention
"""

import re
from collections.abc import Iterable, Sequence

from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelNeeds, listed

_SUFFIX = ".gguf"
_PART = re.compile(r"(.+)-([0-9]+)-of-([0-9]+)\.gguf")
_WIDTH = 5
BESIDE = "(^|[-_.])(mmproj|imatrix|lora|vocab)[-_.]"
"""In the names of files that are no model, whatever the case: what reads its images, what it was
quantised by, an adapter, a tokenizer. The batch script finds them by the same expression."""
_PROJECTOR = "mmproj"


def is_model(entries: frozenset[str]) -> bool:
    """Whether a directory with these entries holds a model."""
    return any(entry.endswith(_SUFFIX) for entry in entries)


def model_needs(files: ModelFiles) -> ModelNeeds:
    """Return the model's files, and why llama.cpp can't load them."""
    files_found = sorted(entry for entry in files.entries if entry.endswith(_SUFFIX))
    models = _models(files_found)
    if files.chosen:
        models = {
            name: parts
            for name, parts in _models(files_found, "$^").items()
            if files.chosen in parts
        }
    choices = tuple(parts[0] for parts in models.values()) if len(models) > 1 else ()
    if choices:
        problem = f"several models: {listed(choices)}; name one, model_file, or part them"
    elif files.chosen:
        problem = "" if models else f"model_file: no {files.chosen}"
    elif files_found:
        problem = "" if models else f"no weights beside {listed(files_found)}"
    else:
        problem = f"no {_SUFFIX} file"
    if problem:
        return ModelNeeds(
            files.name, files=tuple(files_found), problems=(problem,), choices=choices
        )
    (parts,) = models.values()
    problems = _problems(parts, files.chosen)
    return ModelNeeds(files.name, files=tuple(parts), problems=problems, notes=_notes(files_found))


def parts_pattern(file: str) -> str:
    """Return a pattern, as the shell's, of all files of the model whose file, or part, that is."""
    part = _PART.fullmatch(file)
    return f"{part[1]}-{'?' * len(part[2])}-of-{part[3]}{_SUFFIX}" if part else file


def _models(names: Iterable[str], beside: str = BESIDE) -> dict[tuple[str, str], list[str]]:
    """Return the files of each model, by its name and how many it says that there are."""
    models: dict[tuple[str, str], list[str]] = {}
    for name in names:
        if not re.search(beside, name, re.IGNORECASE):
            part = _PART.fullmatch(name)
            models.setdefault((part[1], part[3]) if part else (name, ""), []).append(name)
    return models


def _problems(parts: Sequence[str], chosen: str) -> tuple[str, ...]:
    part = _PART.fullmatch(parts[0])
    if part is None:
        return ()
    name, count = part[1], part[3]
    if {len(part[2]), len(count)} != {_WIDTH} or not int(count):
        such = f"{name}-00001-of-{max(1, int(count)):05d}{_SUFFIX}"
        return (f"llama.cpp finds parts by names such as {such}",)
    wanted = [f"{name}-{number:05d}-of-{count}{_SUFFIX}" for number in range(1, int(count) + 1)]
    if missing := [part for part in wanted if part not in set(parts)]:
        return (f"no {listed(missing)}",)
    if chosen and chosen != wanted[0]:
        return (f"model_file: {chosen} is no first part: say {wanted[0]}",)
    return ()


def _notes(names: Iterable[str]) -> tuple[str, ...]:
    projectors = [name for name in names if _PROJECTOR in name.lower()]
    closed = "is not loaded, so images are refused: environment may name its path, LLAMA_ARG_MMPROJ"
    return (f"{listed(projectors)} {closed}",) if projectors else ()
