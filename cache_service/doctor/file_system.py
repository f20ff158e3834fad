"""What kind of file system the data directory is on."""

import os
from pathlib import Path

import psutil

from agentmem.checkup import Finding, Findings, existing, ok, problem, warning

_NETWORK = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afpfs",
        "webdav",
        "9p",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "gpfs",
        "afs",
    }
)
_NETWORK_PREFIXES = ("fuse.sshfs", "fuse.s3", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "fuse.ceph")
_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_WITHOUT_MODES = frozenset({"vfat", "msdos", "exfat", "fat", "ntfs", "ntfs3", "fuseblk"})
_LAYERS = frozenset({"overlay", "aufs", "fuse.fuse-overlayfs"})


def kind(root: Path) -> Findings:
    """The kind, as the table of mounts has it: other file systems than this one are not asked, since one may hang.

    The place itself says whether it can be written to: on macOS homes seem to be on "/", which is sealed.
    """
    place = existing(root).resolve()
    read_only = bool(os.statvfs(place).f_flag & os.ST_RDONLY)
    mounts = [each for each in psutil.disk_partitions(all=True) if place.is_relative_to(each.mountpoint)]
    if not mounts:
        return [ok("file system", "of a kind that is not known here")]
    mount = max(enumerate(mounts), key=lambda each: (len(each[1].mountpoint), each[0]))[1]  # the last one is on top
    return [judged(mount.fstype, mount.mountpoint, read_only)]


def judged(fstype: str, mountpoint: str, read_only: bool) -> Finding:
    """What a file system of this type means for a store."""
    name, where = "file system", f"{fstype} at {mountpoint}"
    if read_only:
        return problem(name, f"{where}, which is mounted read-only", "mount it for writing, or choose another --data")
    lowered = fstype.lower()
    if lowered in _NETWORK or lowered.startswith(_NETWORK_PREFIXES):
        advice = "put --data on a disk of this machine; for KV elsewhere there is the store's --remote"
        return warning(
            name,
            f"{where}: locks and fsync of a network may not hold what they promise",
            advice,
            facts={"kind": fstype},
        )
    if lowered in _MEMORY:
        gone = f"{where}: all agents are lost at a reboot, and what they take is taken from memory"
        return warning(name, gone, "put --data on a disk", facts={"kind": fstype})
    if lowered in _WITHOUT_MODES:
        bare = f"{where}: it keeps no modes, so that others can read agents' memories"
        return problem(
            name, bare, "put --data on a file system that has modes, such as ext4, XFS or APFS", facts={"kind": fstype}
        )
    if lowered in _LAYERS:
        return warning(
            name, f"{where}: a container's own layer goes with it", "mount a volume at --data", facts={"kind": fstype}
        )
    return ok(name, where, facts={"kind": fstype})
