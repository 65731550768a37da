"""Checks the documentation where that needs no Sphinx; ``make docs`` checks the rest."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(?:sh)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^|\$\(|&& |-- )slicewise ((?:(?! -- )[^|;)&>\n#])*)", re.MULTILINE)
_PAGE = re.compile(
    r"(?:docs|doc/slicewise|\.\.)/((?:decisions|explanation|how-to|reference|tutorial)/[\w-]+\.md)"
)
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def listed(page: Path) -> Iterator[Path]:
    """The pages that the toctrees of a page name."""
    for block in _TOCTREE.findall(page.read_text(encoding="utf-8")):
        for entry in block.splitlines():
            if entry and not entry.startswith(":"):
                found = sorted(page.parent.glob(f"{entry}.md")) or [page.with_name(f"{entry}.md")]
                yield from (one for one in found if one != page)


def test_every_page_is_in_a_table_of_contents(written: Mapping[str, str]):
    made = {DOCS / "reference" / name for name in written if name.endswith(".md")}
    pages = {*DOCS.rglob("*.md")} | made
    found = {one for page in pages - made for one in listed(page)}
    assert pages - found == {DOCS / "index.md"}
    assert found - pages == set()


@pytest.fixture(scope="module")
def written() -> Mapping[str, str]:
    """What docs/generate.py writes; it imports every command, so not while tests are collected."""
    from docs import generate

    return generate.pages()


def test_what_is_written_from_the_code_is_not_committed(written: Mapping[str, str]):
    """Nor is anything else of docs/ ignored."""
    lines = (DOCS.parent / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignored = {line for line in lines if line.startswith("/docs")}
    assert ignored == {f"/docs/reference/{name}" for name in written}


def keys(place: str, model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """The keys of a settings file by their tables, of tables of tables too."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        below = [one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)]
        for part in below:
            yield from keys(name, part)
        if not below and place:
            yield place, name


def test_the_pages_name_each_command_setting_metric_and_code(written: Mapping[str, str]):
    """The code has no other page; what they say of each: below."""
    from slicewise.cluster.language.codes import Code
    from slicewise.cluster.language.exit_codes import ExitCode
    from slicewise.cluster.language.service import ServiceSpec
    from slicewise.cluster.settings.file import Settings
    from slicewise.launcher.cli.command_table import COMMANDS
    from slicewise.launcher.cli.json_outputs import OUTPUTS
    from slicewise.launcher.process.metric_catalogue import METRICS as OF_LAUNCHER
    from slicewise.slurm_plugin.daemon.metric_catalogue import METRICS as OF_DAEMON

    settings = {*keys("", Settings)}
    assert ("daemon", "mode") in settings
    rows = {
        "commands.md": [f"### slicewise {name}\n" for name in COMMANDS],
        "configuration.md": [f"\n| `{name}` | " for _, name in settings],
        "service-file.md": [f"\n| `{name}` | " for name in ServiceSpec.model_fields],
        "metrics.md": [f"\n| `{name}` | " for name in (*OF_DAEMON, *OF_LAUNCHER)],
        "errors.md": [f"\n| {code} | " for code in Code],
        "exit-codes.md": [f"\n| {code:d} | " for code in ExitCode],
        "json-output.md": [f"\n| `{name}` | " for name in OUTPUTS],
    }
    assert all(len(each) > 5 for each in rows.values())
    assert [row for page, each in rows.items() for row in each if row not in written[page]] == []
    assert json.loads(written["json-schemas.json"]).keys() == {*OUTPUTS}


def test_each_row_says_what_it_means(written: Mapping[str, str]):
    empty = re.compile(r"\|  \|$", re.MULTILINE)
    assert [name for name, text in written.items() if empty.search(text)] == []


def test_links_of_what_is_written_lead_somewhere(written: Mapping[str, str]):
    link = re.compile(r"\]\((?!https?:|#)([^)#]+)")
    missing = [
        f"{name}: {target}"
        for name, text in written.items()
        for target in link.findall(text)
        if target not in written and not (DOCS / "reference" / target).exists()
    ]
    assert missing == []


def test_no_page_that_is_read_from_a_clone_links_to_what_is_not_committed(
    written: Mapping[str, str],
):
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.parent.glob("*.md"))
    linked = set(re.findall(r"\]\(docs/reference/([^)#]+)", text))
    assert linked & written.keys() == set()


def test_pages_that_messages_and_settings_name_are_there(written: Mapping[str, str]):
    """As docs/FOLDER/PAGE.md, which the packages put into /usr/share/doc/slicewise."""
    root = DOCS.parent
    rooms = ("cluster", "etc", "launcher", "migrations", "simulation", "slurm_plugin", "templates")
    named = {
        (str(file.relative_to(root)), page)
        for room in rooms
        for file in (root / room).rglob("*")
        if file.is_file() and file.suffix not in {".json", ".pyc", ".so"}
        for page in _PAGE.findall(file.read_text(encoding="utf-8", errors="replace"))
    }
    assert len(named) > 50
    made = {f"reference/{name}" for name in written}
    missing = {one for one in named if one[1] not in made and not (DOCS / one[1]).exists()}
    assert missing == set()


def test_decisions_are_numbered_without_a_gap_and_named_by_their_numbers():
    pages = sorted((DOCS / "decisions").glob("0*.md"))
    numbers = [int(page.name.partition("-")[0]) for page in pages]
    assert numbers == list(range(1, len(pages) + 1))
    for number, page in zip(numbers, pages, strict=True):
        assert page.read_text(encoding="utf-8").startswith(f"# {number}. "), page
    entries = re.findall(
        r"^(\d+)\. \[.*\]\((.*)\)$",
        (DOCS / "decisions" / "index.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    named = zip(numbers, pages, strict=True)
    assert entries == [(str(number), page.name) for number, page in named]


def test_each_benchmark_is_a_target_that_help_shows_and_stands_in_the_first_table():
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert targets == set(phony.split())
    page = (DOCS / "reference" / "benchmarks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`make (.*?)`\]", page.partition("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(name for name in targets if name.startswith("bench-"))
    headings = re.findall(r"^##+ (.*)$", page, re.MULTILINE)
    known = {heading.lower().replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\(#(.*?)\)", page)) <= known


def test_the_glossary_defines_each_word_once():
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (?!word \||---)([^|]+) \|", text, re.MULTILINE)
    words = [word for cell in cells for word in re.split(r", (?![^(]*\))", cell)]
    assert [word for word, count in Counter(words).items() if count > 1] == []
    assert len(words) > 100


def test_the_wire_s_document_names_what_there_is(written: Mapping[str, str]):
    document = json.loads(written["openapi.json"])
    operations = [one for path in document["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations) > 15
    named = set(re.findall(r'"#/components/schemas/(\w+)"', written["openapi.json"]))
    assert named <= document["components"]["schemas"].keys()
    for path in document["paths"]:
        assert f" {path}\n" in written["wire-api.md"]


def test_the_wire_s_document_lets_answers_have_further_keys_and_no_request(
    written: Mapping[str, str],
):
    schemas = json.loads(written["openapi.json"])["components"]["schemas"]
    is_closed = {name: one.get("additionalProperties") is False for name, one in schemas.items()}
    assert not any(is_closed[name] for name in ("ViewAnswer", "TenantView", "FailureAnswer"))
    assert is_closed["DesiredSlotsRequest"]


def test_the_wire_s_document_has_answers_as_they_are_written(written: Mapping[str, str]):
    """It named keys that no answer has, and left out those that are computed."""
    schemas = json.loads(written["openapi.json"])["components"]["schemas"]
    step, budget = schemas["StepRecord"], schemas["BudgetStatus"]
    assert {"took_s", "outcome"} <= step["properties"].keys()
    assert "record_id" not in step["properties"]
    assert "had" in budget["properties"]
    assert {"tenant", "reserved"} <= set(budget["required"])
    assert "left" not in budget["required"]


def guides() -> Iterator[str]:
    """README and the pages by hand, but decisions, which name what there was."""
    for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if page.parent.name != "decisions" and "docs/generate.py" not in text.partition("\n")[0]:
            yield text


def typed() -> Iterator[str]:
    """The commands of Slicewise in the blocks of pages."""
    for text in guides():
        for block in _BLOCK.findall(text):
            yield from _COMMAND.findall(block.replace("\\\n", " "))


def test_no_word_of_a_help_text_is_lost_as_markup():
    from slicewise.launcher.cli.command_table import COMMANDS
    from slicewise.launcher.main import loaded

    left = [(name, loaded(name, one)) for name, one in COMMANDS.items()]
    while left:
        name, command = left.pop()
        left += (
            (f"{name} {inner}", one) for inner, one in getattr(command, "commands", {}).items()
        )
        texts = [(one.name, getattr(one, "help", None)) for one in command.params]
        for where, text in [*texts, ("its description", command.help)]:
            lost = re.findall(r"\[[a-z_]+\]", text or "")
            assert not lost, f"{name}, {where}: a terminal takes {lost} for markup"


def command_of(text: str) -> tuple[Any, set[str]]:
    """The command that these words name, and the options among them that it does not have."""
    from slicewise.launcher.cli.command_table import COMMANDS
    from slicewise.launcher.main import loaded

    name, *words = text.split()
    command = loaded(name, COMMANDS[name])
    while words and (inner := getattr(command, "commands", {}).get(words[0])) is not None:
        command, words = inner, words[1:]
    is_group = bool(getattr(command, "commands", {})) and not command.invoke_without_command
    assert not is_group or not words or not re.fullmatch("[a-z-]+", words[0]), text
    options = {option for one in command.params for option in one.opts + one.secondary_opts}
    named = {word.partition("=")[0] for word in words if word.startswith("-") and word != "--"}
    return command, set() if name == "sbatch" else named - options - {"--help"}


def test_what_users_are_told_to_type_is_a_command_with_such_options():
    texts = {shlex.join(words) for one in typed() if (words := shlex.split(one))}
    assert {"service apply tokens.toml --start", "ledger statement"} <= texts
    for text in texts - {"--help"}:
        command, unknown = command_of(text)
        is_group = bool(getattr(command, "commands", {}))
        assert not is_group or command.invoke_without_command, text
        assert unknown == set(), text


def test_a_command_that_a_sentence_names_is_one_with_such_options():
    spans = {span for text in guides() for span in re.findall(r"`slicewise ([a-z][^`\n]*)`", text)}
    assert len(spans) > 80
    # Comments around the lines in a site's job_submit.lua.
    marks = {"begin", "end"}
    assert {span: command_of(span)[1] for span in spans - marks if command_of(span)[1]} == {}
