"""Reads a file of quotas from the disk."""

from pathlib import Path

from slicewise.cluster.runtime.input_file import bounded_text
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.quota.quota_file import FileFaults, quota_updates, unreadable
from slicewise.slurm_plugin.rules.quota.types import Policy, TenantUpdate


def read_quota_file(
    path: Path, policy: Policy, settings: Settings
) -> tuple[tuple[TenantUpdate, ...], FileFaults]:
    """Return one update for each table, in the file's order, and what is wrong with the others.

    Raises InvalidInputError for a file that can't be read at all, as ``quota_file_text`` does.
    """
    return quota_updates(str(path), quota_file_text(path), policy, settings)


def quota_file_text(path: Path) -> str:
    """Return the file's text.

    Raises InvalidInputError: SW-INPUT-FILE if it can't be read, SW-VALUE if it is too long.
    """
    try:
        return bounded_text(path)
    except OSError as error:
        raise unreadable(str(path), f"{error.strerror}.") from None
    except UnicodeDecodeError:
        raise unreadable(str(path), "it is not UTF-8 text.") from None
