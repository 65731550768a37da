"""Tests that a replica is told which adapters to load, against SGLang's stand-in behind TLS."""

import argparse
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sglang_stand_in
from builders.replica_keys import gateway_directory, replica_context, replica_keys
from waiting import PATIENCE_S

from slicewise.launcher.probing import prober as probing
from slicewise.launcher.probing.prober import Replica, fit_adapters
from slicewise.launcher.rules.engines.registry import ENGINES


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no answer be late on a slow machine."""
    monkeypatch.setattr(probing, "DEADLINE_S", PATIENCE_S)


@pytest.fixture
def state() -> sglang_stand_in.State:
    told = argparse.Namespace(
        served_model_name="m", max_running_requests=4, enable_lora=True, max_lora_rank=16
    )
    return sglang_stand_in.State(told)


@pytest.fixture
def replica(state: sglang_stand_in.State) -> Iterator[Replica]:
    kind = type("Handler", (sglang_stand_in.Handler,), {"state": state})
    server = sglang_stand_in.Server(("127.0.0.1", 0), kind)
    tls = replica_context(gateway_directory() / "gateway.crt", replica_keys())
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Replica(
        *("127.0.0.1", server.server_address[1], replica_keys().certificate, 1000, "m", "m.1.0"),
        ENGINES["sglang"],
        service="chat",
    )
    server.shutdown()
    server.server_close()


def put(directory: Path, rank: int) -> str:
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return str(directory)


async def fitted(replica: Replica, **adapters: str) -> object:
    return await fit_adapters(
        gateway_directory(), replace(replica, adapters=tuple(adapters.items()))
    )


async def test_it_loads_what_it_lacks_and_unloads_what_it_is_not_to_have(
    replica: Replica, state: sglang_stand_in.State, tmp_path: Path
):
    one, two = put(tmp_path / "one", 8), put(tmp_path / "two", 16)
    assert await fitted(replica, legal=one, tax=two) == {}
    assert state.adapters == {"legal": one, "tax": two}
    # One of that name from elsewhere takes its place.
    assert await fitted(replica, legal=two) == {}
    assert state.adapters == {"legal": two}
    assert await fitted(replica) == {}
    assert state.adapters == {}


async def test_one_that_it_refuses_keeps_no_other_from_it(
    replica: Replica, state: sglang_stand_in.State, tmp_path: Path
):
    good, large = put(tmp_path / "good", 8), put(tmp_path / "large", 64)
    refused = await fitted(replica, a=large, b=str(tmp_path / "none"), c=good)
    assert refused == {
        "a": "LoRA adapter a is not compatible with the current LoRA memory pool",
        "b": f"Can't find 'adapter_config.json' at '{tmp_path}/none'",
    }
    assert state.adapters == {"c": good}


async def test_one_that_names_hundreds_of_adapters_is_told_few_things(
    replica: Replica, state: sglang_stand_in.State
):
    state.adapters.update({f"a{number}": "/m" for number in range(900)})
    assert await fitted(replica) == {}
    assert len(state.adapters) == 900 - 64


async def test_of_one_that_does_not_answer_nothing_is_known(replica: Replica):
    assert await fit_adapters(gateway_directory(), replace(replica, port=1)) is None
    triton = replace(replica, engine=ENGINES["triton"], adapters=(("a", "/m/a"),))
    assert await fit_adapters(gateway_directory(), triton) == {}
