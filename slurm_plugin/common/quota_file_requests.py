"""What operators ask the daemon about a file of quotas, and have it apply."""

import zlib
from base64 import b64decode, b64encode

from pydantic import BaseModel, Field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.rpc.message import NO_CONTROLS, Asks, Request, WholeAnswer
from slicewise.slurm_plugin.common.compile_requests import WholeDifference
from slicewise.slurm_plugin.common.tenant_requests import Authored
from slicewise.slurm_plugin.rules.explain.change_report import ChangeReport
from slicewise.slurm_plugin.rules.limits.changes import LimitChange

MOST_BYTES = 512 * 1024
"""Of a file of quotas: some thousand tenants."""
_MOST_PACKED = 56 * 1024
"""So that it fits into a request."""


def packed(text: str) -> str | None:
    """The text as requests have it; None if it is too long."""
    whole = text.encode()
    sent = b64encode(zlib.compress(whole)).decode()
    return sent if len(whole) <= MOST_BYTES and len(sent) <= _MOST_PACKED else None


class QuotaFile(BaseModel):
    """A file of quotas: its text ``packed``, and the name that errors give it."""

    packed: str = Field(max_length=_MOST_PACKED)
    file: str = Field(max_length=4096, pattern=NO_CONTROLS)

    @property
    def text(self) -> str:
        """The text; raises InvalidInputError (SW-WIRE) for what is none, or too long a one."""
        try:
            unpacking = zlib.decompressobj()
            whole = unpacking.decompress(b64decode(self.packed, validate=True), MOST_BYTES + 1)
            if unpacking.eof:
                return whole.decode()
        except (ValueError, zlib.error):
            pass
        raise InvalidInputError(Code.WIRE, "The file of quotas can't be unpacked.")


class QuotaFileAnswer(WholeAnswer):
    """What the file does, or would do.

    Attributes:
        differences: what Slurm's limits lack for it; ``commands``: those of sacctmgr that set them.
        change_id: the newest change of policy; None if nothing was written.
    """

    change: ChangeReport
    differences: tuple[WholeDifference, ...]
    commands: tuple[LimitChange, ...]
    change_id: int | None = None


class QuotaFileRequest(
    Request, QuotaFile, Asks[QuotaFileAnswer], post="quota-file", changes=False, asker="operators"
):
    """What would this file of quotas do now, also in Slurm? It changes nothing."""


class QuotaApplyRequest(
    Request, QuotaFile, Authored, Asks[QuotaFileAnswer], post="quota-apply", asker="operators"
):
    """Sets all that the file says, or nothing."""

    overcommit: bool = False
