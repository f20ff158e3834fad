"""Files of KV that no row knows, and whose they are: by what is in them, and by the ledgers, whose tokens name them.

A file's header says all of its row but who computed it and its digest, which is made of the bytes as they are. So a
warm.db that is lost can be made again where it is worth the time: every ledger and every file is read.
"""

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator

from agentmem.kv import blockfile
from agentmem.kv.blockfile import BlockFileError, FileKind, FileName
from agentmem.validation import AgentKey
from cache_service.damage import LedgerDamaged
from cache_service.files import holding, references
from cache_service.files.directory import DataDirectory
from cache_service.files.disk import open_regular
from cache_service.files.references import FileOrigin, FileRow
from cache_service.ledger import kv_changes, segments
from cache_service.offline import tree
from cache_service.offline.chains import Names
from cache_service.offline.tree import Holder

_File = tuple[FileRow, FileOrigin]


def adopt(directory: DataDirectory, ledger: sqlite3.Connection, warm: sqlite3.Connection) -> int:
    """Give rows to all files that a ledger names and whose headers agree, and to whom they belong; how many.

    `warm` knows of no file yet. What no ledger names stays an orphan: it may be what a deleted agent said. Raises
    OSError, sqlite3.Error.
    """
    now, adopted = time.time_ns(), set[FileName]()
    for holder, row, origin in named(ledger, described(directory)):
        if row.name not in adopted:
            references.add(warm, row, origin, now)
            adopted.add(row.name)
        holding.hold(warm, [holder.state], row.name)
    note_published(ledger, warm)
    return len(adopted)


def named(ledger: sqlite3.Connection, files: Iterable[_File]) -> Iterator[tuple[Holder, FileRow, FileOrigin]]:
    """Of these files those that ledgers name, with each agent and snapshot whose ledger does.

    Where it is not known who computed a file, it is the first of them. A ledger that cannot be read names none. Raises
    sqlite3.Error.
    """
    by_parent: defaultdict[tuple[str, str, bytes], list[_File]] = defaultdict(list)
    for row, origin in files:
        by_parent[origin.fingerprint, origin.key.namespace, origin.parent].append((row, origin))
    if not by_parent:
        return
    fingerprints = {fingerprint for fingerprint, _, _ in by_parent}
    for holder in tree.holders(ledger):
        try:
            namespace, names = holder.key.namespace, Names(segments.read(ledger, holder.head).token_ids)
        except (LedgerDamaged, ValueError, IndexError):
            continue
        for place in ((each, namespace, parent) for each in fingerprints for parent in names.chain(each, namespace)):
            for row, origin in by_parent.get(place, ()):
                if names.has(row, origin):
                    yield holder, row, origin if origin.key.agent_id else origin._replace(key=holder.key)


def note_published(ledger: sqlite3.Connection, warm: sqlite3.Connection) -> None:
    """Note that what agents hold is of their present versions, and that all that became of states was followed."""
    versions = ledger.execute("SELECT uid, version FROM agents").fetchall()
    warm.executemany("INSERT OR REPLACE INTO published (uid, version) VALUES (?, ?)", versions)
    warm.execute("UPDATE followed SET change = ?", (kv_changes.last(ledger),))


def described(directory: DataDirectory, known: Container[FileName] = ()) -> Iterator[_File]:
    """All published files but the known ones, by what is in them; none that is damaged as far as that can be seen.

    Who computed them is not known. Reads every byte.
    """
    for name in directory.published():
        if name not in known and (found := _described(directory, name)) is not None:
            yield found


def _described(directory: DataDirectory, name: FileName) -> _File | None:
    try:
        with open(open_regular(directory.path(name)), "rb") as file:
            data, size = file.read(), os.fstat(file.fileno()).st_size
        header, _ = blockfile.parse(data, size)
    except (OSError, BlockFileError):
        return None
    if (header.chain_hash, header.window) != (name.chain_hash, name.kind is FileKind.WINDOW):
        return None
    row = FileRow(name, header.first_token, header.token_count, size, blockfile.digest(data))
    return row, FileOrigin(AgentKey(header.namespace, "", ""), header.fingerprint, header.parent)
