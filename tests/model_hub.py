"""A model hub on localhost: the part of the Hugging Face hub's HTTP API that huggingface_hub needs, and faults."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

_LIST = "/api/models"
_PAGE = 3
"""How many models a page of the list has."""
_API = re.compile(r"/api/models/([^/]+/[^/]+?)(/revision/main|/tree/[0-9a-f]{40})?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/(main|[0-9a-f]{40})/(.+)")


@dataclass
class Repository:
    """Files by name. `claimed` are sizes that the listing makes up; `status` is what all requests get, with `code`."""

    files: dict[str, bytes]
    claimed: dict[str, int] = field(default_factory=dict)
    status: int = 200
    code: str = ""
    fail_files: dict[str, int] = field(default_factory=dict)
    """Statuses that GETs of single files get, until the entry is removed."""
    drop_after: dict[str, int] = field(default_factory=dict)

    ranges: bool = True
    """Support for ranges of files."""

    tags: tuple[str, ...] = ("mlx", "text-generation")
    downloads: int = 0
    gated: bool = False
    seconds: float = 0.0
    """How long a GET of weights takes to begin."""
    said: dict[str, object] = field(default_factory=dict)
    """Fields of the answer about it that replace the true ones."""

    @property
    def sha(self) -> str:
        return hashlib.sha1(b"".join(self.files.values())).hexdigest()

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, data in self.files.items():
            if (
                name.endswith(".safetensors")
                and len(data) > 8
                and (length := int.from_bytes(data[:8], "little")) < 1 << 20
            ):
                for tensor in json.loads(data[8 : 8 + length]).values():
                    if "dtype" in tensor:
                        found[tensor["dtype"]] = found.get(tensor["dtype"], 0) + prod(tensor["shape"])
        return found

    def about(self, model_id: str) -> dict[str, object]:
        return {"id": model_id, "tags": list(self.tags), "downloads": self.downloads, "gated": self.gated}

    def size(self, name: str) -> int:
        return self.claimed.get(name, len(self.files[name]))


@dataclass
class Hub:
    """`seen` are (method, path, Range) of all requests, in order."""

    port: int = 0
    repositories: dict[str, Repository] = field(default_factory=dict)
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)

    def fetched(self, name: str) -> list[str | None]:
        return [wanted for method, path, wanted in self.seen if method == "GET" and path.endswith(f"/{name}")]

    def environment(self, home: Path) -> dict[str, str]:
        """Return the environment of processes for which this is the hub and `home` the cache."""
        return {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "AGENTMEM_"))} | {
            "HF_ENDPOINT": f"http://someone:hf_password@127.0.0.1:{self.port}",
            "HF_TOKEN": "hf_secret",
            "HF_HOME": str(home),
            "NO_PROXY": "*",
        }


@contextmanager
def model_hub() -> Iterator[Hub]:
    hub = Hub()

    class Handler(_Handler):
        served = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def telling(module: str, environment: dict[str, str]) -> Iterator[Callable[..., dict[str, Any]]]:
    """Tells a process what to do, a line of JSON each, and returns what came of it."""
    log = Path(environment["HF_HOME"], "log")
    with (
        log.open("w") as errors,
        subprocess.Popen(
            (sys.executable, "-m", module),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
        ) as process,
    ):  # fmt: skip
        orders, answers = process.stdin, process.stdout
        assert orders is not None and answers is not None

        def told(**order: Any) -> dict[str, Any]:
            print(json.dumps(order), file=orders, flush=True)
            answer = answers.readline()
            assert answer, log.read_text()
            came: dict[str, Any] = json.loads(answer)
            return came

        yield told
        orders.close()
        process.wait(120)
    said = log.read_text()
    assert "hf_" not in said and "Traceback" not in said


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # of clients that had enough
            self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.served.seen.append((self.command, path, self.headers.get("Range")))
        found = _API.fullmatch(path) or _FILE.fullmatch(path)
        repository = self.served.repositories.get(found[1]) if found else None
        if path == _LIST:
            self._list(parse_qs(urlsplit(self.path).query))
        elif found is None or repository is None:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        elif repository.status != 200:
            headers = {"X-Error-Code": repository.code, "X-Error-Message": "token hf_secret of http://u:p@x"}
            self._send(repository.status, b"no", headers, body)
        elif found.re is _FILE:
            self._file(repository, found[3], body)
        elif found[2] and found[2].startswith("/tree/"):
            self._send_json([_entry(repository, name) for name in repository.files])
        else:
            siblings = [{"rfilename": name, "size": repository.size(name)} for name in repository.files]
            about = {**repository.about(found[1]), "sha": repository.sha, "siblings": siblings}
            if counts := repository.counts:
                about["safetensors"] = {"parameters": counts, "total": sum(counts.values())}
            self._send_json(about | repository.said)

    def _list(self, query: dict[str, list[str]]) -> None:
        """Models by the query's words, tags and author, the most downloaded first; a link leads to the next page."""
        assert query.pop("sort") == ["downloads"]
        start, limit = int(query.pop("start", ["0"])[0]), int(query["limit"][0])
        search, author = (query.get(name, [""])[0].lower() for name in ("search", "author"))
        tags = {*query.get("filter", ()), *query.get("pipeline_tag", ())}
        listed = [
            each.about(name)
            for name, each in sorted(self.served.repositories.items(), key=lambda pair: -pair[1].downloads)
            if search in name.lower() and name.startswith(author and f"{author}/") and tags <= {*each.tags}
        ][:limit]
        headers = {"Content-Type": "application/json"}
        if listed[start + _PAGE :]:
            following = urlencode([*((name, each) for name in query for each in query[name]), ("start", start + _PAGE)])
            link = f"http://127.0.0.1:{self.served.port}{_LIST}?{following}&sort=downloads"
            headers["Link"] = f'<{link}>; rel="next"'
        self._send(200, json.dumps(listed[start : start + _PAGE]).encode(), headers, True)

    def _file(self, repository: Repository, name: str, body: bool) -> None:
        data = repository.files[name]
        if body and name in repository.fail_files:
            return self._send(repository.fail_files[name], b"no", {}, body)
        if body and name.endswith(".safetensors"):
            time.sleep(repository.seconds)
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": repository.sha}
        start = int((self.headers.get("Range") or "bytes=0-")[len("bytes=") : -1])
        start *= repository.ranges
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cut = repository.drop_after.pop(name, None) if body else None
        return self._send(206 if start else 200, data[start:], headers, body, cut)

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, True)

    def _send(self, status: int, data: bytes, headers: dict[str, str], body: bool, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data[:cut])
        self.close_connection = True  # so that a client cannot ask anything without connecting


def _entry(repository: Repository, name: str) -> dict[str, object]:
    oid = hashlib.sha1(repository.files[name]).hexdigest()
    return {"type": "file", "path": name, "size": repository.size(name), "oid": oid}
