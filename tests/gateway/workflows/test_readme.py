"""The workflow file in the README is one."""

import re
from pathlib import Path

from gateway.workflows.definition.load import load

README = Path(__file__).parents[3] / "README.md"


def test_the_readmes_file_is_good() -> None:
    blocks = re.findall(r"```yaml\n(workflow: .*?)```", README.read_text(), re.DOTALL)
    assert [load(block, {}).workflow for block in blocks] == ["yard"]
