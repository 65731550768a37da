"""Tests what all servers of language models have in common, as they are started and asked."""

import pytest
from builders.service_specs import a_spec

from slicewise.launcher.rules.engines.engine import Engine, PromptedEngine
from slicewise.launcher.rules.engines.llamacpp import LlamaCpp
from slicewise.launcher.rules.engines.sglang import SGLang
from slicewise.launcher.rules.engines.vllm import Vllm

SLOTS = {
    LlamaCpp(): ("--parallel", True),
    SGLang(): ("--max-running-requests", False),
    Vllm(): ("--max-num-seqs", False),
}
"""The option for requests at a time, and whether each of these has memory of its own."""


@pytest.mark.parametrize("engine", SLOTS, ids=lambda engine: engine.title)
def test_it_is_measured_with_as_many_slots_as_requests_at_a_time(engine: Engine) -> None:
    option, has_slot_memory = SLOTS[engine]
    assert isinstance(engine, PromptedEngine)
    assert engine.has_slot_memory is has_slot_memory
    words = " ".join(engine.options(a_spec(), is_measured=True))
    assert f'{option} "$(cat "$private/slots")"' in words


STRANGE = (b"", b"{}", b'{"data": 1}', b'{"name": "chat.7.3"}', b'{"weight_version": 1}')


@pytest.mark.parametrize("engine", SLOTS, ids=lambda engine: engine.title)
@pytest.mark.parametrize("said", STRANGE)
def test_another_server_s_answer_is_none(engine: Engine, said: bytes) -> None:
    with pytest.raises(TypeError):
        engine.identified(said, "chat.7.3")
