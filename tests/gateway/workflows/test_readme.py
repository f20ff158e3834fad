"""The workflow file in the documentation is one."""

import re
from pathlib import Path

from gateway.workflows.definition.parser import load

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "workflows.md"


def test_the_guides_file_is_good() -> None:
    blocks = re.findall(r"```yaml\n(workflow: .*?)```", PAGE.read_text(), re.DOTALL)
    assert [load(block, {}).workflow for block in blocks] == ["yard"]
