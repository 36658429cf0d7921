"""Filters for system calls (seccomp): what no program in a jail may ask of the kernel.

A filter is a small program for the kernel's classic BPF machine, eight bytes an instruction. Two are built here:
`jail_filter`, which bubblewrap loads before anything in the jail runs, and `child_filter`, with which the fork
server keeps its children from reaching the server itself.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable, Sequence

# Numbers of the system calls: x86-64, and the table that ARM shares with all newer architectures. From 424 on all
# architectures have the same.
_X86 = {
    **{"ioctl": 16, "fcntl": 72, "socket": 41, "clone": 56, "kill": 62, "ptrace": 101, "tkill": 200, "tgkill": 234},
    **{"shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "memfd_create": 319},
    **{"add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "setns": 308},
    **{"mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161},
    **{"bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "fanotify_init": 300, "kcmp": 312},
    **{"process_vm_readv": 310, "process_vm_writev": 311, "migrate_pages": 256, "move_pages": 279},
    **{"rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "prlimit64": 302, "setpriority": 141, "ioprio_set": 251},
    **{"sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314},
}
_ARM = {
    **{"ioctl": 29, "fcntl": 25, "socket": 198, "clone": 220, "kill": 129, "ptrace": 117, "tkill": 130, "tgkill": 131},
    **{"shmget": 194, "semget": 190, "msgget": 186, "mq_open": 180, "memfd_create": 279},
    **{"add_key": 217, "request_key": 218, "keyctl": 219, "unshare": 97, "setns": 268},
    **{"mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51},
    **{"bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "fanotify_init": 262, "kcmp": 272},
    **{"process_vm_readv": 270, "process_vm_writev": 271, "migrate_pages": 238, "move_pages": 239},
    **{"rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "prlimit64": 261, "setpriority": 140, "ioprio_set": 30},
    **{"sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "sched_setattr": 274},
}
_COMMON = {
    **{
        "pidfd_send_signal": 424,
        "pidfd_open": 434,
        "pidfd_getfd": 438,
        "clone3": 435,
        "io_uring_setup": 425,
        "memfd_secret": 447,
    },
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433},
    **{"process_madvise": 440, "mount_setattr": 442},
}
_MACHINES = {"x86_64": (0xC000003E, _X86 | _COMMON), "aarch64": (0xC00000B7, _ARM | _COMMON)}

_JAIL_DENIED = (
    # new namespaces and mounts: a user namespace of its own brings file systems without a size limit
    *("unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    # memory that no process limit counts, and objects that outlive their process
    *("shmget", "semget", "msgget", "mq_open", "memfd_create", "memfd_secret", "add_key", "request_key", "keyctl"),
    # other processes, and large parts of the kernel that no answer needs
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp"),
    *("bpf", "perf_event_open", "userfaultfd", "fanotify_init", "io_uring_setup", "migrate_pages", "move_pages"),
)
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_SOCKETS = (1, 2, 10, 16)  # unix, IPv4, IPv6, netlink; among the others is vsock, which reaches the host
_BY_FIRST_ARGUMENT = (
    *("tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "prlimit64"),
    *("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"),
)
_PRIO_USER = 2
# Whoever owns a descriptor gets signals from the kernel: F_SETOWN, F_SETOWN_EX, and FIOSETOWN, SIOCSPGRP.
_OWN_BY_FCNTL, _OWN_BY_IOCTL = (8, 15), (0x8901, 0x8902)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in the kernel's `seccomp_data`
_X32 = 0x40000000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER_MODE = 38, 22, 2

Instruction = tuple[int, int, int, int]


def supported(machine: str | None = None) -> bool:
    """Tell whether the system calls of this kind of machine are known here."""
    return (machine or platform.machine()) in _MACHINES


def jail_filter(machine: str | None = None) -> bytes:
    """Filter of a whole jail; a denied call fails with EPERM, as it would without permission.

    Args:
        machine: Kind of machine as `platform.machine` spells it; None for this one.

    Raises:
        KeyError: The machine is not `supported`.
    """
    architecture, numbers = _MACHINES[machine or platform.machine()]
    rules = [*_head(architecture, x32=machine_has_x32(machine))]
    for name in _JAIL_DENIED:
        rules += [(_EQUAL, 0, 1, numbers[name]), _deny()]
    # glibc falls back to clone, whose flags can be seen
    rules += [(_EQUAL, 0, 1, numbers["clone3"]), _deny(errno.ENOSYS)]
    rules += _when(numbers["clone"], [(_LOAD, 0, 0, _argument(0)), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _deny()])
    families = [(_EQUAL, len(_SOCKETS) - place, 0, value) for place, value in enumerate(_SOCKETS)]
    rules += _when(numbers["socket"], [(_LOAD, 0, 0, _argument(0)), *families, _deny(errno.EAFNOSUPPORT)])
    return _pack([*rules, (_RETURN, 0, 0, _ALLOW)])


def child_filter(protected: Sequence[int], groups: Sequence[int], machine: str | None = None) -> bytes:
    """Filter of one program beside a fork server: no signal, limit, scheduling or priority for the server.

    Args:
        protected: Processes and threads that must not be reached.
        groups: Their process groups.
        machine: See `jail_filter`.

    Raises:
        KeyError: The machine is not `supported`.
    """
    architecture, numbers = _MACHINES[machine or platform.machine()]
    rules = [*_head(architecture, x32=machine_has_x32(machine))]
    everyone = [-1, *protected, *(-group for group in groups)]
    rules += _when(numbers["kill"], _deny_values(0, everyone))
    for name in _BY_FIRST_ARGUMENT:
        rules += _when(numbers[name], _deny_values(0, protected))
    of_user = _deny_values(0, [_PRIO_USER])
    rules += _when(numbers["setpriority"], [*of_user, *_deny_values(1, [*protected, *groups])])
    # whose signal it is cannot be seen from a descriptor: a folder of /proc serves as one, too
    for name in ("ioprio_set", "pidfd_send_signal"):
        rules += [(_EQUAL, 0, 1, numbers[name]), _deny()]
    rules += _when(numbers["fcntl"], _deny_values(1, _OWN_BY_FCNTL))
    rules += _when(numbers["ioctl"], _deny_values(1, _OWN_BY_IOCTL))
    return _pack([*rules, (_RETURN, 0, 0, _ALLOW)])


def load_filter(program: bytes) -> bool:
    """Put this process and its children under a filter for good; tell whether the kernel took it."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_void_p))

    described = Program(len(program) // 8, ctypes.addressof(code))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(described), 0, 0) == 0)


def machine_has_x32(machine: str | None = None) -> bool:
    """Tell whether the machine has a second set of system calls under the same architecture number."""
    return (machine or platform.machine()) == "x86_64"


def _head(architecture: int, *, x32: bool) -> list[Instruction]:
    """Refuse another architecture's calls, whose numbers mean something else; leave the number loaded."""
    rules = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    rules.append((_LOAD, 0, 0, _NUMBER))
    return [*rules, (_AT_LEAST, 0, 1, _X32), _deny(errno.ENOSYS)] if x32 else rules


def _when(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Run ``body`` for one system call, then load the number again."""
    return [(_EQUAL, 0, len(body) + 1, number), *body, (_LOAD, 0, 0, _NUMBER)]


def _deny_values(index: int, values: Iterable[int]) -> list[Instruction]:
    """Deny if an argument is one of some 32-bit values."""
    rules: list[Instruction] = [(_LOAD, 0, 0, _argument(index))]
    for value in values:
        rules += [(_EQUAL, 0, 1, value & 0xFFFFFFFF), _deny()]
    return rules


def _argument(index: int) -> int:
    """Offset of the low half of an argument (both architectures are little-endian)."""
    return 16 + 8 * index


def _deny(number: int = errno.EPERM) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _pack(rules: Iterable[Instruction]) -> bytes:
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)
