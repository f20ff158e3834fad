"""The clients of deploy/examples, built as their README says and run as programs.

A build is kept for its user under a digest of what it is made of, since gRPC takes long to compile.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from benchmarks.packages import Unavailable, kept

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "deploy" / "examples"
OLDEST_NODE: Final = 20
_GO_PATH: Final = Path("src/example.com/agentmem-example")
_DEBIAN_GO: Final = Path("/usr/share/gocode")
_GO_LIBRARIES: Final = "golang-google-grpc-dev, golang-github-golang-protobuf-1-5-dev"
_SECONDS: Final = 560


def shown(ledger: bytes) -> str:
    """Return a ledger's text without the special tokens, which clients are not shown: a random model says them
    anywhere.
    """
    return re.sub(r"<\|\w+\|>", "", ledger.decode(errors="replace"))


class Ended(NamedTuple):
    out: str
    err: str
    status: int


class Program:
    def __init__(self, address: str, *command: str, **variables: str) -> None:
        self._command = command
        given = {"AGENTMEM_ADDRESS": address, "AGENTMEM_MODEL": "tiny", **variables}
        self.environment = {**os.environ, **given}

    async def begin(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(*self._command, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment,
        )

    async def run(self, *arguments: str, status: int = 0) -> Ended:
        return await ended(await self.begin(*arguments), status)


async def ended(process: asyncio.subprocess.Process, status: int = 0) -> Ended:
    out, err = await process.communicate()
    assert process.returncode == status, err.decode()
    return Ended(out.decode(errors="replace"), err.decode(), status)


class Language(NamedTuple):
    name: str
    tools: tuple[str, ...]
    """Programs that a build needs."""
    packages: str
    """Packages of tools and libraries."""
    build: Callable[[Path], Path]
    """Builds in a directory that has the sources as the repository does; what is to be kept of it."""
    command: tuple[str, ...]
    """How what was kept is run; `{}` is its path."""
    checked: tuple[Path, ...] = ()
    """Files of libraries that must be there."""
    in_ci: bool = False
    """Where CI runs it is there."""


def command(language: Language) -> tuple[str, ...]:
    """A command line of the client. Skips the test where it cannot be built here, fails where the client is wrong."""
    built = _built(language)
    if isinstance(built, str):
        wanted = language.in_ci and os.environ.get("CI")
        (pytest.fail if wanted else pytest.skip)(f"the client in {language.name}: {built}")
    return tuple(part.format(built) for part in language.command)


@functools.cache
def _built(language: Language) -> Path | str:
    """Return the build, or why there is none."""
    lacking = [name for name in language.tools if shutil.which(name) is None]
    lacking += [str(path) for path in language.checked if not path.exists()]
    if lacking:
        return f"without {', '.join(lacking)}; they come with {language.packages}"
    folder = language.name.lower()

    def make(scratch: Path) -> Path:
        for source in _sources(folder):
            copy = scratch / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
        return language.build(scratch)

    try:
        return kept("examples", f"{folder}-{_digest(language, folder)}", make)
    except Unavailable as problem:
        return str(problem)


def _sources(folder: str) -> list[Path]:
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    places = [f"deploy/examples/{folder}", "deploy/examples/protos", "protos/agentmem/v1/*.proto"]
    listed = subprocess.run([*tracked, *places], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in sorted(listed.split("\0")[:-1]) if (path := ROOT / name).exists()]


def _digest(language: Language, folder: str) -> str:
    digest = hashlib.sha256(inspect.getsource(language.build).encode())
    for source in _sources(folder):
        digest.update(f"{source.relative_to(ROOT)}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    for tool in language.tools:  # a newer one builds again
        found = Path(shutil.which(tool) or "").resolve()
        digest.update(f"{found}\0{found.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:16]


def _typescript(scratch: Path) -> Path:
    node = _run(scratch, "node", "--version").strip()
    if int(node.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        raise Unavailable(f"needs Node.js {OLDEST_NODE} or newer, and this is {node}")
    folder = scratch / "deploy/examples/typescript"
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--cache", str(scratch / "cache"))
    installed = subprocess.run(
        ["npm", "ci", *quiet], cwd=folder, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    if installed.returncode:
        raise Unavailable(f"npm ci failed: {installed.stderr[-500:]}")
    _run(folder, "npm", "run", "build")
    _run(folder, "npm", "prune", "--omit=dev", *quiet)
    return folder


def _go(scratch: Path) -> Path:
    """As Debian builds: in GOPATH, with its packages."""
    folder = scratch / _GO_PATH
    folder.parent.mkdir(parents=True)
    shutil.copytree(scratch / "deploy/examples/go", folder)
    assert not (unformatted := _run(folder, "gofmt", "-l", ".")), unformatted
    variables = {"GO111MODULE": "off", "GOPATH": f"{scratch}:{_DEBIAN_GO}", "AGENTMEM_PROTOS": str(scratch / "protos")}
    _run(folder, "./generate.sh", **variables)
    _run(folder, "go", "vet", ".", **variables)
    _run(folder, "go", "build", "-o", "client", ".", **variables)
    return folder / "client"


def _cpp(scratch: Path) -> Path:
    build = scratch / "build"
    _run(scratch, "cmake", "-S", "deploy/examples/cpp", "-B", str(build), "-DCMAKE_CXX_FLAGS=-O0")
    _run(scratch, "cmake", "--build", str(build), "--parallel", "2")
    return build / "agentmem-example"


def _run(folder: Path, *command: str, **variables: str) -> str:
    """Return a command's output; it must succeed."""
    environment: Mapping[str, str] = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


TYPESCRIPT: Final = Language(
    "TypeScript", ("node", "npm"), "Node.js", _typescript, ("node", "{}/dist/main.js"), in_ci=True
)
GO: Final = Language(
    "Go",
    ("go", "gofmt", "protoc", "protoc-gen-go", "protoc-gen-go-grpc"),
    f"Debian's golang-go, protoc-gen-go, protoc-gen-go-grpc, {_GO_LIBRARIES}",
    _go,
    ("{}",),
    (_DEBIAN_GO / "src/google.golang.org/grpc", _DEBIAN_GO / "src/google.golang.org/protobuf"),
)
CPP: Final = Language(
    "Cpp",
    ("cmake", "c++", "make", "pkg-config", "protoc", "grpc_cpp_plugin"),
    "Debian's g++, cmake, pkg-config, libgrpc++-dev, protobuf-compiler-grpc",
    _cpp,
    ("{}",),
    (Path("/usr/include/grpcpp/grpcpp.h"),),
)
