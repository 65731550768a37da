"""Files and commands of people who do this work elsewhere, and the right answer to each.

One table: a name, what is put into an empty directory, and what must come of it. Inputs are made
here, as small as shows the fault.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from cluster.language.errors import InvalidInputError
from cluster.language.service import service_spec
from launcher.services.model_repository import require_runnable

Case = Callable[[Path], str]
"""Makes its files in a directory, and returns what was said: "" if all is well."""


def weights(names: Iterable[str], missing: str = "") -> Case:
    """A published model whose index names these files, of which one may be missing."""

    def said(place: Path) -> str:
        named = [f"{one}.safetensors" for one in names]
        (place / "m").mkdir()
        index = {"weight_map": {f"t{number}": one for number, one in enumerate(named)}}
        (place / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
        (place / "m" / "config.json").write_text("{}")
        for one in named:
            if one != f"{missing}.safetensors":
                (place / "m" / one).touch()
        service = {"name": "s", "tenant": "t", "model_repository": str(place), "model": "m"}
        try:
            require_runnable(service_spec(service | {"engine": "vllm", "profile": "1g.10gb"}))
        except InvalidInputError as error:
            return error.refusal.message
        return ""

    return said


CASES: dict[str, tuple[Case, str]] = {
    "shards 0 to 124 of 130, all that there are": (
        weights(f"model-{number:05d}-of-00130" for number in range(125)),
        "",
    ),
    "shard 77 of 163 is missing, six digits behind -of-": (
        weights((f"model-{n:05d}-of-000163" for n in range(1, 164)), "model-00077-of-000163"),
        "no model-00077-of-000163.safetensors.",
    ),
    "shard 30 of 61 is missing, numbers without padding": (
        weights((f"model-{n}-of-61" for n in range(1, 62)), "model-30-of-61"),
        "no model-30-of-61.safetensors.",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_right_answer_comes_of_it(name: str, tmp_path: Path) -> None:
    case, expected = CASES[name]
    said = case(tmp_path)
    assert expected in said
    assert bool(expected) == bool(said)
