"""Types whose code ends the process, or hangs, and types that nobody has written a config for."""

from tests.model_types import failing_child
from tests.model_types.page import UNKNOWN, Line
from tests.model_types.running import examined


async def test_each_type_has_a_line_whatever_becomes_of_the_child() -> None:
    said: list[Line] = []
    names = ["gpt2", "llama", "nobody_knows", "gemma", "qwen3"]
    lines = await examined(names, processes=1, limit=20.0, module=failing_child.__name__, say=said.append)
    assert [line.name for line in lines] == names
    fine, ended, unknown, hung, after = lines
    assert fine.works
    assert after.works
    assert ended.faults == ["it ends the process: tests.model_types.failing_child ended with 7; see its error above"]
    assert hung.faults == ["it hangs: no answer within 20 s"]
    assert unknown.faults == [UNKNOWN]
    assert said == [fine, ended, hung, after]
