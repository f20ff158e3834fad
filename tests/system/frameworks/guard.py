"""Runs programs, one after the other, where nothing but the gateway can be reached: guard.py ADDRESS FILE...

Prints a JSON object: what each file printed, by its name, and all that was tried besides the gateway; every such try
fails. A program that ends with an exception ends this one, too. It needs the standard library only, for it runs in the
environments of frameworks.
"""

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path


def main(gateway: str, *files: str) -> None:
    """Run the files and say what came of it."""
    tried = shut_in(gateway)
    printed = {}
    for file in files:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runpy.run_path(file, run_name="__main__")
        printed[Path(file).stem] = said.getvalue()
    sys.stdout.write(json.dumps({"printed": printed, "tried": tried}))


def shut_in(gateway: str) -> list[str]:
    """Refuse all addresses but HOST:PORT from now on; returns the list of those that were tried."""
    host, _, port = gateway.rpartition(":")
    tried: list[str] = []

    def refuse(address: object) -> None:
        tried.append(str(address))
        raise ConnectionRefusedError(f"{address} is not the gateway")

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
            if arguments[1][:2] != (host, int(port)):
                refuse(arguments[1][:2])
        elif event in ("socket.getaddrinfo", "socket.gethostbyname") and arguments[0] not in (host, None):
            refuse(arguments[0])

    sys.addaudithook(watch)
    return tried


if __name__ == "__main__":
    main(*sys.argv[1:])
