"""Windows of the calendar: who set which, and the policy with those that hold."""

from dataclasses import replace

from sqlalchemy.dialects.postgresql import insert

from cluster.database import reading, writing
from cluster.errors import InvalidInputError
from slurm_plugin.calendar_times import moment, moments
from slurm_plugin.decide.calendar import (
    Window,
    WindowRecord,
    check_window,
    in_force,
    loosest,
    rivals,
)
from slurm_plugin.decide.policy import Policy
from slurm_plugin.decide.tenants import check_words
from slurm_plugin.ledger import window_rows as rows
from slurm_plugin.ledger.policies import Policies
from slurm_plugin.ledger.rebalance_tables import quota_windows


class Windows(Policies):
    """Who changes a window waits for who changes a quota."""

    def windows(self) -> tuple[Window, ...]:
        """Those that hold or will hold, in the order in which they were set."""
        with reading(self._engine) as connection:
            return self._windows(connection)

    def policy_in_force(self, at_s: float, zone: str) -> Policy:
        """Every tenant by name, as the calendar of that time zone has it then."""
        with reading(self._engine) as connection:
            policy, windows = self._policy(connection), self._windows(connection)
        return in_force(policy, windows, moment(at_s, zone))

    def highest_policy(self) -> Policy | None:
        """Every tenant with the most that it has at any hour; None without a calendar."""
        with reading(self._engine) as connection:
            policy, windows = self._policy(connection), self._windows(connection)
        return loosest(policy, windows) if windows else None

    def set_window(self, window: Window, author: str, reason: str, zone: str) -> Window:
        """Add a window; returns it with its id.

        Raises InvalidInputError: SW-TEXT, what ``calendar.check_window`` raises, and
        SW-WINDOW-TIME if it is over already.
        """
        check_words(author, reason)
        with writing(self._engine) as connection:
            self._lock(connection)
            policy = self._policy(connection)
            beside = rivals(policy, self._windows(connection), window)
            now_s = self._now_s(connection)
            if window.last_s is not None and window.last_s <= now_s:
                raise _over(window)
            check_window(policy, beside, window, moments((*beside, window), now_s, zone))
            said = {"cluster": self._cluster, "author": author, "reason": reason}
            values = {**said, **rows.window_values(window)}
            added = insert(quota_windows).values(values).returning(quota_windows.c.id)
            window_id = connection.execute(added).scalar_one()
        return replace(window, window_id=window_id, reason=reason)

    def end_window(self, window_id: int, author: str, reason: str) -> Window:
        """Remove a window; raises InvalidInputError (SW-TEXT, SW-WINDOW-UNKNOWN)."""
        check_words(author, reason)
        with writing(self._engine) as connection:
            self._lock(connection)
            found = [one for one in self._windows(connection) if one.window_id == window_id]
            if not found:
                raise InvalidInputError(
                    "SW-WINDOW-UNKNOWN",
                    f"There is no window {window_id}, or it is over.",
                    "See which there are: slicewise quota calendar list",
                )
            self._end_windows(connection, found, author, reason)
            return found[0]

    def window_history(self) -> tuple[WindowRecord, ...]:
        """Every window that there ever was, the newest first, and who set and removed it."""
        with reading(self._engine) as connection:
            found = connection.execute(rows.window_records_of(self._cluster))
            return tuple(rows.window_record(row) for row in found)


def _over(window: Window) -> InvalidInputError:
    return InvalidInputError(
        "SW-WINDOW-TIME",
        f"The window for {window.tenant or 'all together'} would be over already.",
        "Give a --last that is to come.",
    )
