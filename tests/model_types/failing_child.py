"""A child of the census in which one type ends the process and another hangs."""

import os
import time
from typing import Any

from benchmarks import children


def examine(name: str) -> dict[str, Any]:
    if name == "llama":
        os._exit(7)
    while name == "gemma":
        time.sleep(1)
    return {"name": name, "kinds": "4 full"}


if __name__ == "__main__":
    children.answer({"examine": examine})
