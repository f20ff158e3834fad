"""Web pages: shut out unless their origin is named; then they may ask without a key whether they may ask with one."""

from pathlib import Path

import httpx
import pytest

from ..scripted import ScriptedWorker
from ..secured import add_key, secured, showing

PAGE = "https://app.example.org"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-agent-id,x-stainless-lang",
}


async def test_off_unless_configured(worker: ScriptedWorker, http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/models", headers={"origin": PAGE})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert (await http.options("/v1/models", headers=PREFLIGHT)).status_code == 405


@pytest.mark.parametrize("allowed", [[PAGE, "https://other.example.org"], ["*"]])
async def test_an_origin_that_may(worker: ScriptedWorker, run_dir: Path, allowed: list[str]) -> None:
    key = add_key(run_dir)
    async with secured(run_dir, cors_origin=allowed) as gateway, showing(gateway, "") as (http, _):
        preflight = await http.options("/v1/chat/completions", headers=PREFLIGHT)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] in (PAGE, "*")
        asked = {**PREFLIGHT, "access-control-request-private-network": "true"}
        private = await http.options("/v1/chat/completions", headers=asked)
        assert private.headers["access-control-allow-private-network"] == "true"
        named = preflight.headers["access-control-allow-headers"]
        assert {"authorization", "x-stainless-lang"} <= {name.strip() for name in named.split(",")}
        for headers, status in (({}, 401), ({"authorization": f"Bearer {key}"}, 200)):
            answer = await http.get("/v1/models", headers={"origin": PAGE, **headers})
            assert answer.status_code == status
            assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
            exposed = answer.headers["access-control-expose-headers"]
            wanted = {"x-request-id", "request-id", "traceparent", "x-agent-id", "x-agent-warning", "retry-after"}
            assert wanted == {name.strip() for name in exposed.split(",")}
            assert "access-control-allow-credentials" not in answer.headers
        other = await http.options("/v1/models", headers={**PREFLIGHT, "origin": "https://evil.example.org"})
        assert other.status_code == (200 if allowed == ["*"] else 400)
        assert ("access-control-allow-origin" in other.headers) == (allowed == ["*"])
