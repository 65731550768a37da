"""Tests in how many steps a person is forgotten."""

from datetime import date, timedelta
from typing import Any

import pytest
from stand_ins.scripted import ScriptedLedger, ScriptedSlurm, settings, sync_of

from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.api.record_desk import RecordDesk
from slicewise.slurm_plugin.common.usage_requests import ForgetPersonRequest
from slicewise.slurm_plugin.ledger.usage import ForgottenDay

pytestmark = pytest.mark.usefixtures("clock")

FIRST = date(2026, 1, 1)


class Usage:
    """A person has asked on forty days, twice each."""

    def __init__(self) -> None:
        self.barred: list[str] = []

    def bar_person(self, person: str, tenant: str | None) -> None:
        self.barred.append(f"{tenant}/{person}")

    def forget_person(self, person: str, tenant: str | None, after: date | None) -> ForgottenDay:
        day = FIRST if after is None else after + timedelta(days=1)
        return ForgottenDay(day, 2) if (day - FIRST).days < 40 else ForgottenDay(None, 0)


async def test_a_person_is_barred_once_and_forgotten_a_month_a_request() -> None:
    ledger: Any = ScriptedLedger()
    ledger.usage = Usage()
    slurm = ScriptedSlurm()
    cluster_state = sync_of(slurm, "enforce")
    reads = Reads(settings("enforce"), slurm, ledger, cluster_state)
    desk = RecordDesk(settings("enforce"), ledger, cluster_state, reads)
    handle = desk.handlers()[ForgetPersonRequest]
    request, records = ForgetPersonRequest(person="alice", tenant="vision"), []
    while True:
        answer: Any = await handle(request, Principal(0, "root", None))
        records.append(answer.records)
        if answer.more is None:
            break
        request = request.model_copy(update={"after": answer.more})
    assert records == [62, 18]
    assert ledger.usage.barred == ["vision/alice"]
