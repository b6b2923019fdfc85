"""Linux system calls that the standard library does not provide, through ctypes."""

from __future__ import annotations

import ctypes
import os

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
MNT_DETACH = 2
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV, ATTR_NOEXEC = 1, 2, 4, 8

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

# Calls added since 2019 have one number on every architecture; pivot_root is older.
_SYS_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


def check_result(result: int, operation: str) -> int:
    """Return `result`, or raise OSError naming the operation if it is the C error value -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{operation}: {os.strerror(number)}")
    return result


def syscall(operation: str, number: int, *arguments: object) -> int:
    """Make a raw system call and raise OSError if it fails."""
    return check_result(int(_libc.syscall(ctypes.c_long(number), *arguments)), operation)


def unshare(flags: int) -> None:
    """Move the calling process into new namespaces."""
    check_result(_libc.unshare(ctypes.c_int(flags)), "unshare")


def prctl(operation: str, option: int, argument: int = 0) -> None:
    """Call prctl with all unused arguments zero, as newer options require."""
    rest = (ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
    check_result(_libc.prctl(ctypes.c_int(option), *rest), operation)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount the file system `source` on the folder `target`."""
    result = _libc.mount(
        source.encode(),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    check_result(result, f"mount {target}")


def restrict_mount(target: str, attributes: int, *, recursive: bool) -> None:
    """Add mount attributes without repeating those that a container has locked."""
    mount_attr = _MountAttr(set=attributes)
    at_fdcwd, at_recursive = ctypes.c_int(-100), ctypes.c_uint(0x8000 if recursive else 0)
    syscall(
        f"mount_setattr {target}",
        _SYS_MOUNT_SETATTR,
        at_fdcwd,
        os.fsencode(target),
        at_recursive,
        ctypes.byref(mount_attr),
        ctypes.c_size_t(ctypes.sizeof(mount_attr)),
    )


def enter_root(new_root: str) -> None:
    """Make `new_root` the root and detach the old one, so that it becomes unreachable."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root: the call number is unknown for {os.uname().machine}")
    os.chdir(new_root)
    syscall("pivot_root", number, b".", b".")
    check_result(_libc.umount2(b".", MNT_DETACH), "umount old root")
    os.chdir("/")


def share_arenas() -> None:
    """Limit the number of malloc arenas, because each one reserves limited address space."""
    m_arena_max = -8
    _libc.mallopt(ctypes.c_int(m_arena_max), ctypes.c_int(2))


def drop_capabilities() -> None:
    """Permanently drop all capabilities: bounding, ambient, permitted, and effective."""
    for capability in range(64):
        try:
            prctl("capbset", PR_CAPBSET_DROP, capability)
        except OSError:
            # EINVAL past the last capability; EPERM if there is nothing to drop.
            break
    try:
        prctl("ambient", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        if error.errno != 22:  # EINVAL: a kernel without ambient capabilities
            raise
    header = _CapHeader(version=0x20080522, pid=0)
    nothing = (_CapData * 2)()
    check_result(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")
