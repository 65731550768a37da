"""Changes the journal of repartitions for operators."""

import os
import socket

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.language.gpus.repartitions import Repartition, RepartitionState
from slicewise.cluster.rpc.journal_messages import RepartitionAnswer
from slicewise.slurm_plugin.api.access import Principal, ReaderHandlers
from slicewise.slurm_plugin.api.ledger_desk import LedgerDesk
from slicewise.slurm_plugin.api.reads import hiding_places
from slicewise.slurm_plugin.common.repartition_requests import RepartitionCloseRequest


class RepartitionDesk(LedgerDesk):
    """Repartitions themselves are root's work: ``slicewise repartition run``."""

    def handlers(self) -> ReaderHandlers:
        """What answers each request.

        They raise InvalidInputError (SW-NAME-UNKNOWN, SW-NOTHING), OutsideError (SW-LOCK) while a
        run cuts GPUs, and what those of ``TenantDesk`` do.
        """
        return hiding_places({RepartitionCloseRequest: self._close})

    async def _close(
        self, request: RepartitionCloseRequest, principal: Principal
    ) -> RepartitionAnswer:
        author, repartition_id = request.author or principal.user, request.repartition_id

        def change() -> Repartition:
            lock = self._ledger.locks.repartitioning(
                f"{socket.gethostname()}, process {os.getpid()}"
            )
            try:
                if not lock.hold():
                    # The run would overwrite it.
                    raise OutsideError(
                        Code.LOCK,
                        f"A run cuts GPUs now ({lock.holder()}): nothing was changed.",
                        "Close it when that run has ended: slicewise repartition history",
                    )
                return self._closed(repartition_id, author)
            finally:
                lock.give_up()

        return RepartitionAnswer(repartition=await self._change(principal, change))

    def _closed(self, repartition_id: int, author: str) -> Repartition:
        journal = self._ledger.repartitions
        repartition = journal.find(repartition_id)
        if repartition.state is RepartitionState.CLOSED:
            return repartition
        if repartition.state is not RepartitionState.STUCK:
            raise InvalidInputError(
                Code.NOTHING,
                f"Repartition {repartition_id} is not stuck: nothing was changed.",
                "One in state running is finished by: slicewise repartition run",
            )
        journal.finish(repartition_id, RepartitionState.CLOSED, f"closed by {author}")
        return journal.find(repartition_id)
