"""Write the reference pages that follow from the code: ``python -m docs.generate``.

They are not committed: `make docs` and the packages write them, and .gitignore names them. The
dashboards of Grafana are committed, since programs read them, and compared by a test.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_command, get_group

from docs import dashboards, error_codes, promises, slurm_matrix, wire_api
from slicewise.cluster.language.exit_codes import MEANINGS, ExitCode
from slicewise.cluster.language.service import ServiceSpec, allowed_words
from slicewise.cluster.runtime.metric_catalogue import LABELS
from slicewise.cluster.settings.engines import EngineSettings
from slicewise.cluster.settings.file import Settings
from slicewise.launcher.cli.command_table import FOR_EVERYBODY, FOR_OPERATORS, Command
from slicewise.launcher.cli.json_outputs import JSON_VERSION, OUTPUTS, schema_of
from slicewise.launcher.cli.service import EXAMPLE
from slicewise.launcher.process.metric_catalogue import METRICS as OF_LAUNCHER
from slicewise.launcher.rules.engines.least_versions import LAST_LOOK, LEAST_VERSIONS
from slicewise.launcher.rules.engines.registry import OWN_ENGINES
from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS as OF_DAEMON

FOLDER = Path(__file__).parent / "reference"
_MADE = "<!-- Written by docs/generate.py from the code. -->"
_DOCUMENT = re.compile(r"docs/([a-z-]+/[a-z-]+)\.md")

_COMMANDS = """\
# Commands

Every command of Slicewise, with its arguments, options and examples. All are parts of one
executable, `slicewise`; `--help` of each says the same. `-h` is short for it, but for sbatch's.
A failure has an [error code](errors.md), and an [exit code](exit-codes.md) by its kind.

Where an option takes a TIME such as `--since`, `--from`, `--until` or `--expires`, it takes a day
or month (`2026-01-31`, `2026-01`), a time (`2026-01-31T18:30`, local unless it names a zone),
`today`, `yesterday`, or a span (`90s`, `30m` or `30min`, `12h`, `7d`, `2w`): that long ago, for
`--expires` from now. The calendar's `--first` and `--last` take the same in the
ledger's zone, spans from now; a day or month as `--last` is all in the window.
"""
_ENGINE_VERSIONS = """\
# Engine versions

Run no older engine: what replicas serve reaches it, clients' requests first of all. Slicewise asks
each replica for its version when it becomes ready. The launcher warns of an older one
(`engine_too_old` in its log), `service status` shows it to the owner, and `doctor` names its
services, and on a node an older one that is installed there (SW-VERSION). It stops nothing.

The publishers' bulletins were looked through last on {day}.
"""
_EXIT_CODES = """\
# Exit codes

How a command ended, by its exit code. It follows from the [error code](errors.md) alone, so all
commands have the same. `slicewise sbatch` has sbatch's own exit codes.
"""
_JSON_ERRORS = """\
## Errors as JSON

With `--json` a command that fails writes one line of JSON on stderr, its last, in place of the
words; stdout has what it had found, or nothing. So have usage errors (SW-USAGE).

```json
{"code": "SW-SERVICE-UNKNOWN", "message": "...", "hint": "...", "exit_code": 3}
```

`code` is stable. `hint` says what to do, and is "" if there is nothing to suggest.
"""
_JSON_OUTPUT = f"""\
# JSON output

What each command prints with `--json`, as JSON schemas of version {JSON_VERSION}. Each is one
document on stdout; `service logs` and `service status --watch` print one on each line (NDJSON).
`slicewise schema COMMAND` prints its schema, [json-schemas.json](json-schemas.json) has all of
them. Failures: [errors as JSON](exit-codes.md).

Keys may be added to a version: readers leave unknown ones alone. None goes, and none gets another
type or meaning, without a new version. `_millislices` are thousandths of a slice, `_s` seconds or
Unix seconds; null is not known or not set.

"""
_CONFIGURATION = """\
# slicewise.toml

Every setting, with what it may hold, its default and its meaning. One file serves the daemon, the
launcher and the commands: /etc/slicewise/slicewise.toml, or `$SLICEWISE_CONFIG`. It holds no
secret. An unknown key is refused with its name (SW-SETTINGS).
[etc/slicewise.toml](../../etc/slicewise.toml) is an example.

The end of a name is its unit: `_s` seconds, `_h` hours, `_gib` and `_mib` 2³⁰ and 2²⁰ bytes,
`_per_s` a number per second. A slice is a seventh of a GPU of weight 1.
"""
_SERVICE_FILE = """\
# The service file

Every key of a service file and of `#SLICEWISE` lines in a batch script. A service is one table,
`[service]`, of a TOML file. `slicewise service schema` prints the same keys,
`slicewise service schema --example` such a file. How to use it: [services](../how-to/services.md).
"""
_IN_A_SCRIPT = """\
## In a batch script

`#SLICEWISE key=value` lines before a script's first command say the same, with the same keys.
Tables are percent-encoded there: `environment=A=1&B=two%20words`, `adapters=legal=adapters/legal`,
1900 bytes each at most.
`slicewise service render FILE` prints such a script. The first 64 lines count, in the first 64 KiB,
each of 2048 bytes at most. Lines without `name=` belong to a plain job, which has two keys:

| key | value | meaning |
| --- | --- | --- |
| `need` | such as `9.5GiB` or `512MiB` | GPU memory that each of the job's GPUs must have |
| `class` | `low`, `normal` or `high` | its class, for its [priority](../explanation/priority.md) |
"""
_METRICS = """\
# Metrics

Every metric of the daemon and the launcher. They serve Prometheus text by HTTP at `daemon.metrics`
and `launcher.metrics`, if these are set. They ask for no credentials and show tenants' names and
use: listen on 127.0.0.1, or where only Prometheus reaches them. 1000 millislices are a slice.

Names follow Prometheus' conventions: a name ends with its unit, that of a counter with `_total`.
Counters that alerts look at are there with 0 from the start, of the launcher's errors those of
daemon and gateway: so `increase` sees the first event. What Prometheus computes of all this:
[recording rules](../how-to/monitoring.md#recording-rules).
"""
_LABELS = """\
## Labels

What the values of a label are: nothing that a client sends becomes one. A service's name is its
tenant's choice, but only services that the gateway carries have series.
"""


def pages() -> Mapping[str, str]:
    """The text of each page, by the name of its file."""
    made: Mapping[str, Iterable[str]] = {
        "commands.md": _commands(),
        "engine-versions.md": _engine_versions(),
        "errors.md": error_codes.page(),
        "exit-codes.md": _exit_codes(),
        "json-output.md": _json_output(),
        "configuration.md": _configuration(),
        "service-file.md": _service_file(),
        "metrics.md": _metrics(),
        "promises.md": promises.page(),
        "wire-api.md": wire_api.page(),
    }
    text = {name: "\n".join((_MADE, "", *lines)).rstrip() + "\n" for name, lines in made.items()}
    schemas = {name: schema_of(name) for name in OUTPUTS}
    return {
        **text,
        "slurm-matrix.md": f"{_MADE}\n\n{slurm_matrix.page()}\n",
        "openapi.json": wire_api.document(),
        "json-schemas.json": json.dumps(schemas, indent=1, ensure_ascii=False) + "\n",
    }


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    heads = tuple(heads)
    for row in (heads, ("---",) * len(heads), *rows):
        cells = " | ".join(cell.replace("|", r"\|") for cell in row)
        yield f"| {cells} |"
    yield ""


def _commands() -> Iterator[str]:
    yield _COMMANDS
    for panel, commands in (("For everybody", FOR_EVERYBODY), ("For operators", FOR_OPERATORS)):
        yield from (f"## {panel}", "")
        for name, one in commands.items():
            yield from _command(f"slicewise {name}", loaded(one), 3)


def _exit_codes() -> Iterator[str]:
    yield _EXIT_CODES
    meanings = ((f"{int(code)}", *MEANINGS[code]) for code in ExitCode)
    yield from _table(("exit code", "what happened", "what to do"), meanings)
    yield _JSON_ERRORS


def _json_output() -> Iterator[str]:
    yield _JSON_OUTPUT
    rows = ((f"`{name}`", " or ".join(_printed(schema_of(name)))) for name in OUTPUTS)
    yield from _table(("command", "prints"), rows)


def _printed(schema: Mapping[str, Any]) -> Iterator[str]:
    for one in schema.get("anyOf", (schema,)):
        if "items" in one:
            yield f"list of: {' or '.join(_printed(one['items']))}"
        elif "properties" in one:
            yield ", ".join(f"`{key}`" for key in one["properties"])
        else:
            yield "text"


def loaded(one: Command) -> Any:
    """As ``slicewise.launcher.main.loaded``, without what fits the help to terminals."""
    module, _, attribute = one.place.partition(":")
    target = getattr(import_module(module), attribute)
    if not isinstance(target, typer.Typer):
        alone = typer.Typer()
        alone.command(epilog=one.epilog)(target)
        target = alone
    target._add_completion = False  # noqa: SLF001 -- only the executable itself installs it
    is_tree = isinstance(target.info.help, str)
    return get_group(target) if is_tree else get_command(target)


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    if command.hidden:
        return
    yield from (f"{'#' * level} {name}", "", flowed(command.help), "")
    children = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        context = typer.Context(command, info_name=name)
        pieces = command.collect_usage_pieces(context)
        yield from ("```text", " ".join((name, *pieces)), "```", "")
        records = [one.get_help_record(context) for one in command.params]
        rows = [(f"`{one[0]}`", flowed(one[1])) for one in records if one is not None]
        if rows:
            yield from _table(("argument or option", "meaning"), rows)
    heading, _, examples = (command.epilog or "").partition(": ")
    if heading in {"Example", "Examples"}:
        yield from ("```sh", *examples.split(" | "), "```", "")
    elif command.epilog:
        yield from (command.epilog, "")
    for word, child in children.items():
        yield from _command(f"{name} {word}", child, level + 1)


def flowed(text: str | None) -> str:
    """Return a docstring or help text with one line for each paragraph."""
    paragraphs = cleandoc(text or "").split("\n\n")
    return "\n\n".join(" ".join(one.split()) for one in paragraphs)


def _configuration() -> Iterator[str]:
    yield _CONFIGURATION
    yield from _section("", Settings)


_PLACES = {
    "gpus": 'gpus."MODEL"',
    "gateway.limits.tenants": "gateway.limits.tenants.NAME",
    "engines": "engines.NAME",
}


def _section(place: str, model: type[BaseModel]) -> Iterator[str]:
    parts = {
        name: found
        for name, field in model.model_fields.items()
        if (found := _part(field.annotation))
    }
    if place:
        yield from (f"## [{place}]", "")
        if words := re.sub(r"^\[[^]]*\](: )?", "", flowed(model.__doc__)):
            yield from (_linked(words[0].upper() + words[1:]), "")
        own = {name: one for name, one in model.model_fields.items() if name not in parts}
        yield from _table(
            ("key", "value", "default", "meaning"),
            (
                (f"`{name}`", _kind(one.annotation, one.metadata), _default(one), _said(one))
                for name, one in own.items()
            ),
        )
    if model is EngineSettings:
        yield from _engines()
    for name, part in parts.items():
        below = f"{place}.{name}".removeprefix(".")
        if issubclass(part, BaseModel):
            yield from _section(_PLACES.get(below, below), part)
    if not place:
        qos = model.model_fields["qos"]
        yield from ("## [qos]", "", _said(qos), "")
        yield from ("A key is the name of a QOS, a value `low`, `normal` or `high`:", "")
        yield from ("```toml", "[qos]", 'urgent = "high"', 'scavenger = "low"', "```", "")


def _engine_versions() -> Iterator[str]:
    """Which version of each engine is the least, and by whose word."""
    yield from (_ENGINE_VERSIONS.format(day=LAST_LOOK),)
    yield from _table(
        ("engine", "least version", "newest bulletin", "what is known of older ones"),
        (
            (title, one.release, f"[bulletin]({one.bulletin})", one.holes)
            for title, one in LEAST_VERSIONS.items()
        ),
    )


def _engines() -> Iterator[str]:
    """What the engines that come with Slicewise say of themselves."""
    keys = ("command", "image_command", "private_shm")
    yield from _table(
        ("engine", *(f"`{key}`" for key in keys)),
        (
            (f"`{name}`", *(f"`{json.dumps(getattr(OWN_ENGINES[name], key))}`" for key in keys))
            for name in OWN_ENGINES
        ),
    )


def _part(annotation: Any) -> type[BaseModel] | None:
    """The model of a table, or of the tables of a table."""
    found = get_args(annotation)[1] if get_origin(annotation) is Mapping else annotation
    is_model = isinstance(found, type) and issubclass(found, BaseModel)
    return found if is_model else None


def _linked(text: str) -> str:
    return _DOCUMENT.sub(r"[\1](../\1.md)", text)


def _said(field: FieldInfo) -> str:
    return _linked(field.description or "")


_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    Decimal: "number",
    Fraction: 'number or "3/2"',
}
_BOUNDS = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}


def _kind(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """What a key may hold, in words."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        flat = [item for one in more for item in getattr(one, "metadata", (one,))]
        return _kind(inner, [*flat, *metadata])
    if get_origin(annotation) is Literal:
        words = " or ".join(json.dumps(one) for one in get_args(annotation))
    elif get_origin(annotation) is tuple:
        words = f"list: {_kind(get_args(annotation)[0])}"
    elif (options := get_args(annotation)) and get_origin(annotation) is not Mapping:
        words = " or ".join(_kind(one) for one in options if one is not NoneType)
    else:
        words = _WORDS.get(annotation, "table")
    bounds = [
        form.format(_plain(getattr(one, key)))
        for one in metadata
        for key, form in _BOUNDS.items()
        if getattr(one, key, None) is not None
    ]
    return f"{words}, {' '.join(bounds)}" if bounds else words


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value == ():
        return "unset"
    if isinstance(value, tuple):
        value = list(value)
    elif not isinstance(value, bool | int | float):
        value = str(value)
    return f"`{json.dumps(value)}`"


def _service_file() -> Iterator[str]:
    yield _SERVICE_FILE
    yield from ("```toml", *EXAMPLE.strip().splitlines(), "```", "")
    yield from ("## Keys", "")
    yield from _table(
        ("key", "value", "default", "meaning"),
        (
            (f"`{name}`", allowed_words()[name], _default(field), _said(field))
            for name, field in ServiceSpec.model_fields.items()
        ),
    )
    yield _IN_A_SCRIPT


def _metrics() -> Iterator[str]:
    yield _METRICS
    for title, metrics in (("The daemon", OF_DAEMON), ("The launcher", OF_LAUNCHER)):
        yield from (f"## {title}", "")
        rows = (
            (
                f"`{one.name}`",
                one.kind,
                one.unit.replace("_", "-") or "–",
                ", ".join(f"`{name}`" for name in one.labels) or "–",
                one.text,
            )
            for one in sorted(metrics.values(), key=lambda one: one.name)
        )
        yield from _table(("metric", "type", "unit", "labels", "meaning"), rows)
    yield _LABELS
    bounds = ((f"`{name}`", text) for name, text in LABELS.items())
    yield from _table(("label", "its values"), bounds)


if __name__ == "__main__":
    for _name, _text in pages().items():
        (FOLDER / _name).write_text(_text, encoding="utf-8")
    for _name, _text in dashboards.files().items():
        (dashboards.FOLDER / _name).write_text(_text, encoding="utf-8")
