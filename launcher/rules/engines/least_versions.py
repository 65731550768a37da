"""Which version of an engine is the least that a site should run, and by whose word.

Engines are attacked through what replicas serve: clients' requests, models, shared memory. A new
bulletin is a change of this table alone, with the day of the look at all of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

LAST_LOOK = "2026-11-28"
"""Day on which the publishers' bulletins were looked through last."""
_VERSION = re.compile(r"b?([0-9]{1,9}(?:\.[0-9]{1,9}){0,3})", re.ASCII)


@dataclass(frozen=True)
class LeastVersion:
    """The version of an engine that mends the holes that are known.

    Attributes:
        numbers: the version as the server states it.
        release: the version as its publisher calls it.
        bulletin: address of the newest bulletin that asks for it.
        holes: what is known of older ones.
        stated_in: where an installation states its version, as a pattern from the directory above
            its server's; "" if nowhere.
    """

    numbers: tuple[int, ...]
    release: str
    bulletin: str
    holes: str
    stated_in: str = ""


_CVES = "https://raw.githubusercontent.com/CVEProject/cvelistV5/main/cves/2026"

LEAST_VERSIONS: Mapping[str, LeastVersion] = {
    "Triton": LeastVersion(
        (2, 71, 0),
        "26.07 (2.71.0)",
        "https://raw.githubusercontent.com/NVIDIA/product-security/main/2026/5875/5875.json",
        "seven bulletins of NVIDIA's in 2026, of which 5828 and 5865 are critical: clients get "
        "round authentication and run code (CVE-2026-24207)",
        "TRITON_VERSION",
    ),
    "llama.cpp": LeastVersion(
        (12405,),
        "b12405",
        f"{_CVES}/134xxx/CVE-2026-134540.json",
        "a request gives the sampler what is not checked (CVE-2026-134540), or writes where memory "
        "was freed (CVE-2026-107183, before b11393)",
    ),
    "vLLM": LeastVersion(
        (0, 32, 0),
        "0.32.0",
        "https://osv.dev/vulnerability/PYSEC-2026-4344",
        "a request blocks the server or takes all memory by a template of its own "
        "(PYSEC-2026-4344, PYSEC-2026-4349); before 0.31.0 it chooses code that is run where "
        "trust_remote_code is on (CVE-2026-114053). GHSA-5r3c-5x4v-8gjh is said to be mended in "
        "0.33.0: its own text could not be had, so take that where you can",
        "lib/python3*/site-packages/vllm-*.dist-info",
    ),
    "SGLang": LeastVersion(
        (0, 5, 23),
        "0.5.23",
        f"{_CVES}/111xxx/CVE-2026-111392.json",
        "a request spoils what the cache has for others (CVE-2026-111392, up to 0.5.21), or runs "
        "code where the dumper is on (CVE-2026-111391, up to 0.5.22). That 0.5.23 mends them "
        "follows from the versions that these records name: no bulletin of SGLang's says it",
        "lib/python3*/site-packages/sglang-*.dist-info",
    ),
}
"""By the engine's title."""


def is_too_old(title: str, version: str) -> bool:
    """Whether that engine's version, as its server states it, is below the least.

    False for what is no version, such as of a build of one's own (``b0-unknown``).
    """
    least, match = LEAST_VERSIONS.get(title), _VERSION.match(version)
    numbers = tuple(map(int, match[1].split("."))) if match else ()
    return least is not None and any(numbers) and numbers < least.numbers


def upgrade(title: str) -> str:
    """By what an older version of that engine should be replaced, and by whose word."""
    least = LEAST_VERSIONS.get(title)
    if least is None:
        return "use a newer one"
    return f"use {title} {least.release} or newer; older ones have known holes: {least.bulletin}"
