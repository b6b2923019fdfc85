"""Landlock rules for paths, TCP, and signals. A process needs no privileges to apply them."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from .kernel import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
# Rights of each interface version; a kernel rejects bits that it does not know.
_FS_RIGHTS = {3: (1 << 15) - 1, 5: (1 << 16) - 1}


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("fs", "net", "scoped")]


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def version() -> int:
    """Return the version of the kernel's Landlock interface, or raise OSError if it has none."""
    return syscall("landlock", _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))


def restrict(readable: Iterable[str], writable: Iterable[str]) -> int:
    """Restrict this process to the given paths, and block TCP and outgoing signals if possible.

    Returns:
        The version of the Landlock interface. TCP is covered from version 4, signals from version
            6.
    """
    abi = version()
    if abi < 3:
        raise OSError("this kernel's Landlock cannot prevent truncation of files")
    rights = _FS_RIGHTS[max(known for known in _FS_RIGHTS if known <= abi)]
    ruleset = _Ruleset(fs=rights, net=0b11 if abi >= 4 else 0, scoped=0b11 if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    handle = syscall(
        "landlock_create_ruleset",
        _CREATE_RULESET,
        ctypes.byref(ruleset),
        ctypes.c_size_t(size),
        ctypes.c_uint32(0),
    )
    try:
        for path in readable:
            _allow(handle, path, rights & _READ)
        for path in writable:
            _allow(handle, path, rights)
        syscall("landlock_restrict_self", _RESTRICT_SELF, ctypes.c_int(handle), ctypes.c_uint32(0))
    finally:
        os.close(handle)
    return abi


def _allow(handle: int, path: str, rights: int) -> None:
    """Add a path and everything below it to the ruleset."""
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            rights &= _FILE_RIGHTS
        rule = _PathRule(allowed=rights, parent=parent)
        syscall(
            f"landlock_add_rule {path}",
            _ADD_RULE,
            ctypes.c_int(handle),
            ctypes.c_int(1),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(parent)
