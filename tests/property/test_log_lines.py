"""Properties of log lines: no text makes a second one, and every field is read back as it was."""

import json
import logging

import pytest
from effort import examples
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from log_lines import lines, parse_logfmt

from slicewise.cluster.runtime.log import TEXT_CHARACTERS, bound, emit

pytestmark = pytest.mark.usefixtures("clock")

LOG = logging.getLogger("slicewise.tests")
HOSTILE = st.sampled_from(
    (
        *('\n{"event": "forged"}', '"} \r\n{"event":"x"', "\nlevel=info event=forged", '" a="'),
        *("a\\", '\\"', "\x1b[2K", "\x00", "\x7f", "\x85", "\u2028", "\u2029", "\udcff", "\v\f"),
    )
)
TEXT = st.lists(st.text() | HOSTILE, max_size=6).map("".join)
TEXTS = st.dictionaries(st.sampled_from(("job_name", "account", "why")), TEXT)


@hypothesis_settings(max_examples=examples(200))
@given(fields=TEXTS, service=TEXT)
def test_any_text_is_one_line_that_is_read_back(fields: dict[str, str], service: str) -> None:
    wanted = {**fields, "service": service}
    assert all(len(text) <= TEXT_CHARACTERS for text in wanted.values())
    for form in ("logfmt", "json"):
        with lines(form) as caught, bound(service=service):  # type: ignore[arg-type]
            emit(LOG, logging.INFO, "submit_refuse", fields)
        (line,) = caught.texts
        assert line.isprintable()
        assert line.isascii()
        found = json.loads(line) if form == "json" else parse_logfmt(line)
        assert found.pop("time")
        head = {"level": "info", "program": "tests", "event": "submit_refuse"}
        assert found == head | wanted
