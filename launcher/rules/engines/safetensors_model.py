"""Says of a directory whether it is a model as Hugging Face's tools save one, and what it lacks.

That is ``config.json`` and weights in safetensors; a large model has its weights in several files,
and an index of them. The index says which files there are. Their names do not: publishers count
from 0 or 1, pad numbers to any width or not at all, and leave a number behind ``-of-`` that was
never the number of files.
https://huggingface.co/docs/transformers/main/en/models#sharded-checkpoints
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise

from slicewise.launcher.rules.engines.model_files import ModelFiles, ModelNeeds, listed

LAYOUT = "a directory with config.json and .safetensors files"
INDEXES = ("model.safetensors.index.json", "consolidated.safetensors.index.json")
"""Names of an index, of which the first that is there counts."""
CONFIG, _SUFFIX = "config.json", ".safetensors"
_ADAPTER, _CONSOLIDATED = "adapter_model", "consolidated"
"""Beginnings of files that lie beside a model's weights: an adapter of it; the weights once more,
in the format of their maker."""
_PART = re.compile(r"(.+)-([0-9]+)-of-([0-9]+)\.safetensors")
_MOST_NAMED = 1000
"""Missing files that are named at most; a number in a name may be as large as a name is long."""


def is_model(entries: frozenset[str]) -> bool:
    """Whether a directory with these entries holds a model."""
    return CONFIG in entries and bool(_weights(entries) or entries & set(INDEXES))


def model_needs(files: ModelFiles) -> ModelNeeds:
    """Return the model's files, and which are missing."""
    index = files.index
    weights = _weights(files.entries) if index is None else index.files
    needed = (CONFIG, *(() if index is None else (index.name,)), *weights)
    return ModelNeeds(files.name, files=needed, problems=tuple(_problems(files, weights)))


def _weights(entries: Iterable[str]) -> tuple[str, ...]:
    """Return the files that an engine would load where no index names them."""
    safetensors = [
        entry for entry in entries if entry.endswith(_SUFFIX) and not entry.startswith(_ADAPTER)
    ]
    own = [name for name in safetensors if not name.startswith(_CONSOLIDATED)]
    return tuple(sorted(own or safetensors))


def _problems(files: ModelFiles, weights: Sequence[str]) -> Iterator[str]:
    if CONFIG not in files.entries:
        yield f"no {CONFIG}"
    elif files.trouble:
        yield f"{CONFIG}: {files.trouble}"
    if files.index is None:
        if not weights:
            yield f"no {_SUFFIX} file"
        missing = list(islice(_gaps(weights), _MOST_NAMED))
    elif files.index.trouble:
        yield f"{files.index.name}: {files.index.trouble}"
        return
    else:
        missing = [weight for weight in weights if weight not in files.entries]
    if missing:
        yield f"no {listed(missing)}"


def _gaps(weights: Iterable[str]) -> Iterator[str]:
    """Yield files whose numbers lie between those of others, or before the first one, which is 0 or
    1: of a last one that is missing there is no proof.
    """
    # A model may have a second set of files beside its own, such as those of its vision tower.
    sets: dict[tuple[str, str], list[str]] = {}
    for part in filter(None, map(_PART.fullmatch, weights)):
        sets.setdefault((part[1], part[3]), []).append(part[2])
    for (name, count), texts in sorted(sets.items()):
        width = len(texts[0]) if any(text.startswith("0") for text in texts) else 0
        numbers = sorted(map(int, texts))
        begin = min(0, numbers[0] - 1)
        for before, after in pairwise((begin, *numbers)):
            for number in range(before + 1, after):
                yield f"{name}-{number:0{width}d}-of-{count}{_SUFFIX}"
