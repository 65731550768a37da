"""Answers operators about the calendar of quotas, and changes it."""

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.language.units import slices_text, slices_words
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.ledger_desk import LedgerDesk
from slicewise.slurm_plugin.api.reads import hiding_places
from slicewise.slurm_plugin.common.calendar_requests import (
    WindowAnswer,
    WindowCreateRequest,
    WindowDeleteRequest,
    WindowHistoryAnswer,
    WindowHistoryRequest,
    WindowsAnswer,
    WindowsRequest,
)
from slicewise.slurm_plugin.rules.quota.calendar import (
    Window,
    WindowKind,
    check_numbers,
    moment_text,
    overcommitted_at,
)
from slicewise.slurm_plugin.rules.quota.calendar_times import moments

_OF_CAPACITY = (WindowKind.NOMINAL, WindowKind.CAP)


class CalendarDesk(LedgerDesk):
    """Windows are added and deleted in one transaction each.

    The newest window that is added again as it stands is not added twice.
    """

    def handlers(self) -> ReaderHandlers:
        """What answers each request; they raise what those of ``TenantDesk`` do."""
        return hiding_places(
            {
                WindowsRequest: self._windows,
                WindowHistoryRequest: self._history,
                WindowCreateRequest: self._create,
                WindowDeleteRequest: self._delete,
            }
        )

    async def _windows(self, _: WindowsRequest, principal: Principal) -> WindowsAnswer:
        def read() -> WindowsAnswer:
            windows, policy = self._ledger.windows.not_over(), self._ledger.tenants.policy()
            return WindowsAnswer(windows=windows, policy=policy)

        return await self._read(principal, read)

    async def _history(self, _: WindowHistoryRequest, principal: Principal) -> WindowHistoryAnswer:
        records = await self._read(principal, self._ledger.windows.history)
        return WindowHistoryAnswer(records=records)

    async def _create(self, request: WindowCreateRequest, principal: Principal) -> WindowAnswer:
        """Add it, unless quotas exceed the cluster with it (SW-QUOTA-CAPACITY).

        One wrong number would let tenants' jobs contend, perhaps at night.
        """
        window, ledger = request.window, self._ledger
        check_numbers(window)
        is_checked = window.kind is WindowKind.NOMINAL and not request.overcommit
        whole, why_not = self._capacity() if is_checked else (None, "")
        author, zone = request.author or principal.user, self._settings.ledger.time_zone

        def change() -> Window:
            if whole is not None and (above := self._above(window, whole, is_removed=False)):
                raise InvalidInputError(
                    Code.QUOTA_CAPACITY,
                    above,
                    "Give less, set a window of less for another tenant first, or say"
                    " --overcommit.",
                )
            return ledger.windows.add(window, author, request.reason, zone)

        return WindowAnswer(window=await self._change(principal, change), warning=why_not)

    async def _delete(self, request: WindowDeleteRequest, principal: Principal) -> WindowAnswer:
        author, (whole, why_not) = request.author or principal.user, self._capacity()

        def change() -> WindowAnswer:
            removed = self._ledger.windows.end(request.window_id, author, request.reason)
            if removed.kind not in _OF_CAPACITY:
                return WindowAnswer(window=removed)
            if whole is None:
                return WindowAnswer(window=removed, warning=why_not)
            above = self._above(removed, whole, is_removed=True)
            return WindowAnswer(window=removed, warning=above)

        return await self._change(principal, change)

    def _capacity(self) -> tuple[int | None, str]:
        """Millislices of all managed GPUs, and ""; None and why not where Slurm is silent."""
        try:
            self._reads.require_complete_view()
        except SlicewiseError as error:
            return None, f"Without Slurm: {error}"
        return self._reads.capacity_millislices(), ""

    def _above(self, window: Window, whole: int, *, is_removed: bool) -> str:
        """Say from when on and by how much quotas would exceed the cluster; "" if not at all."""
        ledger, now_s = self._ledger, self._cluster_state.clock.shown_s
        windows = [window for window in ledger.windows.not_over() if window.kind in _OF_CAPACITY]
        when = moments((*windows, window), now_s, self._settings.ledger.time_zone)
        found = overcommitted_at(
            ledger.tenants.policy(), windows, window, when, whole, is_removed=is_removed
        )
        if found is None:
            return ""
        moment, above = found
        return (
            f"From {moment_text(moment)} on, the quotas at the top would be {slices_words(above)}"
            f" above the cluster's {slices_text(whole)}: jobs within their guarantee may wait for"
            " each other."
        )
