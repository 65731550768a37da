"""Writes the table of colours as CSS: a variable for each, light and dark, and who has which."""

from collections.abc import Iterable, Iterator, Mapping

from slicewise.cluster.language.palette import (
    CONDITIONS,
    FIGURES,
    GROUNDS,
    SERIES,
    START_PHASES,
    STATES,
    TONES,
    Look,
)


def palette_css() -> str:
    """The rules of every page and report: states, lines, areas, and words with a tone."""
    colours = {
        **GROUNDS,
        **{tone.value: look.colour for tone, look in TONES.items()},
        **{name: look.colour for name, look in STATES.items()},
        **{f"start-{name}": look.colour for name, look in START_PHASES.items()},
        **{f"line-{name}": look.colour for name, look in FIGURES.items()},
        **{f"c{number}": look.colour for number, look in enumerate(SERIES)},
    }
    light = _variables((name, one.light) for name, one in colours.items())
    dark = _variables((name, one.dark) for name, one in colours.items())
    rules = (
        f":root {{ color-scheme: light dark; {light} }}",
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}",
        *_of_states(),
        *_of_starts(),
        *_of_lines(FIGURES, "line-"),
        *_of_series(),
        *_of_conditions(),
    )
    return "".join(f"{rule}\n" for rule in rules)


def condition_class(word: str) -> str:
    """The class of a word of CONDITIONS: ``rolled-back``."""
    return word.replace(" ", "-")


def _variables(values: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in values)


def _of_states() -> Iterator[str]:
    for name in (*STATES, "uncut"):
        yield f".{name} {{ fill: var(--{name}); }}"
        yield f".swatch.{name} {{ background: var(--{name}); }}"


def _of_starts() -> Iterator[str]:
    for name in START_PHASES:
        yield f".start-{name} {{ fill: var(--start-{name}); }}"
        yield f".swatch.start-{name} {{ background: var(--start-{name}); }}"


def _of_lines(looks: Mapping[str, Look], prefix: str = "") -> Iterator[str]:
    for name, look in looks.items():
        dashes = " ".join(map(str, look.dashes))
        drawn = f" stroke-dasharray: {dashes};" if dashes else ""
        yield f".line.{name} {{ stroke: var(--{prefix}{name});{drawn} }}"


def _of_series() -> Iterator[str]:
    yield from _of_lines({f"c{number}": look for number, look in enumerate(SERIES)})
    for number in range(len(SERIES)):
        yield f".area.c{number} {{ fill: var(--c{number}); }}"


def _of_conditions() -> Iterator[str]:
    for tone in TONES:
        words = (word for word, its in CONDITIONS.items() if its is tone)
        named = ", ".join(f".state.{condition_class(word)}" for word in words)
        yield f"{named} {{ color: var(--{tone.value}); }}"
