"""Reads the size of a MIG instance out of the name that a site or a driver gives its GRES type.

Names in use: ``1g.10gb``, ``nvidia_a100_3g.39gb`` (Slurm's own, from rounded memory), with a site's
prefix as ``a100l.1g.10gb``, with an engine as ``1g.10gb+me``, ``.me`` or ``.gfx``, in any case.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

_SIZED = re.compile(r"[1-7]g.?[0-9]+gb", re.IGNORECASE)
_SIZE = re.compile(
    r"(?P<before>.*?)(?<![0-9])(?P<slices>[1-7])g[._-]?(?P<gb>[0-9]{1,4})gb"
    r"(?:(?P<sign>[+._-])(?P<engine>me[._]all|me|gfx)(?![a-z0-9]))?(?P<after>.*)"
)
_OF_A_COMPUTE_INSTANCE = re.compile(r"[0-9]c[._-]?$")
_SIGNS = "+._-"
_PART = re.compile(
    r"(?<![a-z])(?:mig|vgpu|shared|slice[ds]?|half|quarter)(?![a-z])"
    r"|(?<![a-z0-9])(?:[1-7]g[0-9]{0,3}|[dtqc]px)(?![a-z0-9])|-[0-9]{1,2}[cq]$",
    re.IGNORECASE,
)
"""Words for parts of GPUs, of which they say no size; ``-48q`` and ``-10c`` are NVIDIA's vGPUs."""
_GPU = re.compile(
    r"(?<![a-z])(?:[a-z]{1,2}[0-9]{2,4}|rtx|gtx|geforce|tesla|quadro|titan)", re.IGNORECASE
)
_MEMORY = re.compile(r"(?<![a-z0-9])([0-9]{2,3})(?:gi?b?)?(?![a-z0-9])")
_MEMORY_IN_GB = re.compile(r"(?<![a-z0-9])([0-9]{1,3})gi?b?(?![a-z0-9])")
NAMES_RULE = (
    "A type of MIG instances has the profile's size in its name: 1g.18gb, nvidia_h200_1g.18gb,"
    " h200.1g.18gb+me; also with the memory as drivers round it, 1g.16gb."
)


@dataclass(frozen=True)
class MigName:
    """What a type's name says of its instances.

    Attributes:
        stem: what stands before the size and behind it, in small letters; "" if nothing does.
        compute_slices: such as 3 of ``3g.40gb``.
        memory_gb: such as 40; drivers and Slurm round it in different ways.
        extension: ``+me``, ``+me.all``, ``-me`` or ``+gfx``; "" for a plain profile.
    """

    stem: str
    compute_slices: int
    memory_gb: int
    extension: str

    @property
    def size(self) -> str:
        """Size and extension as NVIDIA writes them: ``3g.40gb``."""
        return f"{self.compute_slices}g.{self.memory_gb}gb{self.extension}"


def has_mig_size(gres_type: str) -> bool:
    """Whether the name has the size of a MIG instance in it: then it is no whole GPU."""
    return _SIZED.search(gres_type) is not None


def names_part(gres_type: str) -> bool:
    """Whether the name has a word for a part of a GPU in it: it may be no whole GPU."""
    return has_mig_size(gres_type) or _PART.search(gres_type) is not None


@lru_cache(1 << 10)
def mig_name(gres_type: str) -> MigName | None:
    """Read a type's name; None without a size, and where it is not beyond doubt.

    A name such as ``1c.3g.40gb`` is in doubt: it is a part of an instance, whose memory others use.
    """
    match = _SIZE.fullmatch(gres_type.lower())
    if match is None or _OF_A_COMPUTE_INSTANCE.search(match["before"]):
        return None
    after = match["after"]
    if has_mig_size(after) or (after and after[0] not in _SIGNS):
        return None
    engine = (match["engine"] or "").replace("_", ".")
    sign = "-" if (match["sign"], engine) == ("-", "me") else "+"
    return MigName(
        stem=f"{match['before'].rstrip(_SIGNS)}{after}".strip(_SIGNS),
        compute_slices=int(match["slices"]),
        memory_gb=int(match["gb"]),
        extension=f"{sign}{engine}" if engine else "",
    )


def short_name(gres_type: str) -> str:
    """The type without its GPU's name: ``1g.10gb`` of ``a100l.1g.10gb``."""
    name = mig_name(gres_type)
    return name.size if name is not None else gres_type.rpartition("_")[2]


def has_word(text: str, word: str) -> bool:
    """Whether a GPU's name stands in the text on its own: ``a100`` does in ``nvidia_a100l-sxm``.

    A letter may follow, but no digit, and nothing of a word may stand before: ``gh200`` is no
    ``h200``.
    """
    spelled = "[ ._-]?".join(map(re.escape, word.lower().split("-")))
    return re.search(rf"(?<![a-z0-9]){spelled}(?![0-9])", text.lower()) is not None


def names_gpu(text: str) -> bool:
    """Whether the text names some GPU, as ``rtx_pro_5000`` does and ``mig`` does not."""
    return _GPU.search(text) is not None


def memory_words(text: str, *, unit: bool = False) -> frozenset[int]:
    """Numbers that may be a GPU's GB in its name: ``{80}`` of ``nvidia_a100_80gb_pcie``.

    With ``unit`` only those with a unit behind them.
    """
    pattern = _MEMORY_IN_GB if unit else _MEMORY
    return frozenset(map(int, pattern.findall(text.lower().replace("_", " "))))
