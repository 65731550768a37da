"""The ledger's books as the daemon shows them: users see those of their own tenants."""

from collections.abc import Mapping

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.history_messages import HistoryAnswer, HistoryRequest
from slicewise.cluster.rpc.messages import ViewRequest
from slicewise.slurm_plugin.cli.common.answer_pages import pages
from slicewise.slurm_plugin.common.energy_requests import EnergyRequest
from slicewise.slurm_plugin.common.ledger_requests import SharesRequest, StatementRequest
from slicewise.slurm_plugin.common.tariff_requests import MOST_DAYS, ChargesRequest
from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeLine, merged
from slicewise.slurm_plugin.rules.accounting.statement import totals
from slicewise.slurm_plugin.rules.accounting.types import ShareLine, Statement


class Books:
    """Reads of the books; each raises InvalidInputError (SW-TENANT-UNKNOWN) and what calls do."""

    def __init__(self, daemon: DaemonClient) -> None:
        self._daemon = daemon

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int, tuple[str, ...]]:
        """Return runs that ended at ``since_s`` or later, or still run.

        Of a tenant, those of its account and those that it pays for, where the caller may see them.
        The second value is the time up to which running ones are counted, in Unix seconds; the
        third are the tenants below that one of whose runs it has none but those that it pays for.
        """
        request = StatementRequest.of(tenant=tenant, since_s=since_s)
        answers = tuple(
            pages(lambda after: self._daemon.call(request.model_copy(update={"after": after})))
        )
        rows = tuple(row for answer in answers for row in answer.rows)
        return Statement(rows, totals(rows)), answers[-1].now_s, answers[0].charged_below

    def shares(
        self, tenant: str | None, since_s: int, until_s: int | None
    ) -> tuple[ShareLine, ...]:
        """Return shares by the day, of days that begin from ``since_s`` up to ``until_s``.

        Of a tenant, its own and those that it pays for, where the caller may see them.
        """
        request = SharesRequest.of(tenant=tenant, since_s=since_s, until_s=until_s)
        answers = pages(
            lambda after: self._daemon.call(request.model_copy(update={"after": after}))
        )
        return tuple(line for answer in answers for line in answer.lines)

    def charges(
        self, tenant: str | None, from_s: int, until_s: int
    ) -> tuple[str, tuple[ChargeLine, ...]]:
        """Return the currency ("" without a tariff), and all that was charged in that time.

        Of a tenant, its own and what it pays for, where the caller may see it. Raises
        InvalidInputError (SW-VALUE) for more than ``MOST_DAYS``.
        """
        if until_s - from_s > MOST_DAYS * 86_400:
            raise InvalidInputError(
                Code.VALUE,
                f"That is more than {MOST_DAYS} days: charges are listed of so many at most.",
                "Ask for a part of it: --from and --until.",
            )
        request = ChargesRequest.of(tenant=tenant, since_s=from_s, until_s=until_s)
        answers = tuple(
            pages(lambda after: self._daemon.call(request.model_copy(update={"after": after})))
        )
        return answers[0].currency, merged(line for answer in answers for line in answer.lines)

    def energy(self, tenant: str | None, from_s: int, until_s: int) -> Mapping[str, int] | None:
        """Return the millijoules of tenants' runs in that time, measured and by the table of watts.

        None where they can't be added up; ``slicewise energy`` then says why.
        """
        request = EnergyRequest.of(by="tenant", tenant=tenant, since_s=from_s, until_s=until_s)
        try:
            answer = self._daemon.call(request)
        except InvalidInputError as error:
            if error.refusal.code != Code.VALUE:
                raise
            return None
        return {line.tenant: line.energy_mj for line in answer.lines if line.tenant}

    def tenants(self) -> tuple[str, ...]:
        """Return the names of the tenants that the caller may see."""
        return tuple(tenant.name for tenant in self._daemon.call(ViewRequest()).tenants)

    def history(self, request: HistoryRequest) -> HistoryAnswer:
        """Return figures over time."""
        return self._daemon.call(request)
