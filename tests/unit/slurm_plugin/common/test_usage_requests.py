"""Tests what a question about tokens may say."""

import pytest
from pydantic import ValidationError

from slicewise.slurm_plugin.common.usage_requests import TokenUsageRequest


@pytest.mark.parametrize(
    "after", ["[]", '["a", "b"]', "{", "null", "[" * 5000, '[["a"]]', "[1]", '["\\u0000"]']
)
def test_where_no_page_has_ended_none_begins(after: str):
    with pytest.raises(ValidationError, match="after"):
        TokenUsageRequest.model_validate({"by": "service", "after": after})


def test_a_page_begins_where_one_has_ended():
    words = '["vision", "alice", "-"]'
    request = TokenUsageRequest.model_validate({"by": "key", "after": words})
    assert request.after == ("vision", "alice", "-")
