"""What operators ask the daemon about Slurm's limits, and have it set."""

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import PlainSerializer

from slicewise.cluster.rpc.message import Asks, Message, Request, WholeAnswer
from slicewise.slurm_plugin.rules.limits.changes import LimitChange
from slicewise.slurm_plugin.rules.limits.desired import Difference
from slicewise.slurm_plugin.rules.limits.drift import OutOfBandChange

_WHOLE = PlainSerializer(asdict, dict[str, Any])
"""As a document for people these values leave something out."""
WholeDifference = Annotated[Difference, _WHOLE]
WholeOutOfBandChange = Annotated[OutOfBandChange, _WHOLE]


class LimitsPlanAnswer(WholeAnswer):
    """What Slurm does not have as the ledger says."""

    differences: tuple[WholeDifference, ...]
    changed_by_hand: tuple[WholeOutOfBandChange, ...]
    warnings: tuple[str, ...]


class LimitsPlanRequest(Request, Asks[LimitsPlanAnswer], get="limits-plan", asker="operators"):
    """Which of Slurm's limits would a compilation change now?"""


class CompiledLimits(Message):
    """What a compilation has changed in Slurm: the words of each sacctmgr command.

    Attributes:
        refused: commands that Slurm refused, with its words.
        waits: what is left to the next compilation.
    """

    changes: tuple[LimitChange, ...]
    refused: tuple[tuple[LimitChange, str], ...]
    waits: tuple[WholeDifference, ...]
    changed_by_hand: tuple[WholeOutOfBandChange, ...]
    warnings: tuple[str, ...]


class CompileAnswer(WholeAnswer):
    """What a compilation has changed; None while it is under way. ``errand`` is its name."""

    errand: str
    compiled: CompiledLimits | None


class CompileRequest(Request, Asks[CompileAnswer], post="compile", asker="operators"):
    """Brings Slurm's limits to what the ledger says; ``again``: also after an uninstall."""

    again: bool = False


class CompileOutcomeRequest(Request, Asks[CompileAnswer], get="compile-outcome", asker="operators"):
    """What did the compilation of this name come to?"""

    errand: str
