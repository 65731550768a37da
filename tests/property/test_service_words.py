"""Property: a service is the same from TOML as from its ``#SLICEWISE`` lines."""

from hypothesis import given, reject
from hypothesis import strategies as st

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.service import directives_of_script, service_spec

WORD = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,20}", fullmatch=True)
VARIABLES = st.dictionaries(
    st.from_regex(r"[A-Z_][A-Z0-9_]{0,12}", fullmatch=True),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40),
    max_size=5,
)
SPECS = st.fixed_dictionaries(
    {
        "name": st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True),
        "tenant": st.from_regex(r"[a-z0-9_][a-z0-9_.-]{0,62}", fullmatch=True),
        "model_repository": st.from_regex(r"/[A-Za-z0-9_@%+=-]{0,30}", fullmatch=True),
        "model": st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,30}", fullmatch=True),
        "profile": WORD,
    },
    optional={
        "min_replicas": st.just(0),
        "max_replicas": st.integers(1, 256),
        "concurrency": st.integers(1, 1024) | st.just("auto"),
        "max_queue_s": st.floats(0, 86_400, exclude_min=True),
        "ttft_ms": st.integers(1, 86_400_000),
        "tpot_ms": st.integers(1, 86_400_000),
        "keep_alive_s": st.floats(0, 86_400),
        "lease_s": st.integers(60, 2_592_000),
        "priority_class": st.sampled_from(("low", "normal", "high")),
        "readiness": st.sampled_from(("inference", "model")),
        "session_affinity": st.sampled_from(("none", "sequence")),
        "pool": st.from_regex(r"[a-z0-9]{1,32}", fullmatch=True),
        "model_mib": st.integers(1, 2**30),
        "model_digest": st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
        "measured": st.from_regex(r"2026-11-29(,[1-9]:[0-9](:4\.5){2}){1,24}", fullmatch=True),
        "environment": VARIABLES,
    },
)
CONTAINERS = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "runtime": st.sampled_from(("apptainer", "pyxis")),
            "image": st.from_regex(r"[a-z/][A-Za-z0-9_./:@#+=-]{0,60}", fullmatch=True),
        }
    ),
)


@given(SPECS, CONTAINERS)
def test_what_is_accepted_reads_the_same_from_its_directives(
    values: dict[str, object], container: dict[str, object]
):
    try:
        spec = service_spec(values | container)
    except InvalidInputError:
        reject()
    lines = spec.directives()
    assert service_spec(directives_of_script(lines)) == spec
    assert all(line.isascii() and line.isprintable() for line in lines)
    assert max(len(line) for line in lines) <= 2048


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=3))
def test_only_names_that_a_shell_can_hold_and_printable_values_are_accepted(
    variables: dict[str, str],
):
    values = {
        "name": "a",
        "tenant": "t",
        "model_repository": "/m",
        "model": "m",
        "profile": "1g.10gb",
        "environment": variables,
    }
    try:
        spec = service_spec(values)
    except InvalidInputError as error:
        assert "environment" in error.refusal.message  # noqa: PT017
        return
    assert dict(spec.environment) == variables
    for name, value in spec.environment:
        assert name.isidentifier()
        assert name.isascii()
        assert not any(ord(one) < ord(" ") for one in value)
