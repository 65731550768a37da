"""Says of a directory whether it is a model as Hugging Face's tools save one, and what it lacks.

That is ``config.json`` and weights in safetensors; a large model has its weights in files
``NAME-00001-of-00003.safetensors`` ... and an index of them.
https://huggingface.co/docs/transformers/main/en/models#sharded-checkpoints
"""

import re
from collections.abc import Iterator, Sequence

from launcher.engines.model_files import ModelFiles, ModelNeeds

LAYOUT = "a directory with config.json and .safetensors files"
_CONFIG, _SUFFIX = "config.json", ".safetensors"
_PART = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.safetensors")


def is_model(entries: frozenset[str]) -> bool:
    """Whether a directory with these entries holds a model."""
    return _CONFIG in entries and any(one.endswith(_SUFFIX) for one in entries)


def model_needs(files: ModelFiles) -> ModelNeeds:
    """Return the model's files, and which are missing."""
    weights = tuple(sorted(one for one in files.entries if one.endswith(_SUFFIX)))
    needed = (_CONFIG, *weights)
    return ModelNeeds(files.name, files=needed, problems=tuple(_problems(files, weights)))


def _problems(files: ModelFiles, weights: Sequence[str]) -> Iterator[str]:
    if _CONFIG not in files.entries:
        yield f"no {_CONFIG}"
    if not weights:
        yield f"no {_SUFFIX} file"
    parts = [part for part in map(_PART.fullmatch, weights) if part is not None]
    # A model may have a second set of files beside its own, such as those of its vision tower.
    for name, count in sorted({(part[1], part[3]) for part in parts}):
        for number in range(1, int(count) + 1):
            wanted = f"{name}-{number:05d}-of-{count}{_SUFFIX}"
            if wanted not in weights:
                yield f"no {wanted}"
