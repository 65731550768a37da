"""Reads accounts and their limits from what ColdFront's REST API answers.

``GET /api/allocations/?allocation_attributes=true`` lists allocations with their attributes
(ColdFront 1.1, ``coldfront.plugins.api``). Its plugin for Slurm uses ``slurm_account_name``,
``slurm_parent`` and ``slurm_specs``. A site may add ``slicewise_quota``, for what Slurm's own words
can't say.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from slicewise.cluster.language.accounts import account_name
from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.slurm.account_dump import DumpedAccount, account_limits

_STANDING = ("Active", "Renewal Requested")
"""States of the allocations that ColdFront writes to Slurm."""
_NAME, _PARENT, _SPECS, _QUOTA = (
    "slurm_account_name",
    "slurm_parent",
    "slurm_specs",
    "slicewise_quota",
)


def parse_allocations(text: str) -> tuple[DumpedAccount, ...]:
    """Return the accounts of all standing allocations; several of one account are one.

    Raises InvalidInputError (SW-INPUT-FILE) for text of another form.
    """
    attributes: dict[str, dict[str, list[str]]] = {}
    try:
        for allocation in json.loads(text):
            if allocation["status"] not in _STANDING:
                continue
            if allocation["allocation_attributes"] is None:
                raise _unreadable("it has no attributes")
            attribute_values = _by_name(allocation["allocation_attributes"])
            for name in attribute_values.get(_NAME, ())[:1]:
                merged = attributes.setdefault(account_name(name), {})
                for key, values in attribute_values.items():
                    merged.setdefault(key, []).extend(values)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _unreadable("it is no list of allocations") from None
    return tuple(
        account_limits(
            account,
            _last(account_values, _PARENT),
            account_values.get(_SPECS, ()),
            _last(account_values, _QUOTA).strip(),
        )
        for account, account_values in attributes.items()
    )


def _by_name(attributes: Iterable[Mapping[str, Any]]) -> Mapping[str, list[str]]:
    values: dict[str, list[str]] = {}
    for attribute in attributes:
        values.setdefault(attribute["allocation_attribute_type"], []).append(
            str(attribute["value"])
        )
    return values


def _last(values: Mapping[str, list[str]], key: str) -> str:
    return values.get(key, [""])[-1]


def _unreadable(why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.INPUT_FILE,
        f"This is no answer of ColdFront: {why}.",
        "Ask for /api/allocations/?allocation_attributes=true.",
    )
