"""The page's files: served to everybody who may reach the gateway, as they are, and with headers that hold them in."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gateway.app import Gateway
from gateway.ui.files import POLICY, STATIC

from ..running import running
from ..scripted import ScriptedWorker
from ..secured import add_key, secured, showing

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


async def test_every_file_is_served_as_it_is(http: httpx.AsyncClient) -> None:
    paths = [path for path in STATIC.rglob("*") if path.is_file()]
    assert len(paths) > 10
    for path in paths:
        answer = await http.get(f"/ui/{path.relative_to(STATIC).as_posix()}")
        assert answer.status_code == 200 and answer.content == path.read_bytes()
        assert answer.headers["content-type"].startswith(TYPES.get(path.suffix, "")), path


async def test_the_page_begins_at_its_directory(http: httpx.AsyncClient) -> None:
    assert (await http.get("/ui/")).content == (STATIC / "index.html").read_bytes()
    moved = await http.get("/ui")
    assert moved.status_code == 308
    assert str((await http.get("/ui", follow_redirects=True)).url).endswith("/ui/")
    assert (await http.get("/ui/nothing.js")).status_code == 404
    assert (await http.post("/ui/")).status_code == 405


@pytest.mark.parametrize("path", ["/ui/../settings.py", "/ui/%2e%2e/files.py", "/ui//etc/passwd", "/ui/vendor"])
async def test_nothing_beside_them_is(gateway: Gateway, path: str) -> None:
    host, _, port = gateway.addresses["http"].rpartition(":")
    async with httpx.AsyncClient() as http:
        url = httpx.URL(scheme="http", host=host, port=int(port), raw_path=path.encode())
        assert (await http.get(url)).status_code == 404


async def test_headers_hold_the_page_in(http: httpx.AsyncClient) -> None:
    for path in ("/ui", "/ui/", "/ui/main.js"):
        headers = (await http.get(path)).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-cache"
    assert "default-src 'none'" in POLICY and "unsafe" not in POLICY and "http" not in POLICY


async def test_what_a_browser_has_is_not_sent_again(http: httpx.AsyncClient) -> None:
    etag = (await http.get("/ui/main.js")).headers["etag"]
    again = await http.get("/ui/main.js", headers={"if-none-match": f'"other", {etag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == POLICY
    assert (await http.get("/ui/", headers={"if-none-match": etag})).status_code == 200


async def test_files_need_no_key_and_nothing_else_of_the_page_is_without(run_dir: Path, worker: ScriptedWorker) -> None:
    key = add_key(run_dir)
    async with secured(run_dir) as gateway, showing(gateway, "") as (http, _):
        assert (await http.get("/ui/")).status_code == 200
        for path in ("/v1/agents", "/uiv1/agents", "/ui%2f../v1/agents", "/v1/agents/%2fui%2f?model=demo"):
            assert (await http.get(path)).status_code in (401, 404), path
        assert (await http.get("/v1/agents")).status_code == 401
        async with showing(gateway, key) as (shown, _):
            assert (await shown.get("/v1/agents")).status_code == 200
    assert len(worker.requests) == 1


async def test_a_name_that_leads_here_does_not_get_it(http: httpx.AsyncClient) -> None:
    refused = await http.get("/ui/", headers={"host": "evil.example"})
    assert refused.status_code == 421


async def test_without_it(run_dir: Path, worker: ScriptedWorker) -> None:
    async with running(run_dir, ui=False) as gateway, showing(gateway, "") as (http, _):
        for path in ("/ui", "/ui/", "/ui/main.js"):
            assert (await http.get(path)).status_code == 404
