"""Reads a service's TOML file and checks it before anything is submitted."""

import os
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import ANY_HOST, ServiceSpec, service_spec
from slicewise.cluster.language.toml_text import read_toml
from slicewise.cluster.runtime.input_file import bounded_text
from slicewise.launcher.rules.engines.engine import MediaFetch, PooledEngine
from slicewise.launcher.rules.engines.model_files import listed
from slicewise.launcher.rules.engines.registry import engine_named
from slicewise.launcher.services.model_repository import directories, entries

TABLE = "service"

KEPT_LOGS = 20
"""Submissions of a service whose logs are kept; at most 16 of them live together."""

_LOG = re.compile(r"(\d+)_\d+\.log(?:\.1)?")


def read_service_file(path: Path) -> ServiceSpec:
    """Return the ``[service]`` table of a file.

    Raises InvalidInputError as ``read_tables`` does, or SW-SERVICE naming each bad key and what is
    allowed.
    """
    content = read_tables(path)
    table = content.get(TABLE)
    if not isinstance(table, dict) or len(content) != 1:
        raise _unreadable(path, "it must hold one table [service] and nothing else")
    return service_spec(table)


def read_tables(path: Path) -> Mapping[str, object]:
    """Return the tables of a file.

    Raises InvalidInputError: SW-SERVICE if it can't be read, SW-VALUE if it is too long.
    """
    try:
        return read_toml(bounded_text(path))
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from None
    except UnicodeDecodeError:
        raise _unreadable(path, "it is not UTF-8 text") from None
    except ValueError as error:
        raise _unreadable(path, f"it is not TOML: {error}") from None


def _unreadable(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.SERVICE, f"{path}: {why}.", "See: slicewise service schema --example"
    )


def require_model(spec: ServiceSpec) -> None:
    """Check the model; raises InvalidInputError (SW-SERVICE-MODEL) if the repository lacks it.

    A model is a directory that its engine takes for one; SW-SERVICE-ENGINE if there is no engine.
    """
    engine = engine_named(spec.engine)
    repository = Path(spec.model_repository)
    if not repository.is_dir():
        raise _no_model(f"model_repository: {repository} is not a directory that you can see here")
    model = repository / spec.model
    if not engine.is_model(entries(model)):
        models = (
            directory
            for directory in directories(repository)
            if engine.is_model(entries(directory))
        )
        names = [model.name for model in models]
        if engine.is_model(entries(repository)):
            raise _no_model(
                f"model_repository: {repository} is a model; write the directory above it, "
                f"{repository.parent}"
            )
        raise _no_model(
            f"model: {repository} holds no model {spec.model!r} ({engine.model_layout}); "
            f"models there: {listed(names) or 'none'}"
        )


def _no_model(message: str) -> InvalidInputError:
    return InvalidInputError(
        Code.SERVICE_MODEL,
        f"{message}.",
        "If only the nodes see that path, add --skip-model-check.",
    )


def require_image(spec: ServiceSpec) -> None:
    """Check the image; raises InvalidInputError (SW-SERVICE-MODEL) for a path that is not there.

    An image that is no path is a name in a registry, which only the nodes can check.
    """
    image = spec.image
    if image is not None and image.startswith("/") and not Path(image).exists():
        raise InvalidInputError(
            Code.SERVICE_MODEL,
            f"image: there is no {image} that you can see here.",
            "If only the nodes see that path, add --skip-model-check.",
        )


def made_logs(spec: ServiceSpec, living: AbstractSet[int]) -> str:
    """Make the directory of the service's logs here; return where Slurm is to write each slot's.

    Logs of all but the ``living`` array jobs and the 20 submissions whose logs were written last
    are deleted, so that a service that is applied often does not fill the directory. Raises
    InvalidInputError (SW-OUTPUT).
    """
    place = Path(logs_of(spec.name))
    try:
        place.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            Code.OUTPUT,
            f"The directory {place} for logs can't be made here: {error.strerror}.",
            "Change to a directory that you can write and the nodes see, and try again.",
        ) from None
    require_writable(place)
    if not place.is_symlink():
        _delete_old(place, living)
    return f"{place}/%A_%a.log"


def _delete_old(place: Path, living: AbstractSet[int]) -> None:
    """Delete what can be deleted; other names than those of Slurm's logs are left alone.

    A replica that has nothing to say has an old log, and writes into it later.
    """
    written_s: dict[str, float] = {}
    logs: list[tuple[str, Path]] = []
    with suppress(OSError):
        for path in place.iterdir():
            if (match := _LOG.fullmatch(path.name)) is None or path.is_symlink():
                continue
            array = match[1]
            written_s[array] = max(written_s.get(array, 0.0), path.stat().st_mtime)
            logs.append((array, path))
    kept = sorted(written_s, key=lambda array: (written_s[array], int(array)))[-KEPT_LOGS:]
    for array, path in logs:
        if array not in kept and int(array) not in living:
            with suppress(OSError):
                path.unlink()


def logs_of(name: str) -> str:
    """Return the name of the directory of a service's logs, where it is applied."""
    return f"{name}.logs"


def current_directory() -> Path:
    """Return the current directory; raises InvalidInputError (SW-OUTPUT) if removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InvalidInputError(
            Code.OUTPUT,
            "The output of jobs goes into the current directory, which has been removed.",
            "Change to a directory that you can write and the nodes see, and try again.",
        ) from None


def require_writable(directory: Path) -> None:
    """Check that Slurm can write logs there; raises InvalidInputError (SW-OUTPUT).

    A task with an output file that can't be opened fails before its script runs, and its slot is
    lost.
    """
    if not os.access(directory, os.W_OK | os.X_OK):
        raise InvalidInputError(
            Code.OUTPUT,
            f"The output of jobs goes into the current directory, {directory}, "
            "where you may not write.",
            "Change to a directory that you can write and the nodes see, and try again.",
        )


def require_media(spec: ServiceSpec) -> None:
    """Check that the engine can fetch media as the file says.

    Raises InvalidInputError (SW-SERVICE).
    """
    engine = engine_named(spec.engine)
    fetch = engine.media_fetch
    if spec.media_domains is None or fetch is MediaFetch.BY_HOST:
        return
    if fetch is MediaFetch.NEVER:
        why, what = f"{engine.title} fetches no media by URL.", "Leave it out."
    elif spec.media_domains != ANY_HOST:
        why = f"{engine.title} can't tell hosts apart."
        what = 'Write "*", and it fetches from all that its node reaches; or leave it out.'
    else:
        return
    raise InvalidInputError(Code.SERVICE, f"media_domains: {why}", what)


def require_pool_engine(spec: ServiceSpec) -> None:
    """Check that replicas of a pool can serve models of each other.

    Raises InvalidInputError (SW-SERVICE).
    """
    engine = engine_named(spec.engine)
    if spec.pool is not None and not isinstance(engine, PooledEngine):
        raise InvalidInputError(
            Code.SERVICE,
            f"pool: {engine.title} can't load and unload models while it serves.",
            'Leave it out, or write engine = "triton" or "llamacpp".',
        )
