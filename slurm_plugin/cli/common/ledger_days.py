"""Days of the ledger's time zone, in which statements and reports are."""

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from slicewise.slurm_plugin.rules.accounting.statement import Day


def ledger_days(first_s: int, last_s: float, zone: ZoneInfo) -> Sequence[Day]:
    """Return the days of the zone from the one of ``first_s`` to that of ``last_s``."""
    day, last = (datetime.fromtimestamp(at_s, zone).date() for at_s in (first_s, last_s))
    dates = (day + timedelta(days=number) for number in range((last - day).days + 1))
    return [
        Day(int(datetime.combine(date, time(), zone).timestamp()), date.isoformat())
        for date in dates
    ]
