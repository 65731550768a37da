"""Tests which generations are not recorded yet, and at what expense this is found out."""

from collections.abc import Mapping

from slicewise.cluster.rpc.read_messages import GenerationRecord
from slicewise.slurm_plugin.ledger.generations import not_recorded


def submitted(array_job_id: int, directives: Mapping[str, str]) -> GenerationRecord:
    return GenerationRecord.model_construct(
        array_job_id=array_job_id,
        submitted_s=1,
        tenant="vision",
        name="bert",
        author="alice",
        directives=directives,
    )


class CountedId(int):
    """An array job id that counts how often one is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedId.compared += 1
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))


def test_another_script_under_a_recorded_array_job_id_is_not_recorded_yet():
    old, new, other = ({"model": name} for name in ("m", "n", "o"))
    asked = [submitted(1, old), submitted(1, new), submitted(1, other), submitted(2, old)]
    known = [(1, old), (1, {"model": "o"}), (3, old)]
    assert not_recorded(asked, known) == (asked[1], asked[3])


def test_each_of_many_is_compared_only_with_those_of_its_array_job_id():
    count = 300
    known = [(CountedId(number), {"model": "m"}) for number in range(count)]
    asked = [submitted(CountedId(number), {"model": "m"}) for number in range(count)]
    assert not_recorded(asked, known) == ()
    assert CountedId.compared <= 10 * count
