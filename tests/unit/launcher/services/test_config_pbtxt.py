"""Checks how config.pbtxt is read, with no package of Triton's."""

from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.text_format import Parse
from tritonclient.grpc import model_config_pb2

from slicewise.launcher.services import config_pbtxt
from slicewise.launcher.services.config_pbtxt import parse_config

DESCRIPTOR = Path(config_pbtxt.__file__).with_name("model_config.textproto")


def test_the_descriptor_is_that_of_tritonclient() -> None:
    """After a new tritonclient: its descriptor as text, a field a line, below the licence."""
    theirs, ours = FileDescriptorProto(), FileDescriptorProto()
    model_config_pb2.DESCRIPTOR.CopyToProto(theirs)
    Parse(DESCRIPTOR.read_text(), ours)
    assert ours == theirs


def test_keys_are_as_in_the_file_and_enums_have_names() -> None:
    text = 'name: "sum" instance_group [{ count: 2 kind: KIND_GPU }] input { dims: [ -1 ] }'
    assert parse_config(text) == {
        "name": "sum",
        "instance_group": [{"count": 2, "kind": "KIND_GPU"}],
        "input": [{"dims": ["-1"]}],
    }


def test_a_fault_has_its_line_and_column() -> None:
    with pytest.raises(ValueError, match=r'^2:1 : .*no field named "nam"'):
        parse_config('backend: "python"\nnam: "sum"')
