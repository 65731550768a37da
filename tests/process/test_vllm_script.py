"""Tests the words of vLLM's start, as bash reads them."""

import subprocess

import pytest
from builders.service_specs import a_spec

from slicewise.launcher.rules.engines.vllm import Vllm

ENGINE = Vllm()


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_a_replica_s_nodes_the_first_answers_clients(rank: str):
    """As 0.32.0 was run with two ranks on one machine."""
    words = " ".join(ENGINE.options(a_spec(profile="h200", gpus=2, nodes=2), is_measured=False))
    found = {"models": "/m", "id": "chat.7.3", "private": "/tmp/p", "options_file": ""}
    where = {"node_rank": rank, "leader_address": "10.0.0.7", "leader_port": "9001"}
    ran = subprocess.run(
        ("bash", "-uc", f"printf '%s\\n' {words}"),
        env=found | where,
        text=True,
        capture_output=True,
        check=True,
    )
    said = ran.stdout.splitlines()
    at = said.index("--nnodes")
    told = ["--nnodes", "2", "--node-rank", rank, "--master-addr", "10.0.0.7"]
    assert said[at : at + 8] == [*told, "--master-port", "9001"]
    assert ("--headless" in said) == (rank == "1")
