"""What a directory of a model repository holds, and what its engine needs to serve it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from slicewise.cluster.language.documents import HIDDEN, TextOrNull

_SHOWN = 4


def listed(names: Sequence[str]) -> str:
    """Return names as people read them: the first of a long list, and how many more there are."""
    others = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{others}"


@dataclass(frozen=True)
class ModelIndex:
    """The index of a model whose weights lie in several files.

    Attributes:
        name: the index's own file.
        files: the files that it names, in order.
        trouble: why it can't be read, in words for users; "" if it can.
    """

    name: str
    files: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class ModelFiles:
    """A directory of a model repository.

    Attributes:
        name: the directory's.
        entries: what is in it; names of directories end with /.
        versions: what is in each of its directories that has a number for a name, by that name.
        config: the content of its configuration, by the configuration's own keys; None without one.
        trouble: why its configuration can't be read; "" if it can, or if there is none.
        index: the index of its weights; None without one.
        chosen: the file that its service's ``model_file`` names; "" if it names none.
    """

    name: str
    entries: frozenset[str]
    versions: Mapping[str, frozenset[str]] = field(hash=False)
    config: Mapping[str, Any] | None = field(default=None, hash=False)
    trouble: str = ""
    index: ModelIndex | None = None
    chosen: str = ""


@dataclass(frozen=True)
class ModelNeeds:
    """What a model needs, as its directory says.

    Attributes:
        backend: the part of the engine that runs it; "" if that is not known.
        kinds: on what its instances run, in the engine's words.
        instances: how many requests it works on at the same time.
        versions: versions that are served.
        files: files that these versions need, relative to the model's directory.
        inputs, outputs: names and types of its tensors, as far as configured.
        has_sequences: whether it keeps state from one request of a sequence to the next.
        is_decoupled: whether it answers a request by a stream.
        parts: other models of the repository that it runs.
        problems: why the engine can't load it, in words for users.
        notes: what a user should know besides.
        batch: how many requests an instance works on together, where the engine gathers them.
        choices: of several models in its directory, of which the service must name one, the file
            of each.
    """

    name: str
    backend: TextOrNull = ""
    kinds: tuple[str, ...] = ()
    instances: int = 1
    versions: tuple[int, ...] = ()
    files: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    has_sequences: bool = False
    is_decoupled: bool = False
    parts: tuple[str, ...] = ()
    problems: Annotated[tuple[str, ...], HIDDEN] = ()
    notes: Annotated[tuple[str, ...], HIDDEN] = ()
    batch: Annotated[int, HIDDEN] = 1
    choices: Annotated[tuple[str, ...], HIDDEN] = ()
