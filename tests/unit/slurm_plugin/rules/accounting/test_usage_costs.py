"""What requests and a part of replicas' time cost, by the types of these replicas."""

from builders.tariffs import BERLIN, book_of, local_s, tariff

from slicewise.slurm_plugin.rules.accounting.charge_lines import RequestDay
from slicewise.slurm_plugin.rules.accounting.usage_costs import UsedPart, usage_costs

TYPES = 'prices = { slice_hour_by_type = { "3g.40gb" = 0.4 }, million_output_tokens = 2 }'
HOUR = 3_600_000
DAY = "2026-10-24"
PLACE = DAY, "chem", "vision/chat"


def part(hours: int, day: str = DAY) -> UsedPart:
    return UsedPart(RequestDay(day, "chem", "ann", PLACE[2], 1, 0, 0, 500_000), hours * HOUR)


def test_time_has_the_price_of_the_types_that_it_was_of() -> None:
    book = book_of((0, tariff(TYPES)))
    only = {PLACE: {("3g.40gb",): 10 * HOUR}}
    assert usage_costs([part(10)], only, book) == (1_000_000 + 4_000_000,)
    mixed = {PLACE: {("3g.40gb",): 10 * HOUR, ("1g.10gb",): 30 * HOUR}}
    assert usage_costs([part(10)], mixed, book) == (1_000_000 + 1_000_000,)


def test_nights_count_as_on_the_mean_of_the_day_and_the_owner_s_class_does() -> None:
    text = """
[[windows]]
name = "night"
begin = "00:00"
end = "12:00"
factor = 0.5
[classes.own]
tenants = ["vision"]
prices = { slice_hour = 0.8 }
"""
    book = book_of((0, tariff(text)))
    assert usage_costs([part(1)], {PLACE: {("1g.10gb",): HOUR}}, book) == (600_000,)


def test_what_nobody_can_know_is_none_and_not_nothing() -> None:
    book = book_of((local_s(f"{DAY} 00:00", BERLIN), tariff(TYPES)))
    before = part(1, "2026-10-23")
    assert usage_costs([before, part(0), part(1)], {}, book) == (None, 1_000_000, None)
    assert usage_costs([], {}, book) == ()
