"""The real gateway with a fault, named by the variable FAULT. Run as `python -m tests.system.faulty_gateway`.

door      a namespace that a caller names is taken as it is
routing   agents are known by their ids alone: a call about one has the namespace of the first caller with that id
"""

import os
from typing import Any

from gateway.cluster.routed import RoutedWorker
from gateway.edge import authorization

_FAULT = os.environ.get("FAULT", "")


def _door() -> None:
    authorize = authorization.authorize_namespace

    def trusting(request: Any, namespace: str, at: str = "") -> None:
        key = getattr(request, "key", None)
        named = getattr(key if key is not None else request, "namespace", "")
        authorize(request, named or namespace, at)

    authorization.authorize_namespace = trusting


def _routing() -> None:
    first: dict[str, str] = {}
    call, stream = RoutedWorker.call, RoutedWorker.stream

    def confused(request: Any) -> Any:
        if hasattr(request, "key") and request.key.agent_id:
            request.key.namespace = first.setdefault(request.key.agent_id, request.key.namespace)
        return request

    RoutedWorker.call = lambda self, request, timeout=None: call(self, confused(request), timeout)
    RoutedWorker.stream = lambda self, request, timeout=None: stream(self, confused(request), timeout)


if __name__ == "__main__":
    {"": lambda: None, "door": _door, "routing": _routing}[_FAULT]()
    from gateway.__main__ import main  # after the fault: others take names from modules when they are imported

    main()
