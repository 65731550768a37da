"""A model in Triton: its configuration as it is to be measured, and whether the server has it."""

import pytest
from builders.service_specs import a_spec

from slicewise.launcher.rules.engines.engine import Call, PooledEngine, Request
from slicewise.launcher.rules.engines.triton import Triton
from slicewise.launcher.rules.engines.triton_model import configured, processes_of, takes_batch

CONFIG = {
    "name": "m",
    "max_batch_size": 8,
    "dynamic_batching": {"max_queue_delay_microseconds": 9},
    "instance_group": [{"kind": "KIND_GPU", "count": 2, "gpus": [0]}, {"count": 3}],
}


class TestModel:
    def test_no_batcher_waits_for_more(self) -> None:
        assert configured(CONFIG, None) == {
            key: value for key, value in CONFIG.items() if key != "dynamic_batching"
        }

    def test_so_many_processes_of_its_first_kind(self) -> None:
        groups = configured(CONFIG, 4)["instance_group"]
        assert groups == [{"kind": "KIND_GPU", "count": 4, "gpus": [0]}]
        assert configured({}, 4) == {"instance_group": [{"count": 4}]}

    def test_as_many_as_it_has(self) -> None:
        assert (processes_of(CONFIG), processes_of({})) == (5, 1)

    def test_a_batch_that_its_configuration_does_not_allow(self) -> None:
        assert (takes_batch(CONFIG, 8), takes_batch({}, 1)) == ("", "")
        assert takes_batch(CONFIG, 9) == "max_batch_size of its configuration is 8"
        assert takes_batch({"max_batch_size": 0}, 2) == "max_batch_size of its configuration is 0"


INDEX = b"""[{"name":"broken","version":"1","state":"UNAVAILABLE","reason":"Internal: no weights"},
    {"name":"idle"}, {"name":"m","version":"1","state":"UNLOADING"},
    {"name":"m","version":"2","state":"READY"}, {"name":"slow","version":"1","state":"LOADING"}]"""


class TestPool:
    def test_a_model_is_ready_that_has_a_version_that_is(self) -> None:
        engine: PooledEngine = Triton()
        assert engine.ready_models(INDEX) == {"m"}
        assert engine.leaving_models(INDEX) == {"m"}
        assert engine.ready_models(b"[]") == frozenset()

    @pytest.mark.parametrize(
        "answer", [b"", b"{}", b"[1]", b'[{"version":"1"}]', b'[{"name":"\xff"}]', b"[" * 30_000]
    )
    def test_what_is_no_index_is_refused(self, answer: bytes) -> None:
        with pytest.raises((TypeError, ValueError)):
            Triton().ready_models(answer)

    def test_a_load_is_a_call_of_grpc_that_names_the_model(self) -> None:
        call = Triton().load_model("m", "service")
        assert call == Call("/inference.GRPCInferenceService/RepositoryModelLoad", b"\x12\x01m")
        long = Triton().load_model(300 * "m", "service")
        assert long.message == b"\x12\xac\x02" + 300 * b"m"

    def test_a_name_that_a_server_has_told_is_one_part_of_the_path(self) -> None:
        request = Triton().unload_model("a/../b\r\n")
        path = "/v2/repository/models/a%2F..%2Fb%0D%0A/unload"
        kind = {"Content-Type": "application/json"}
        assert request == Request("POST", path, kind, b'{"parameters": {}}')

    def test_a_server_in_a_pool_starts_with_its_own_model_and_one_that_is_measured_with_none(
        self,
    ) -> None:
        def options(*, is_measured: bool, **keys: str) -> set[str]:
            words = Triton().options(a_spec(**keys), is_measured=is_measured)
            return {word for option in words for word in option.split()}

        alone = options(is_measured=False)
        pooled = options(is_measured=False, pool="small") - alone
        explicit = "--model-control-mode=explicit"
        assert pooled == {explicit, "--load-model=m", "--strict-readiness=false"}
        assert options(is_measured=True, pool="small") - alone == {explicit}
