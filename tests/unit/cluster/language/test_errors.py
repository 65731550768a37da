"""Errors keep their code, words and hint on the way from one process to another."""

import pickle

import pytest

from slicewise.cluster.language.errors import (
    InvalidInputError,
    OutsideError,
    SlicewiseError,
    UnreachableError,
)


@pytest.mark.parametrize("kind", [InvalidInputError, UnreachableError, OutsideError])
def test_an_error_of_another_process_is_the_same_here(kind: type[SlicewiseError]) -> None:
    raised = kind("SW-USAGE", "All jobs were refused.", "Look at the types.")
    found = pickle.loads(pickle.dumps(raised))  # noqa: S301
    assert type(found) is kind
    assert found.refusal == raised.refusal
    assert str(found) == "All jobs were refused. Look at the types. [SW-USAGE]"
