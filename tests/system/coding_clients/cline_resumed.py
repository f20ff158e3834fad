"""Go on with Cline's only session, as a user does: it resumes one in a terminal only.

Usage: cline_resumed.py ANSWER PROMPT COMMAND…. Prints ANSWER once the session's file has it another time.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

DEADLINE = 300.0


def main(answer: str, prompt: str, *command: str) -> None:
    [messages] = (Path.home() / ".cline" / "data" / "sessions").glob("*/*.messages.json")
    answered = messages.read_text().count(answer)
    terminal, inside = os.openpty()
    os.set_blocking(terminal, False)
    cline = subprocess.Popen([*command, "--id", messages.parent.name], stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    screen, typed, began = b"", False, time.monotonic()
    try:
        while messages.read_text().count(answer) == answered:
            if time.monotonic() - began > DEADLINE or cline.poll() is not None:
                sys.exit(f"no answer; the screen: {screen[-2000:].decode(errors='replace')}")
            try:
                screen += os.read(terminal, 65536)
            except OSError:  # nothing now, or nothing more
                time.sleep(0.1)
            if not typed and b"Ask anything" in screen:
                os.write(terminal, prompt.encode())
                typed = True
            elif typed and prompt not in messages.read_text():
                time.sleep(0.5)  # a return that comes with the text is part of it
                os.write(terminal, b"\r")
    finally:
        cline.kill()
        cline.wait()
    print(answer)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
