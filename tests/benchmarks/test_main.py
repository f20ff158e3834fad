"""The benchmarks' own command line."""

import pytest

from benchmarks.__main__ import IN_PROCESS, NAMES, main, summary
from gateway.cli.up.openblas import Preload


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_says_what_it_measures(name: str) -> None:
    assert summary(NAMES[name]).endswith((".", ":"))
    assert summary(NAMES[name])[0].isupper()


@pytest.mark.parametrize("name", sorted(IN_PROCESS))
def test_what_computes_in_its_own_process_gets_the_workers_blas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By becoming `python -m benchmarks` with the same arguments; what has it already goes on."""

    def become(_: str, command: list[str], environment: dict[str, str]) -> None:
        raise SystemExit(f"{command[2:]} {environment['LD_PRELOAD']}")

    monkeypatch.setattr("os.execve", become)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process keeps its own
    monkeypatch.setattr("benchmarks.__main__.preload_here", lambda: Preload({"LD_PRELOAD": "libopenblas.so.0"}, ""))
    with pytest.raises(SystemExit, match=rf"\['benchmarks', '{name}', '--help'\] libopenblas"):
        main([name, "--help"])
    monkeypatch.setattr("benchmarks.__main__.preload_here", lambda: Preload({}, "OpenBLAS preloaded"))
    monkeypatch.setattr("runpy.run_module", lambda module, **_: ran.append(module))
    ran: list[str] = []
    assert main([name, "--help"]) == 0
    assert ran == [NAMES[name]]
