"""Tests which versions of engines are too old, and how servers say theirs."""

import json
import re
from datetime import date

import pytest

from slicewise.launcher.rules.engines.least_versions import (
    LAST_LOOK,
    LEAST_VERSIONS,
    is_too_old,
    upgrade,
)
from slicewise.launcher.rules.engines.registry import ENGINES, OWN_ENGINES


def test_each_engine_that_comes_with_slicewise_has_one():
    assert {one.title for one in OWN_ENGINES.values()} == LEAST_VERSIONS.keys()
    assert date.fromisoformat(LAST_LOOK)
    for title, least in LEAST_VERSIONS.items():
        assert re.fullmatch(r"https://[^ ]+", least.bulletin)
        assert ".".join(map(str, least.numbers)) in least.release
        assert least.bulletin in upgrade(title)


@pytest.mark.parametrize(
    ("title", "version", "expected"),
    [
        ("Triton", "2.70.0", True),
        ("Triton", "2.71.0", False),
        ("Triton", "3.0", False),
        ("vLLM", "0.31.0", True),
        ("vLLM", "0.31.1.dev3+g0a1b2c3", True),
        ("vLLM", "0.32.0+cpu", False),
        ("vLLM", "0.100.0", False),
        ("SGLang", "0.5.22.post1", True),
        ("SGLang", "0.5.23", False),
        ("llama.cpp", "b12404-0a1b2c3", True),
        ("llama.cpp", "b12405-0a1b2c3", False),
        # Builds of one's own that state nothing.
        ("llama.cpp", "b0-unknown", False),
        ("vLLM", "dev", False),
        ("vLLM", "", False),
        ("vLLM", "9" * 5000, False),
        ("Toy", "0.0.1", False),
    ],
)
def test_a_version_is_compared_by_its_numbers(title: str, version: str, expected: bool):
    assert is_too_old(title, version) == expected


@pytest.mark.parametrize(
    ("engine", "path", "said", "version"),
    [
        ("triton", "/v2", {"name": "t", "version": "2.71.0"}, "2.71.0"),
        ("vllm", "/version", {"version": "0.32.0"}, "0.32.0"),
        ("sglang", "/server_info", {"version": "0.5.23", "internal_states": [{}]}, "0.5.23"),
        ("llamacpp", "/props", {"build_info": "b12405-0a1b2c3", "ui": False}, "b12405-0a1b2c3"),
        ("llamacpp", "/props", {"build_info": "0.7.0"}, ""),
    ],
)
def test_each_server_is_asked_where_it_says_its_version(
    engine: str, path: str, said: object, version: str
):
    one = ENGINES[engine]
    assert one.version_path == path
    assert one.version(json.dumps(said).encode()) == version
    for wrong in (b"", b"[]", b"{}", b'{"version": 1, "build_info": 1, "name": 1}'):
        with pytest.raises(TypeError):
            one.version(wrong)
