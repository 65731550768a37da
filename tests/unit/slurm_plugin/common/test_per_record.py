"""Tests what is kept with a record of Slurm's."""

from dataclasses import replace

from stand_ins.scripted import job

from cluster.language.jobs import JobView
from cluster.language.units import Millislices
from slurm_plugin.common.costs import job_cost
from slurm_plugin.common.per_record import per_record


def test_a_record_is_asked_once_and_a_changed_copy_anew() -> None:
    asked: list[JobView] = []

    @per_record
    def user(one: JobView) -> str:
        asked.append(one)
        return one.user

    first = job(0)
    second = replace(first, user="bob")
    assert [user(one) for one in (first, first, second, second)] == ["alice"] * 2 + ["bob"] * 2
    assert asked == [first, second]
    assert first == replace(first), "what is kept is no part of the record"


def test_a_record_keeps_its_cost_by_the_costs_of_now() -> None:
    one = job(0)
    cheap, dear = {"1g.10gb": Millislices(1000)}, {"1g.10gb": Millislices(1500)}
    assert [job_cost(one, costs) for costs in (cheap, cheap, dear)] == [1000, 1000, 1500]
