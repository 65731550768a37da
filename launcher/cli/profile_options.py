"""Options of ``slicewise profile``."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.rpc.own_tenant import complete_tenant, typed_account
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.rules.engines.engine import MeasuredEngine, PromptedEngine
from slicewise.launcher.rules.profiling.figures import ProfileTask
from slicewise.launcher.rules.profiling.token_figures import TokenTask

_MOST_BATCH, _MOST_PROCESSES, _MOST_CONCURRENCY = 4096, 64, 1024
_USUAL = (1, 2, 4, 8, 16, 32)
_SECONDS, _TOKEN_SECONDS = 10.0, 30.0
_PROMPT_TOKENS, _OUTPUT_TOKENS = 1024, 128
_MOST_TOKENS = 1_000_000


def _counts(most: int) -> Callable[[str], tuple[int, ...]]:
    """Return a parser of options such as ``1,2,4``: numbers in order, none twice."""

    def parse(text: str) -> tuple[int, ...]:
        parts = text.split(",")
        if not all(part.isascii() and part.isdigit() and 0 < int(part) <= most for part in parts):
            raise typer.BadParameter(f"{text!r}: write numbers from 1 to {most} as 1,2,4.")
        return tuple(sorted({int(part) for part in parts}))

    return parse


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{text!r}: write NAME=VALUE.")
    return name, value


def complete_type(incomplete: str) -> list[str]:
    """Return the GRES types that begin so."""
    with suppress(SlicewiseError):
        return sorted(name for name in load_settings().models if name.startswith(incomplete))
    return []


Repository = Annotated[
    Path, typer.Option(help="Model repository in the engine's layout, which the nodes can read.")
]
ModelFile = Annotated[
    str | None,
    typer.Option(
        help="The .gguf file, if the model's directory has several models.", show_default=False
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Engine of the model; the first that takes its directory if left out.",
        show_default=False,
    ),
]
Types = Annotated[
    str | None,
    typer.Option(
        help="GRES types; all types of the cluster if left out.",
        show_default=False,
        autocompletion=complete_type,
    ),
]
Batches = Annotated[
    Any,
    typer.Option(
        parser=_counts(_MOST_BATCH),
        metavar="N,N,...",
        help="Batch sizes; 1,2,4,8,16,32 if left out. Triton only.",
        show_default=False,
    ),
]
Processes = Annotated[
    Any,
    typer.Option(
        parser=_counts(_MOST_PROCESSES),
        metavar="N,N,...",
        help="Numbers of processes that serve the model; as its configuration says if left out. "
        "Triton only.",
        show_default=False,
    ),
]
Concurrency = Annotated[
    Any,
    typer.Option(
        parser=_counts(_MOST_CONCURRENCY),
        metavar="N,N,...",
        help="Requests at a time; 1,2,4,8,16,32 if left out. Language models only.",
        show_default=False,
    ),
]
PromptTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=_MOST_TOKENS,
        help="Tokens of a random prompt, about; 1024 if left out. Language models only.",
        show_default=False,
    ),
]
OutputTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=_MOST_TOKENS,
        help="Tokens of an answer; 128 if left out. Language models only.",
        show_default=False,
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=1,
        max=600,
        help="Seconds of one point; a steady one needs less. "
        "10 if left out, 30 of language models, whose points may take twice as long.",
        show_default=False,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        help="File with a request as JSON, as curl would send it, of language models one a line; "
        "zeros or random prompts if left out."
    ),
]
Output = Annotated[
    Path | None, typer.Option(help="File for the figures; MODEL.profile.json if left out.")
]
Account = Annotated[
    str | None,
    typer.Option(
        help="Tenant that the jobs are charged to; if left out, the only one that you have.",
        show_default=False,
        autocompletion=complete_tenant,
        callback=typed_account,
    ),
]
Runtime = Annotated[str, typer.Option(help="How the engine starts: bare, apptainer or pyxis.")]
Image = Annotated[str | None, typer.Option(help="Container image for apptainer or pyxis.")]
Cpus = Annotated[int, typer.Option(help="CPUs for the engine; the client gets one more.")]
MemoryMib = Annotated[int, typer.Option(help="Host memory of a job in MiB.")]
Partition = Annotated[
    str | None, typer.Option(help="Slurm partition; Slurm's default if left out.")
]
Environment = Annotated[
    list[Any] | None,
    typer.Option(
        "--environment",
        parser=_variable,
        metavar="NAME=VALUE",
        help="A variable of the server, as in a service's environment; may be repeated.",
    ),
]
TtftMs = Annotated[
    int | None,
    typer.Option(min=1, help="For the cheapest: 99 % have their first token within these ms."),
]
TpotMs = Annotated[
    int | None,
    typer.Option(min=1, help="For the cheapest: ms from one token to the next, of 99 %."),
]
P95Ms = Annotated[
    int | None,
    typer.Option("--p95-ms", min=1, help="For the cheapest: 95 % are answered within these ms."),
]


@dataclass(frozen=True)
class ProfileChoice:
    """What the user wants to have measured; None is what is left out."""

    batches: tuple[int, ...] | None
    processes: tuple[int, ...] | None
    concurrency: tuple[int, ...] | None
    prompt_tokens: int | None
    output_tokens: int | None
    seconds: float | None
    data: Path | None

    def task(self, model: str, engine: MeasuredEngine | PromptedEngine) -> ProfileTask | TokenTask:
        """Return what a job measures; raises typer.BadParameter for options of other engines."""
        data = None if self.data is None else str(self.data.absolute())
        if isinstance(engine, MeasuredEngine):
            names = ("concurrency", "prompt_tokens", "output_tokens")
            self._require_none(names, engine.title)
            return ProfileTask(
                model=model,
                batches=self.batches or _USUAL,
                processes=self.processes or (),
                seconds=self.seconds or _SECONDS,
                data=data,
            )
        self._require_none(("batches", "processes"), engine.title)
        return TokenTask(
            model=model,
            concurrencies=self.concurrency or _USUAL,
            prompt_tokens=self.prompt_tokens or _PROMPT_TOKENS,
            output_tokens=self.output_tokens or _OUTPUT_TOKENS,
            seconds=self.seconds or _TOKEN_SECONDS,
            data=data,
        )

    def _require_none(self, names: tuple[str, ...], title: str) -> None:
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if given:
            raise typer.BadParameter(f"{', '.join(given)}: not for models of {title}.")
