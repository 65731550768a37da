"""Names of inference engines, as service files and slicewise.toml give them."""

from typing import Annotated

from pydantic import StringConstraints

ENGINE_NAME = "[a-z][a-z0-9]{0,31}"
EngineName = Annotated[str, StringConstraints(pattern=f"^{ENGINE_NAME}$")]
ENGINE_NAME_WORDS = "1 to 32 lower-case letters and digits, the first a letter"
