"""System-call filter, built and loaded with the host's libseccomp."""

from __future__ import annotations

import ctypes
import errno
import os

_ALLOW, _KILL_PROCESS = 0x7FFF0000, 0x80000000
_ATTRIBUTE_BAD_ARCHITECTURE = 2
_NE, _EQ, _MASKED_EQ = 1, 4, 7
_CLONE_THREAD, _AF_UNIX, _SOCK_DGRAM = 0x10000, 1, 2


def _split_names(text: str) -> tuple[str, ...]:
    """Return the names in a space-separated text."""
    return tuple(text.split())


# Process creation: analysis code may only start threads, so fork bombs are impossible and one
# memory limit covers the whole run.
_NO_PROCESS = ("fork", "vfork", "execve", "execveat")
# Kernel interfaces that analysis code does not need and exploits often use.
_NO_KERNEL = _split_names(
    "mount umount2 pivot_root chroot unshare setns move_mount open_tree fsopen fsmount fsconfig "
    "fspick mount_setattr ptrace process_vm_readv process_vm_writev process_madvise kcmp bpf "
    "perf_event_open userfaultfd keyctl add_key request_key io_uring_setup io_uring_enter "
    "io_uring_register open_by_handle_at name_to_handle_at init_module finit_module delete_module "
    "kexec_load kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd syslog settimeofday "
    "clock_settime clock_adjtime adjtimex sethostname setdomainname iopl ioperm fanotify_init "
    "lookup_dcookie nfsservctl vhangup modify_ldt personality vmsplice migrate_pages move_pages "
    "pidfd_open pidfd_getfd pidfd_send_signal landlock_create_ruleset"
)
# Memory outside the address-space limit, and channels to other processes.
_NO_SHARING = _split_names(
    "memfd_create memfd_secret shmget shmat msgget semget mq_open socket connect bind listen "
    "accept accept4"
)
# Calls that can affect another process: allowed only for the caller itself.
_OTHER_BY_PID = ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_OTHER_BY_ZERO = _split_names(
    "prlimit64 sched_setaffinity sched_setscheduler sched_setparam sched_setattr setpgid"
)
_OTHER_ALWAYS = ("tkill", "setpriority", "ioprio_set")
# Metadata of the user's files, which Landlock does not protect.
_FILE_METADATA = _split_names(
    "chmod fchmod fchmodat fchmodat2 chown lchown fchown fchownat utime utimes futimesat "
    "utimensat setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr "
    "removexattrat file_setattr truncate inotify_init inotify_init1"
)


class _Compare(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    ]


class _Filter:
    """System-call filter under construction, built with libseccomp."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.library.seccomp_init(ctypes.c_uint32(_ALLOW)))
        if not self.context:
            raise OSError("seccomp_init failed")

    def deny(self, call: str, *conditions: _Compare, code: int = errno.EPERM) -> None:
        """Make `call` fail with `code`. Calls that this architecture lacks are skipped."""
        number = self.library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return
        compare = (_Compare * len(conditions))(*conditions)
        action = ctypes.c_uint32(0x00050000 | code)
        result = self.library.seccomp_rule_add_array(
            self.context, action, ctypes.c_int(number), ctypes.c_uint(len(conditions)), compare
        )
        if result != 0:
            raise OSError(-result, f"seccomp rule for {call}: {os.strerror(-result)}")

    def load(self) -> None:
        """Apply the filter to this process and its descendants."""
        self.library.seccomp_attr_set(
            self.context, ctypes.c_int(_ATTRIBUTE_BAD_ARCHITECTURE), ctypes.c_uint32(_KILL_PROCESS)
        )
        result = self.library.seccomp_load(self.context)
        self.library.seccomp_release(self.context)
        if result != 0:
            raise OSError(-result, f"seccomp_load: {os.strerror(-result)}")


def restrict(*, own_mounts: bool) -> None:
    """Install the system-call filter in this process.

    Args:
        own_mounts: True if the process has its own mounts. Otherwise changes to the metadata of the
            host's files are denied, too.

    Raises:
        OSError: The library or the kernel does not support the filter.
    """
    rules = _Filter()
    for call in (*_NO_PROCESS, *_NO_KERNEL, *_NO_SHARING):
        rules.deny(call)
    rules.deny("clone", _Compare(0, _MASKED_EQ, _CLONE_THREAD, 0))
    # A filter cannot inspect the flags of clone3; the C library falls back to clone on ENOSYS.
    rules.deny("clone3", code=errno.ENOSYS)
    # asyncio needs connected stream sockets; a datagram socket could reach other sockets.
    rules.deny("socketpair", _Compare(0, _NE, _AF_UNIX, 0))
    rules.deny("socketpair", _Compare(1, _MASKED_EQ, 0xF, _SOCK_DGRAM))
    for request in (0x5412, 0x541C):  # TIOCSTI, TIOCLINUX: input injection into a terminal
        rules.deny("ioctl", _Compare(1, _EQ, request, 0))
    for command in (8, 15):  # F_SETOWN, F_SETOWN_EX: signals through file descriptors
        rules.deny("fcntl", _Compare(1, _EQ, command, 0))
    for call in _OTHER_BY_PID:
        rules.deny(call, _Compare(0, _NE, os.getpid(), 0))
    for call in _OTHER_BY_ZERO:
        rules.deny(call, _Compare(0, _NE, 0, 0))
    for call in _OTHER_ALWAYS:
        rules.deny(call)
    if not own_mounts:
        for call in _FILE_METADATA:
            rules.deny(call)
    rules.load()
