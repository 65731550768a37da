"""The service schema: the same service from TOML and from directives; bad keys are named."""

import pytest

from cluster.errors import InvalidInputError
from cluster.service import directives_of_script, service_spec

GOOD: dict[str, object] = {
    "name": "bert",
    "tenant": "vision",
    "model_repository": "/models/bert",
    "model": "bert",
    "profile": "1g.10gb",
    "max_replicas": 4,
}


def test_directives_say_the_same_as_the_spec() -> None:
    spec = service_spec(GOOD | {"keep_alive_s": 12.5, "min_replicas": 1})
    script = ("#!/bin/bash", "#SBATCH --array=0-3", *spec.directives(), "srun true")
    assert service_spec(directives_of_script(script)) == spec


def test_directives_after_the_first_command_do_not_count() -> None:
    assert directives_of_script(("#!/bin/sh", "", "true", "#SLICEWISE name=x")) == {}


@pytest.mark.parametrize("line", ["#SLICEWISE", "#SLICEWISE name", "#SLICEWISE name=a b"])
def test_unreadable_directive_is_refused(line: str) -> None:
    with pytest.raises(InvalidInputError, match=r"\[SW-DIRECTIVE\]"):
        directives_of_script((line,))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"name": "Bert"}, "name: "),
        ({"name": "x; rm -rf"}, "name: "),
        ({"tenant": "a b"}, "tenant: "),
        ({"tenant": "a\nb"}, "tenant: "),
        ({"model_repository": "models"}, "model_repository: "),
        ({"model_repository": "/models/$(reboot)"}, "model_repository: "),
        ({"model_repository": "/models/a\n#SBATCH --uid=0"}, "model_repository: "),
        ({"model_repository": "/models/a\n"}, "model_repository: "),
        ({"model_repository": "/models/../etc"}, "model_repository: "),
        ({"model": "../x"}, "model: "),
        ({"profile": "1g.10gb:9"}, "profile: "),
        ({"max_replicas": 0}, "max_replicas: "),
        ({"max_replicas": 100_000}, "max_replicas: "),
        ({"min_replicas": 5}, "min_replicas: 5 is above max_replicas 4"),
        ({"concurrency": "many"}, "concurrency: "),
        ({"need_gib": 8}, "profile, need_gib"),
        ({"profile": None}, "profile, need_gib"),
        ({"replicas": 3}, "replicas: "),
    ],
)
def test_bad_key_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        service_spec(GOOD | change)
    assert named in caught.value.refusal.message
    assert "max_replicas" in caught.value.refusal.hint


def test_missing_keys_are_all_named_at_once() -> None:
    with pytest.raises(InvalidInputError) as caught:
        service_spec({"profile": "1g.10gb"})
    for key in ("name", "tenant", "model_repository", "model"):
        assert f"{key}: " in caught.value.refusal.message
