"""A model's configuration in Triton, as it is to be measured."""

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
