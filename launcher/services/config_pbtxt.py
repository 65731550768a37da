"""Reads a model's config.pbtxt: protobuf's text format of Triton's message ModelConfig."""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.text_format import Parse, ParseError


def parse_config(text: str) -> Mapping[str, Any]:
    """Return the keys that are set, as the file calls them: messages as dicts, enums by name.

    Numbers of 64 bits are texts. Raises ValueError with line, column and reason.
    """
    message = _messages().ModelConfig()
    try:
        Parse(text, message)
    except ParseError as error:
        # Its last part repeats the line, whatever its length.
        raise ValueError(f"{error}"[:_MOST_TEXT]) from None
    found: Mapping[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


_MOST_TEXT = 200
"""Characters of protobuf's message at most."""


@cache
def _messages() -> Any:
    """Load the messages that tritonclient brings, without gRPC, which its package would import."""
    package = find_spec("tritonclient")
    places = package.submodule_search_locations if package is not None else None
    file = Path(next(iter(places or ()))) / "grpc" / "model_config_pb2.py"
    spec = spec_from_file_location("slicewise_model_config", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} can't be loaded")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
