"""The file that a run is saved as: what it is made of. That browsers show it is tested in `tests/system/page`."""

from __future__ import annotations

import base64
import json
import re

import httpx

from gateway.ui.report import SHELL, STATIC, modules, report, shell

PLACE = '<script type="application/json" id="run">'


async def test_the_page_gets_what_the_command_line_writes(http: httpx.AsyncClient) -> None:
    answer = await http.get(f"/ui/{SHELL}")
    assert answer.status_code == 200 and answer.text == shell()
    assert shell().count(f"{PLACE}</script>") == 1
    assert "; base-uri 'none'; form-action 'none'" in shell()
    assert f"{PLACE}</script>" in (STATIC / "views" / "workflows" / "saved.js").read_text()


def test_it_has_all_that_its_modules_import() -> None:
    named = json.loads(shell().partition('<script type="importmap">')[2].partition("</script>")[0])["imports"]
    assert {f"page/{path}" for path in modules("report.js")} == named.keys()
    assert "page/main.js" not in named and "page/views/workflows/lanes.js" in named
    for address in named.values():
        source = base64.b64decode(address.removeprefix("data:text/javascript;base64,")).decode()
        imported = re.findall(r"^(?:import|export)\b[^;]*?\bfrom '([^']+)'", source, re.MULTILINE)
        assert set(imported) <= named.keys()
        assert not re.search(r"\bfrom '\.", source)


def test_libraries_of_others_come_with_their_licences() -> None:
    for name in ("preact", "htm"):
        assert (STATIC / "vendor" / f"{name}.LICENSE.txt").read_text() in shell()
    assert "uPlot" not in shell()


def test_no_text_ends_the_script() -> None:
    hostile = "</script><!-- <script> \\u003c \u2028 \U0001f30d"
    written = report({"name": hostile}, [hostile])
    data = written.partition(PLACE)[2].partition("</script>")[0]
    assert json.loads(data) == {"workflow": {"name": hostile}, "events": [hostile]}
    assert written.replace(data, "") == shell()
