"""Reads slicewise.toml, and what the environment says in its place."""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.toml_text import read_toml
from slicewise.cluster.settings.file import DatabaseSettings, LauncherSettings, Settings

CONFIG_VARIABLE = "SLICEWISE_CONFIG"
DATABASE_VARIABLE = "SLICEWISE_DATABASE_URL"
LAUNCHER_DATABASE_VARIABLE = "SLICEWISE_LAUNCHER_DATABASE_URL"
DEFAULT_CONFIG = Path("/etc/slicewise/slicewise.toml")
DEVICES_VARIABLE = "SLICEWISE_DEVICES"
"""Set by the sandbox, whose nodes share one /dev: where each node's device files are, with %n in
place of the node's name."""


def settings_file(path: Path | None = None) -> Path:
    """``path``, or $SLICEWISE_CONFIG, or /etc/slicewise/slicewise.toml."""
    return path or Path(os.environ.get(CONFIG_VARIABLE, DEFAULT_CONFIG))


def load_settings(path: Path | None = None) -> Settings:
    """Read and check the ``settings_file``.

    Raises InvalidInputError (SW-SETTINGS) naming the file, the key and what is wrong with it.
    """
    place = settings_file(path)
    try:
        settings = Settings.model_validate(read_toml(place.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise InvalidInputError(
            Code.SETTINGS,
            f"{place} does not exist.",
            f"Copy it from slurmctld's host (an example: /usr/share/slicewise/slicewise.toml), "
            f"or set {CONFIG_VARIABLE}.",
        ) from None
    except OSError as error:
        raise InvalidInputError(Code.SETTINGS, f"{place}: {error.strerror}.") from None
    except InvalidInputError as error:
        refusal = error.refusal
        raise InvalidInputError(
            Code.SETTINGS, f"{place}: gpus: {refusal.message}", refusal.hint
        ) from None
    except ValidationError as error:
        problems = "; ".join(_problem(item) for item in error.errors())
        raise InvalidInputError(Code.SETTINGS, f"{place}: {problems}.") from None
    except ValueError as error:  # Also of what is no UTF-8.
        raise InvalidInputError(Code.SETTINGS, f"{place} is not TOML: {error}.") from None
    return settings


def _problem(item: Any) -> str:
    key = ".".join(str(part) for part in item["loc"])
    message = str(item["msg"]).removeprefix("Value error, ")
    if item["type"] == "missing":
        return f"{key}: missing"
    if item["type"] == "extra_forbidden":
        return f"{key}: {_no_key(item['loc'])}"
    return message if not key else f"{key}: {message}, not {item.get('input')!r}"


def _no_key(place: Sequence[str | int]) -> str:
    """Say which key is meant by one that does not exist: the nearest, and all beside it."""
    *above, key = map(str, place)
    names = _keys(Settings, above)
    near = get_close_matches(key, names, n=1)
    meant = f", but there is {near[0]}" if near else ""
    of_section = f" of [{'.'.join(above)}]" if above else ""
    return f"there is no such key{meant}; keys{of_section}: {', '.join(names)}"


def _keys(section: type[BaseModel], place: Sequence[str]) -> Sequence[str]:
    """Return the keys of the section at ``place`` below ``section``; of a table, of its entries."""
    for name in place:
        field = section.model_fields.get(name)
        section = (field and _section_in(field.annotation)) or section
    return tuple(section.model_fields)


def _section_in(kind: Any) -> type[BaseModel] | None:
    """Return the section in a type, such as EngineSettings in Mapping[str, EngineSettings]."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next(filter(None, map(_section_in, get_args(kind))), None)


def database_url(settings: DatabaseSettings) -> str:
    """The ledger's URL: $SLICEWISE_DATABASE_URL first, then [database] url_file.

    There is no default. Raises InvalidInputError (SW-SETTINGS) if neither is set, or if the
    file can't be read; only operators can read it.
    """
    url = os.environ.get(DATABASE_VARIABLE, "")
    if not url and settings.url_file is not None:
        hint = (
            "This is a command for operators: only they may read the file."
            " For your tenants: slicewise why TENANT, budget show, ledger statement"
        )
        url = _url_in(settings.url_file, "database", DATABASE_VARIABLE, hint)
    if not url:
        raise InvalidInputError(
            Code.SETTINGS,
            "No ledger database is configured.",
            f"Set {DATABASE_VARIABLE} to postgresql://..., or [database] url_file.",
        )
    return url


def launcher_database_url(settings: LauncherSettings) -> str:
    """The URL of the launcher's own database; "" if none is configured.

    $SLICEWISE_LAUNCHER_DATABASE_URL first, then [launcher] url_file. Raises InvalidInputError
    (SW-SETTINGS) if the file can't be read.
    """
    url = os.environ.get(LAUNCHER_DATABASE_VARIABLE, "")
    if url or settings.url_file is None:
        return url
    hint = "It must belong to the user that runs the launcher (daemon.launcher_user)."
    return _url_in(settings.url_file, "launcher", LAUNCHER_DATABASE_VARIABLE, hint)


def _url_in(file: Path, section: str, variable: str, denied_hint: str) -> str:
    try:
        if url := file.read_text(encoding="utf-8").strip():
            return url
        why = "it is empty"  # As after an editor on a full disk.
    except PermissionError as error:
        raise InvalidInputError(
            Code.SETTINGS, f"{section}.url_file {file}: {error.strerror}.", denied_hint
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = str(error.strerror) if isinstance(error, OSError) else "not UTF-8 text"
    raise InvalidInputError(
        Code.SETTINGS,
        f"{section}.url_file {file}: {why}.",
        f"Write postgresql://... into it, or set {variable}.",
    )


def devices_directory(node: str) -> str:
    """The directory of this node's device files."""
    return os.environ.get(DEVICES_VARIABLE, "/dev").replace("%n", node)
