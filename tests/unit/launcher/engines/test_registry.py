"""Each engine that a service file may name is there, and gives the gateway what it needs."""

import re
from itertools import product
from typing import get_args

import pytest

from cluster.language.service import ServiceSpec
from cluster.settings.file import Settings
from launcher.engines.engine import Engine
from launcher.engines.registry import ENGINES, engine_of

EVERY = pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())


def test_a_service_file_may_name_each_and_no_other():
    assert set(get_args(ServiceSpec.model_fields["engine"].annotation)) == set(ENGINES)
    assert ServiceSpec.model_fields["engine"].default in ENGINES


def test_each_has_its_settings():
    settings = Settings.model_validate(
        {"cluster": {"name": "c", "partitions": ["p"]}, "gpus": {"A100-80GB": {"whole": ["a100"]}}}
    )
    assert set(settings.engines) == set(ENGINES)


def test_directives_that_name_none_or_an_unknown_one_are_the_default_s():
    default = ENGINES[ServiceSpec.model_fields["engine"].default]
    assert engine_of({}) is engine_of({"engine": "of a newer Slicewise"}) is default
    assert [engine_of({"engine": name}) for name in ENGINES] == list(ENGINES.values())


def test_no_two_share_backends_of_the_gateway():
    pools = [engine.pool for engine in ENGINES.values()]
    assert len(set(pools)) == len(pools)
    assert all(re.fullmatch("[a-z]+", pool) for pool in pools)


@EVERY
def test_clients_reach_what_follows_a_service_s_address(engine: Engine):
    assert any(path.startswith(f"{engine.api}/") for path in engine.http_paths)
    paths = (*engine.http_paths, *engine.grpc_paths, *engine.health_paths)
    assert all(path.startswith("/") for path in paths)


@EVERY
@pytest.mark.parametrize(
    "path", ["", "/", "/metrics", "/v2/repository/models/m/load", "/v2/logging", "/../v2"]
)
def test_clients_change_nothing_that_a_replica_serves(engine: Engine, path: str):
    let_in = product((*engine.http_paths, *engine.grpc_paths, *engine.health_paths), (path,))
    assert not any(re.fullmatch(*one) for one in let_in)
