"""Reads what administrators alone set in slurmdbd: bounds of QOS, and who may change them."""

from collections.abc import Mapping

BOUNDS = (
    *("MaxTRESPerUser", "MaxTRESPerAccount", "MaxTRESPerJob", "MaxTRESPerNode"),
    *("MaxTRESMinsPerJob", "MinTRESPerJob", "GrpTRESMins", "GrpJobs", "GrpSubmitJobs", "GrpWall"),
    *("MaxJobsPerUser", "MaxJobsPerAccount", "MaxSubmitJobsPerUser", "MaxSubmitJobsPerAccount"),
    "MaxWall",
)
"""Limits of a QOS that Slicewise never sets, as ``sacctmgr`` calls them."""

_MAY_CHANGE = frozenset({"Operator", "Administrator"})


def parse_qos_bounds(text: str) -> Mapping[str, Mapping[str, str]]:
    """Read ``sacctmgr -n -P show qos`` with Name and BOUNDS: those that are set, by QOS."""
    rows = (line.split("|") for line in text.splitlines())
    return {
        name: bounds
        for name, *cells in rows
        if len(cells) == len(BOUNDS)
        and (bounds := {key: cell for key, cell in zip(BOUNDS, cells, strict=True) if cell})
    }


def parse_admins(text: str) -> Mapping[str, str]:
    """Read ``sacctmgr -n -P show user`` with User and AdminLevel: who may change QOS and limits."""
    rows = (line.split("|") for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2 and row[1] in _MAY_CHANGE}  # noqa: PLR2004
