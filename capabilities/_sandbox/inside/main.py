"""Entry point of the sandbox process: completes the isolation and runs the user's code.

With bubblewrap, this process already is inside its namespaces. Otherwise it may create namespaces:
an outer process waits, process 1 inside reaps, and only its child runs the code. Without
namespaces, a supervisor kills the processes that the code leaves running.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import sys
import time
from typing import Any, NoReturn

from . import kernel, landlock, seccomp
from .runner import Channel, run_code

Request = dict[str, Any]
_NAMESPACES = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)


def main(outcome_fd: int) -> NoReturn:
    """Read the request from standard input and execute it.

    Args:
        outcome_fd: File descriptor for the ready, done, and broken messages.
    """
    channel = Channel(outcome_fd)
    stage = "request"
    try:
        request: Request = json.loads(sys.stdin.buffer.read())
        _silence_stdin()
        level = request["level"]
        if level != "bubblewrap":
            _die_with_parent(request["parent"])
        if level == "namespaces":
            stage = "namespaces"
            _enter_namespaces(request)
            _become_child()  # returns in process number 1 of the new namespace
            _die_with_parent(None)
            stage = "mounts"
            _build_root(request)
            _become_child()
        elif level != "bubblewrap":
            stage = "supervisor"
            _become_child(supervise=True)
        stage = "confinement"
        layers = _confine(request)
    except Exception as error:
        channel.send({"event": "broken", "stage": stage, "message": f"{error}"})
        os._exit(70)
    channel.send({"event": "ready", "layers": layers})
    run_code(request, channel)


def _silence_stdin() -> None:
    """Redirect standard input from the null device after the request has been read."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _die_with_parent(parent: int | None) -> None:
    """Make the kernel kill this process when its parent ends for any reason."""
    kernel.prctl("pdeathsig", kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(70)


def _become_child(*, supervise: bool = False) -> None:
    """Fork, return in the child, and exit the parent with the child's status."""
    if supervise:
        kernel.prctl("subreaper", kernel.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGTERM, lambda *_: _end_tree(128 + signal.SIGTERM))
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return
    while True:
        ended, status = os.wait()
        if ended == child:
            break
    code = os.waitstatus_to_exitcode(status)
    code = code if code >= 0 else 128 - code
    if supervise:
        _end_tree(code)
    os._exit(code)


def _end_tree(code: int) -> NoReturn:
    """Kill all descendants, including adopted ones, and exit with `code`."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        for child in _children():
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    os._exit(code)


def _children() -> list[int]:
    """Return the IDs of the processes whose parent is this one."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as handle:
                    parent = int(handle.read().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # the process ended meanwhile
            if parent == os.getpid():
                found.append(int(entry))
    return found


def _enter_namespaces(request: Request) -> None:
    """Move this process into new namespaces. An unprivileged user first needs a user namespace."""
    try:
        kernel.unshare(_NAMESPACES)
        return
    except PermissionError:
        pass  # unprivileged, the normal case: handled below
    user, group = os.getuid(), os.getgid()
    kernel.unshare(_NAMESPACES | kernel.CLONE_NEWUSER)
    request["uid"] = None
    for name, text in (
        ("setgroups", "deny"),
        ("gid_map", f"{group} {group} 1"),
        ("uid_map", f"{user} {user} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as handle:
            handle.write(text)


def _build_root(request: Request) -> None:
    """Mount a root that contains only the interpreter, its libraries, and its devices."""
    root = request["scaffold"]
    os.umask(0o022)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for link, target in request["symlinks"]:
        os.makedirs(os.path.dirname(root + link), exist_ok=True)
        os.symlink(target, root + link)
    attributes = kernel.ATTR_RDONLY | kernel.ATTR_NOSUID
    for path in (*request["readable"], *request["devices"]):
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            open(target, "ab").close()
        kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
        kind_attribute = kernel.ATTR_NOEXEC if path in request["devices"] else kernel.ATTR_NODEV
        kernel.restrict_mount(target, attributes | kind_attribute, recursive=True)
    os.makedirs(root + request["work"])
    kernel.enter_root(root)
    kernel.restrict_mount("/", attributes | kernel.ATTR_NODEV, recursive=False)


def _confine(request: Request) -> dict[str, Any]:
    """Remove all rights that the user's code must not have.

    Returns:
        The isolation layers that were set up, with their details.

    Raises:
        OSError: The host does not support a layer that the request requires.
    """
    level, work = request["level"], request["work"]
    layers: dict[str, Any] = {}
    contained = level in ("bubblewrap", "namespaces")
    uid = _reachable_uid(request)
    if contained:
        layers["own_folder_limit"] = _try_layer(_mount_work, request, uid)
    existing = _tasks_of_user(os.getuid()) if not contained and uid is None else 0
    os.umask(0o077)
    os.environ.clear()
    os.environ.update(request["environment"])
    kernel.share_arenas()
    _set_limits(request["limits"], existing)
    if uid is not None:
        if not contained:
            os.chown(work, uid, uid)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.chdir(work)
    # Changing the user clears this setting, so set it again.
    _die_with_parent(None)
    layers["user_id_dropped"] = uid is not None
    kernel.drop_capabilities()
    kernel.prctl("no_new_privs", kernel.PR_SET_NO_NEW_PRIVS, 1)
    if level != "limits":
        readable = ["/"] if contained else [*request["readable"], *request["devices"]]
        if not contained:
            # DuckDB crashes if it cannot read its memory limit there.
            kernel_files = ("/proc/self/cgroup", "/sys/fs/cgroup")
            readable += [path for path in kernel_files if os.path.exists(path)]
        writable = [work, "/dev/null"]
        layers["landlock"] = _try_layer(landlock.restrict, readable, writable)
        layers["seccomp"] = _try_layer(seccomp.restrict, own_mounts=contained)
    missing = [name for name in request["demanded"] if layers.get(name) in (None, False)]
    if missing:
        raise OSError(f"required isolation layers are unavailable: {', '.join(missing)}")
    return layers


def _try_layer(build: Any, *arguments: Any, **options: Any) -> Any:
    """Set up one isolation layer, and return None if the host does not allow it.

    A probe later reports the missing layer.
    """
    try:
        result = build(*arguments, **options)
    except OSError:
        return None
    return True if result is None else result


def _mount_work(request: Request, uid: int | None) -> None:
    """Mount the working folder in memory, with limits on its bytes and files."""
    owner = os.getuid() if uid is None else uid
    group = os.getgid() if uid is None else uid
    size = request["limits"]["folder_bytes"]
    options = f"mode=700,uid={owner},gid={group},size={size},nr_inodes=4096"
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("tmpfs", request["work"], "tmpfs", flags, options)


def _reachable_uid(request: Request) -> int | None:
    """Return the user ID to switch to, or None if no such user could run the interpreter."""
    uid: int | None = request["uid"]
    if uid is None or os.geteuid() != 0:
        return None
    folders = {"/"}
    for path in (*request["readable"], *(() if request["contained"] else (request["work"],))):
        while path not in ("/", ""):
            path = os.path.dirname(path)
            folders.add(path)
    if all(os.stat(folder).st_mode & stat.S_IXOTH for folder in folders):
        return uid
    return None


def _tasks_of_user(uid: int) -> int:
    """Count the existing threads of a user, which the kernel counts against the limit."""
    total = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if os.stat(f"/proc/{entry}").st_uid == uid:
                    total += len(os.listdir(f"/proc/{entry}/task"))
            except OSError:
                continue  # the process ended meanwhile
    return total


def _set_limits(limits: dict[str, int], existing_tasks: int) -> None:
    """Set the kernel's soft and hard limits, so that they cannot be raised again."""
    cpu = limits["cpu_seconds"]
    for name, soft, hard in (
        ("AS", limits["memory_bytes"], limits["memory_bytes"]),
        ("CPU", cpu, cpu + 1),
        ("FSIZE", limits["file_bytes"], limits["file_bytes"]),
        ("NPROC", limits["threads"] + existing_tasks, limits["threads"] + existing_tasks),
        ("NOFILE", 256, 256),
        ("STACK", 8 << 20, 8 << 20),
        ("CORE", 0, 0),
        ("MEMLOCK", 0, 0),
        ("MSGQUEUE", 0, 0),
    ):
        limit = getattr(resource, f"RLIMIT_{name}")
        ceiling = resource.getrlimit(limit)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(limit, (soft, hard))
