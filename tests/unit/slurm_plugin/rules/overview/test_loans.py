"""Tests what an overview says of loans: what is asked for, and how far what comes has come."""

from builders.overview_world import ALICE, ROOT, facts, service
from builders.service_views import slots_in
from builders.why_world import NOW_S, job

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.overview.loans import loans_now
from slicewise.slurm_plugin.rules.quota.types import Recall

LOANS = {("bio", "nlp"): 2000, ("vision", "nlp"): 1000, ("bio", "lab"): 500}
RECALL = Recall("vision", "nlp", Millislices(1000), called_s=NOW_S - 60)


def test_a_recalled_part_comes_first_with_what_its_lender_waits_for_and_what_still_ends() -> None:
    slots = slots_in("running", "ending", "released", "starting", "held")
    slots = tuple(one.model_copy(update={"is_borrowed": one.index > 0}) for one in slots)
    chat = service("nlp/chat", 950, slots=slots)
    known = facts(job(20, "Resources"), services=(chat,), loans=LOANS, recalls=(RECALL,))
    found = loans_now(known, ROOT)
    ends = [(one.lender, one.borrower, one.amount_millislices) for one in found]
    assert ends == [("vision", "nlp", 1000), *((*key, n) for key, n in sorted(LOANS.items()))]
    first, *others = found
    assert (first.back_s, first.lender_waits_millislices) == (NOW_S - 60 + 300, 1000)
    assert (first.released, first.starting, first.running, first.ending) == (1, 1, 0, 1)
    assert {one.back_s for one in others} == {None}
    assert found[1].lender_waits_millislices == 0


def test_ends_that_the_reader_may_not_read_are_one_without_a_name_or_figures() -> None:
    chat = service("nlp/chat", 950, slots=slots_in("running"))
    known = facts(services=(chat,), loans={**LOANS, ("vision", "bio"): 2000}, recalls=(RECALL,))
    recalled, lent = loans_now(known, ALICE)
    assert (recalled.lender, recalled.borrower, recalled.running) == ("vision", "", 0)
    assert (lent.lender, lent.borrower, lent.amount_millislices) == ("vision", "", 3000)
