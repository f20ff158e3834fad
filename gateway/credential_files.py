"""The files of keys and TLS that settings name.

`agentmem up` looks at them before it starts anything, so nothing of the doors, which take long to import, is used here.
"""

from agentmem.settings import SettingsError
from gateway.callers import Authenticator, Everyone, Limits
from gateway.keys.file import KeyFileError
from gateway.keys.ring import DEFAULT_LIMITS, KeyRing
from gateway.settings import GatewaySettings
from gateway.tls import Tls


def check_files(settings: GatewaySettings) -> None:
    """Raises SettingsError for files of keys and TLS that a gateway of these settings would refuse."""
    authenticator(settings)
    if settings.tls:
        Tls(settings.tls)


def authenticator(settings: GatewaySettings) -> Authenticator:
    """Who is let in. Raises SettingsError for a file of keys that cannot be used."""
    if settings.keys is None:
        return Everyone(settings.namespace, settings.limits(Limits()))
    try:
        return KeyRing(settings.keys.expanduser(), settings.limits(DEFAULT_LIMITS))
    except KeyFileError as error:
        raise SettingsError(f"keys: {error}") from error
