import shutil
import subprocess
import sys
from pathlib import Path

import agentmem

PROTOS = Path(agentmem.__file__).parents[1]


def stubs(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text()
        for pattern in ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")
        for path in root.glob(f"agentmem/**/{pattern}")
    }


def test_regenerating_changes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(PROTOS / "generate.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    checked_in, generated = stubs(PROTOS), stubs(tmp_path)
    protos = {str(path.relative_to(PROTOS)) for path in PROTOS.glob("agentmem/**/*.proto")}
    assert len(protos) >= 6
    suffixes = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")
    assert generated.keys() == {proto.removesuffix(".proto") + suffix for proto in protos for suffix in suffixes}
    assert sorted(checked_in) == sorted(generated), "stubs of a proto that is gone, or is new: run make proto"
    differing = [name for name in generated if checked_in[name] != generated[name]]
    assert differing == [], "run make proto"


def test_protos_are_lint_clean() -> None:
    buf = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
    assert buf is not None, "buf-bin is a development dependency: run make setup"
    done = subprocess.run([buf, "lint"], cwd=PROTOS.parent, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
