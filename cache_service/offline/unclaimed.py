"""Files of KV whose ledgers are lost, for a recovered database: they become nobody's, and are found by their names.

A file's header says all of its row but its digest, which is made of the bytes as they are. A prompt whose tokens a file
holds is not computed again; what agents said cannot be read from KV.
"""

import os
import sqlite3
import time

from agentmem import blockfile
from agentmem.blockfile import BlockFileError
from agentmem.keys import AgentKey
from cache_service import references
from cache_service.files import DataDirectory, FileName, Kind, open_regular, sync_directory
from cache_service.offline.linking import take
from cache_service.references import FileOrigin, FileRow


def link(source: DataDirectory, target: DataDirectory, connection: sqlite3.Connection) -> int:
    """Take over all files that are what their headers say; how many."""
    folders = set()
    files = 0
    for name in source.published():
        found = _described(source, name)
        if found is not None and take(source, target, *found):
            references.add(connection, *found, time.time_ns())
            folders.add(target.folder(name))
            files += 1
    for folder in folders:
        sync_directory(folder)
        sync_directory(folder.parent)
    return files


def _described(source: DataDirectory, name: FileName) -> tuple[FileRow, FileOrigin] | None:
    """A file's row and origin by what is in it; None if it is none of ours, or damaged as far as that can be seen."""
    try:
        with open(open_regular(source.path(name)), "rb") as file:
            data, size = file.read(), os.fstat(file.fileno()).st_size
        header, _ = blockfile.parse(data, size)
    except (OSError, BlockFileError):
        return None
    if (header.chain_hash, header.window) != (name.chain_hash, name.kind is Kind.WINDOW):
        return None
    row = FileRow(name, header.first_token, header.token_count, size, blockfile.digest(data))
    return row, FileOrigin(AgentKey(header.namespace, "", ""), header.fingerprint, header.parent)
