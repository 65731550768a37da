"""Says of a directory which model llama.cpp would serve from it, and why there is none.

A large model may be split into files ``NAME-00001-of-00003.gguf`` ...; llama.cpp finds the others
by the first (its tool gguf-split).
"""

import re
from collections.abc import Sequence

from launcher.engines.model_files import ModelFiles, ModelNeeds

_SUFFIX = ".gguf"
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")


def is_model(entries: frozenset[str]) -> bool:
    """Whether a directory with these entries holds a model."""
    return any(one.endswith(_SUFFIX) for one in entries)


def model_needs(files: ModelFiles) -> ModelNeeds:
    """Return the model's files, and why llama.cpp can't load them."""
    found = tuple(sorted(one for one in files.entries if one.endswith(_SUFFIX)))
    if not found:
        return ModelNeeds(files.name, problems=(f"no {_SUFFIX} file",))
    return ModelNeeds(files.name, files=found, problems=_problems(found))


def _problems(found: Sequence[str]) -> tuple[str, ...]:
    parts = [_PART.fullmatch(one) for one in found]
    if len(found) == 1 and parts[0] is None:
        return ()
    models = {(part[1], part[3]) if part else ("", "") for part in parts}
    if len(models) > 1 or None in parts:
        return (f"several models: {', '.join(found)}; give each a directory of its own",)
    ((name, count),) = models
    wanted = (f"{name}-{number:05d}-of-{count}{_SUFFIX}" for number in range(1, int(count) + 1))
    return tuple(f"no {one}" for one in wanted if one not in found)
