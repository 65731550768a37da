"""Hears what requests have used, for those who share a model and for the ledger."""

from slicewise.launcher.rules.gateway.usage_lines import (
    HeardLines,
    UsageByPayer,
    parse_usage_line,
    with_usage,
)


class UsageWatch:
    """Takes each line of HAProxy's ring once."""

    def __init__(self) -> None:
        self._heard = HeardLines({})
        self._since: UsageByPayer = {}

    @property
    def missed(self) -> int:
        """Requests whose line was never heard."""
        return self._heard.missed

    def hear(self, text: str) -> None:
        """Take a line of the ring; one that was heard before, or is another one, counts nothing."""
        line = parse_usage_line(text)
        heard = self._heard.hears(line) if line is not None else None
        if line is not None and heard is not None:
            self._heard = heard
            self._since = with_usage(self._since, [line])

    def take_since(self) -> UsageByPayer:
        """Return what requests that ended since the last call have used."""
        since, self._since = self._since, {}
        return since
