"""Checks rules of the project that no linter knows: sizes, names, links."""

import ast
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from product_source import ROOT, modules, nodes

DOCS = ROOT / "docs"
PACKAGES = ("cluster", "launcher", "migrations", "sandbox", "simulation", "slurm_plugin")
MAX_FUNCTION_LINES = 70
MEDIAN_FUNCTION_LINES = 10
ASKS = frozenset(
    (
        *("open", "print", "input"),
        *(".exists", ".is_file", ".is_dir", ".iterdir", ".rglob", ".stat", ".resolve", ".mkdir"),
        *(".read_text", ".read_bytes", ".write_text", ".write_bytes", ".unlink"),
        *(".now", ".today", ".utcnow"),
    )
)
"""Calls that read or change something outside."""
TWINS = frozenset({"Answer", "Request", "Leadership", "Metrics"})
"""Class names that stand twice: messages of the daemon and of engines, which sites import; and what
each of the two programs has of its own.
"""

SAYS_NOTHING = {
    "one": 26,
    "found": 157,
    "kind": 187,
    "known": 88,
    "said": 35,
    "there": 9,
    "of": 111,
}
"""How often a variable may have a name that does not say what it holds: fewer, with each change."""


@pytest.fixture(scope="module", autouse=True)
def _forgotten() -> Iterator[None]:
    """Trees take hundreds of megabytes."""
    yield
    nodes.cache_clear()


@pytest.fixture(scope="module")
def functions() -> list[tuple[str, int]]:
    """Where each is, and its lines."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", _lines(node))
        for path in modules(*PACKAGES)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_function_is_longer_than_a_screen(functions: list[tuple[str, int]]) -> None:
    assert [(name, lines) for name, lines in functions if lines > MAX_FUNCTION_LINES] == []


def test_the_median_function_is_short(functions: list[tuple[str, int]]) -> None:
    assert statistics.median(lines for _, lines in functions) <= MEDIAN_FUNCTION_LINES


def test_names_that_say_nothing_get_fewer() -> None:
    bound = Counter(
        node.id if isinstance(node, ast.Name) else node.arg
        for path in modules(*PACKAGES)
        for node in nodes(path)
        if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        or isinstance(node, ast.arg)
    )
    assert {name: bound[name] for name, most in SAYS_NOTHING.items() if bound[name] > most} == {}


def test_no_two_public_classes_of_the_programs_have_one_name() -> None:
    """Protocols aside: they are named after what they stand for."""
    names = Counter(
        node.name
        for path in modules("cluster", "launcher", "simulation", "slurm_plugin")
        for node in ast.iter_child_nodes(nodes(path)[0])
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and "Protocol" not in {ast.unparse(base).partition("[")[0] for base in node.bases}
    )
    assert {name for name, count in names.items() if count > 1} == TWINS


def test_what_decides_asks_no_file_and_no_clock() -> None:
    """The import contract can't see it: pathlib and datetime have values, too.

    The table of MIG profiles is data of its package.
    """
    places = [*ROOT.glob("*/rules"), ROOT / "cluster" / "language"]
    asking = {
        str(path.relative_to(ROOT))
        for place in places
        for path in place.rglob("*.py")
        for node in nodes(path)
        if isinstance(node, ast.Call) and _called(node.func) in ASKS
    }
    assert len(places) > 3
    assert asking == {"cluster/language/gpus/mig_profiles.py"}


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return f".{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def test_each_wall_against_an_attack_names_its_tests() -> None:
    text = (DOCS / "explanation" / "security.md").read_text(encoding="utf-8")
    named = {f"{name}.py" for name in re.findall(r"(?:\w+/)*\btest_\w+", text)}
    assert named - _path_ends("tests") == set()
    walls = re.findall(r"^\| to .+ \|$", text, flags=re.MULTILINE)
    assert [wall for wall in walls if "test_" not in wall] == []
    assert len(set(walls)) == len(walls) >= 20


def test_modules_that_the_documents_name_are_there() -> None:
    """By the end of their path; decisions name what there was."""
    there = _path_ends(*PACKAGES, "benchmarks", "docs", "etc", "studies", "tests")
    pages = [
        *ROOT.glob("*.md"),
        *(one for one in DOCS.rglob("*.md") if one.parent.name != "decisions"),
    ]
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in re.findall(r"`((?:\w+/)*\w+\.py)`", page.read_text(encoding="utf-8"))
        if name not in there
    ]
    assert missing == []


def _path_ends(*folders: str) -> set[str]:
    """The paths of all modules in these folders, from any folder above them on."""
    parts = [path.relative_to(ROOT).parts for one in folders for path in (ROOT / one).rglob("*.py")]
    return {"/".join(one[begin:]) for one in parts for begin in range(len(one))}


def test_every_link_in_the_documents_leads_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    made = {ROOT / line[1:] for line in lines if line.startswith("/docs/reference/")}
    link = re.compile(r"\]\((?!https?:|#)([^)#]+)")
    missing = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in link.findall(document.read_text(encoding="utf-8"))
        if (place := (document.parent / target).resolve()) not in made and not place.exists()
    ]
    assert missing == []


def test_what_is_said_of_a_name_follows_the_name() -> None:
    """A string below a constant says what it holds; moved without it, it says nothing."""
    paths = modules(*PACKAGES, "benchmarks", "docs", "studies", "tests")
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}
    assert [
        f"{name}:{said.lineno}"
        for name, text in texts.items()
        if '\n"""' in text
        for before, said in pairwise(ast.parse(text).body)
        if isinstance(said, ast.Expr)
        and isinstance(said.value, ast.Constant)
        and not isinstance(before, ast.Assign | ast.AnnAssign)
    ] == []


def test_docstrings_explain_attributes_that_there_are() -> None:
    """Those of the class itself: what it inherits is explained where it is declared."""
    explained = [
        (f"{path.relative_to(ROOT)}: {node.name}", names, _attributes(node))
        for path in modules(*PACKAGES, "benchmarks", "studies")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
        and (names := set(_explained(ast.get_docstring(node) or "")))
    ]
    assert [(where, names - there) for where, names, there in explained if names - there] == []
    assert sum(len(names) for _, names, _ in explained) > 1000


def _explained(docstring: str) -> list[str]:
    keys = re.findall(
        r"^    (\w+(?:, \w+)*):", docstring.partition("Attributes:\n")[2], re.MULTILINE
    )
    return [name for key in keys for name in key.split(", ")]


def _attributes(node: ast.ClassDef) -> set[str]:
    nodes = list(ast.walk(node))
    named = {inner.id for inner in nodes if isinstance(inner, ast.Name)}
    set_on = {inner.attr for inner in nodes if isinstance(inner, ast.Attribute)}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return named | set_on | {inner.name for inner in nodes if isinstance(inner, functions)}
