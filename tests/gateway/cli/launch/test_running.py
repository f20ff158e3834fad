from __future__ import annotations

import pytest

from gateway.cli.launch.running import environment


def test_hosts_without_a_proxy_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs read one of both names, or the other."""
    monkeypatch.setenv("NO_PROXY", "git.corp")
    monkeypatch.delenv("no_proxy", raising=False)
    given = environment({"A": "b"}, "127.0.0.1")
    assert (given["NO_PROXY"], given["no_proxy"], given["A"]) == ("git.corp,127.0.0.1", "git.corp,127.0.0.1", "b")
    monkeypatch.setenv("no_proxy", "10.0.0.1")
    assert environment({}, "127.0.0.1")["no_proxy"] == "git.corp,10.0.0.1,127.0.0.1"
