"""Property: each run is charged exactly once, whatever happens between Slurm and the ledger."""

from builders.ledger_world import World
from effort import examples
from hypothesis import settings


class LedgerInMemory(World):
    pass


LedgerInMemory.TestCase.settings = settings(
    max_examples=examples(100, nightly=10_000), stateful_step_count=40
)
TestLedgerInMemory = LedgerInMemory.TestCase
