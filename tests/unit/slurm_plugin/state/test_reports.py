"""Tests what the daemon keeps of the launcher's reports."""

import pytest
from builders.service_views import a_report, a_service

from slicewise.cluster.language.leader import ALONE
from slicewise.cluster.language.starts import ClassTimes, StartTrace
from slicewise.cluster.rpc.messages import ServiceReport, ServiceReportRequest
from slicewise.slurm_plugin.state.reports import ServiceReports

pytestmark = pytest.mark.usefixtures("clock")

FIRST, SECOND = (
    StartTrace(814, slot, {"desired": 1.0, "ready": 2.0}, "ready") for slot in range(2)
)


def take(reports: ServiceReports, *told: ServiceReport) -> None:
    reports.take(ServiceReportRequest(services=told))


def test_starts_are_kept_apart_and_a_report_shows_the_newest():
    reports, chat = ServiceReports(ALONE), a_service()
    take(reports, a_report(starts=(FIRST, SECOND)))
    (shown,) = reports.of([chat])
    assert shown.starts == (SECOND,)
    assert shown.start_classes == (ClassTimes("remote", 2, 1.0, 1.0),)
    (kept,) = reports.starts([chat, chat])
    assert (kept.tenant, kept.name, kept.starts) == ("vision", "chat", (FIRST, SECOND))


def test_a_report_that_says_nothing_of_starts_changes_none():
    reports, chat = ServiceReports(ALONE), a_service()
    take(reports, a_report(starts=(FIRST,)))
    take(reports, a_report(starts=None, held=3))
    (shown,) = reports.of([chat])
    assert (shown.held, shown.starts) == (3, (FIRST,))
    assert [times.starts for times in shown.start_classes] == [1]
    take(reports, a_report(starts=()))
    assert reports.starts([chat])[0].starts == ()
    assert reports.of([chat])[0].start_classes == ()


def test_of_a_service_that_was_not_reported_there_are_none():
    (kept,) = ServiceReports(ALONE).starts([a_service()])
    assert kept.starts == ()
