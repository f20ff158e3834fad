"""Authentication of gRPC callers: who is calling, and may they now?"""

from contextlib import AbstractAsyncContextManager

from agentmem.process.rpc import Metadata
from gateway.edge import authorization, callers
from gateway.edge.admission import Admission
from gateway.edge.callers import Authenticator


class GrpcAuthentication:
    """Authenticates calls, for `process.rpc.RpcInterceptor`; handlers find the caller in `gateway.edge.callers`.

    A caller who asks for too much is refused, and one whose key is revoked meanwhile is cut off with UNAUTHENTICATED.
    """

    def __init__(self, authenticator: Authenticator, admission: Admission) -> None:
        self._authenticator = authenticator
        self._admission = admission

    def __call__(self, method: str, metadata: Metadata) -> AbstractAsyncContextManager[None]:
        """Return the context of an admitted call. Raises Unauthenticated, PermissionDenied."""
        who = self._authenticator.authenticate(_credential(metadata))
        authorization.authorize(method, who)
        callers.serve(who)
        return self._admission.admitted(who)


def _credential(metadata: Metadata) -> str | None:
    for name, value in metadata:
        if name == "authorization" and (token := callers.bearer_token(str(value))) is not None:
            return token
    return None
