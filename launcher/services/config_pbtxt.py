"""Reads a model's config.pbtxt: protobuf's text format of Triton's message ModelConfig."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_format import Parse, ParseError


def parse_config(text: str) -> Mapping[str, Any]:
    """Return the keys that are set, as the file calls them: messages as dicts, enums by name.

    Numbers of 64 bits are texts. Raises ValueError with line, column and reason.
    """
    message = _model_config()()
    try:
        Parse(text, message)
    except ParseError as error:
        # Its last part repeats the line, whatever its length.
        raise ValueError(f"{error}"[:_MOST_TEXT]) from None
    message_fields: Mapping[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return message_fields


_MOST_TEXT = 200
"""Characters of protobuf's message at most."""


@cache
def _model_config() -> Any:
    """Make the message's class from its descriptor: to install tritonclient for it takes 60 MB.

    The pool is its own, so that a program may load tritonclient, too.
    """
    described = FileDescriptorProto()
    file = Path(__file__).with_name("model_config.textproto")
    Parse(file.read_text(encoding="utf-8"), described)
    pool = DescriptorPool()
    pool.Add(described)
    return GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))
