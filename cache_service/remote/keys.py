"""Keys of objects, below the prefix: made of hashes only, never of anybody's text.

    manifest.json                                   whose the prefix is
    blocks/ab/<chain hash>-<digest>.safetensors     copies of blocks, by the first byte of their chain hash
    windows/ab/<chain hash>-<digest>.safetensors    copies of windows

A namespace is part of the chain hash, so two namespaces never share an object, and keys don't say whose they are.
"""

import re

from cache_service.files import FOLDERS, SUFFIX
from cache_service.remote.contract import ObjectName

MANIFEST = "manifest.json"

_KEY = re.compile(
    rf"(?P<folder>[a-z]+)/(?P<first>[0-9a-f]{{2}})/"
    rf"(?P<chain>(?P=first)[0-9a-f]{{62}})-(?P<digest>[0-9a-f]{{32}}){re.escape(SUFFIX)}"
)
_KINDS = {folder: kind for kind, folder in FOLDERS.items()}


def key(name: ObjectName) -> str:
    """An object's key."""
    chain_hash = name.chain_hash.hex()
    return f"{FOLDERS[name.kind]}/{chain_hash[:2]}/{chain_hash}-{name.digest.hex()}{SUFFIX}"


def name(key: str) -> ObjectName | None:
    """The object that has this key; None if no object of ours has."""
    match = _KEY.fullmatch(key)
    if match is None or match["folder"] not in _KINDS:
        return None
    return ObjectName(_KINDS[match["folder"]], bytes.fromhex(match["chain"]), bytes.fromhex(match["digest"]))
