"""A filter of system calls for sandboxed processes: what no experiment needs and an escape might.

Built by hand because it is a hundred instructions and spares a compiled dependency. Refused calls fail with EPERM
(clone3 with ENOSYS, so that libraries fall back to clone, whose flags can be looked at).

What the kernel counts per user is counted for all sandboxes and for the host together, so what has such a quota and is
needed by no experiment is refused too: watches on files, larger pipes. And what tells which pages of a file anybody has
read lately (mincore, cachestat).

The strict filter is the other way round: what is not on a list (syscalls.py) does not exist.
"""

from __future__ import annotations

import platform
import struct

from airloop.sandbox.bubblewrap.syscalls import USED

# audit architecture, and the number of each call that is refused; clone is looked into.
X86_64 = 0xC000003E
AARCH64 = 0xC00000B7
_NEW_API = {  # the same numbers everywhere since they were added in 2019
    "pidfd_getfd": 438,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "memfd_secret": 447,
    "cachestat": 451,
}
_X86_64 = {
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "setns": 308,
    "unshare": 272,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "open_by_handle_at": 304,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "acct": 163,
    "quotactl": 179,
    "syslog": 103,
    "kcmp": 312,
    "settimeofday": 164,
    "clock_settime": 227,
    "clock_adjtime": 305,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "inotify_init": 253,
    "inotify_init1": 294,
    "fanotify_init": 300,
    "fanotify_mark": 301,
    "mincore": 27,
}
_AARCH64 = {
    "ptrace": 117,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "chroot": 51,
    "setns": 268,
    "unshare": 97,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "bpf": 280,
    "perf_event_open": 241,
    "userfaultfd": 282,
    "kexec_load": 104,
    "kexec_file_load": 294,
    "init_module": 105,
    "finit_module": 273,
    "delete_module": 106,
    "open_by_handle_at": 265,
    "swapon": 224,
    "swapoff": 225,
    "reboot": 142,
    "acct": 89,
    "quotactl": 60,
    "syslog": 116,
    "kcmp": 272,
    "settimeofday": 170,
    "clock_settime": 112,
    "clock_adjtime": 266,
    "sethostname": 161,
    "setdomainname": 162,
    "inotify_init1": 26,
    "fanotify_init": 262,
    "fanotify_mark": 263,
    "mincore": 232,
}
# Memory that belongs to no process: where a sandbox as a whole has no limit, nothing would limit it.
_LOOSE = {
    "x86_64": {"memfd_create": 319, "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240},
    "aarch64": {"memfd_create": 279, "shmget": 194, "msgget": 186, "semget": 190, "mq_open": 180},
}
# Calls that are looked into: clone, fcntl, socket.
ARCHITECTURES = {
    "x86_64": (X86_64, _X86_64 | _NEW_API, (56, 72, 41)),
    "aarch64": (AARCH64, _AARCH64 | _NEW_API, (220, 25, 198)),
}
F_SETLEASE = 1024  # on a file that sandboxes share, a lease makes the others wait
F_NOTIFY = 1026  # watches a directory
F_SETPIPE_SZ = 1031
REFUSED_FCNTL = (F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ)
FAMILIES = (1, 2, 10, 16)  # sockets that can be made: unix, IPv4, IPv6, netlink
CLONE3 = 435
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET

ALLOW = 0x7FFF0000
EPERM = 0x00050001
ENOSYS = 0x00050026

LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06


def program(bounded_memory: bool = True, strict: bool = False) -> bytes | None:
    """The filter for this machine as an array of struct sock_filter; None where it is not known. `bounded_memory`: all
    that a sandbox uses is counted together, memory that is no process's too. `strict`: only calls that are known to be
    used."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        return None
    audit, always, (clone, fcntl, socket) = ARCHITECTURES[machine]
    refused = always if bounded_memory else always | _LOOSE[machine]
    code = [
        (LOAD, 0, 0, 4),  # the architecture: a call made in another ABI has other numbers
        (JUMP_EQUAL, 1, 0, audit),
        (RETURN, 0, 0, EPERM),
        (LOAD, 0, 0, 0),  # the call's number
        (JUMP_AT_LEAST, 0, 1, 0x40000000),  # x32 calls on x86-64
        (RETURN, 0, 0, EPERM),
        (JUMP_EQUAL, 0, 1, CLONE3),
        (RETURN, 0, 0, ENOSYS),
    ]
    for number in sorted(refused.values()):
        code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, EPERM)]
    code += [
        (JUMP_EQUAL, 0, len(REFUSED_FCNTL) + 3, fcntl),
        (LOAD, 0, 0, 24),  # the low half of its second argument
        *((JUMP_EQUAL, len(REFUSED_FCNTL) - i, 0, wish) for i, wish in enumerate(REFUSED_FCNTL)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, EPERM),
        (JUMP_EQUAL, 0, len(FAMILIES) + 3, socket),
        (LOAD, 0, 0, 16),
        *((JUMP_EQUAL, len(FAMILIES) - i, 0, family) for i, family in enumerate(FAMILIES)),
        (RETURN, 0, 0, EPERM),
        (RETURN, 0, 0, ALLOW),
        (JUMP_EQUAL, 0, 4, clone),
        (LOAD, 0, 0, 16),  # the low half of clone's flags
        (JUMP_BITS, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, EPERM),
        (RETURN, 0, 0, ALLOW),
    ]
    for number in sorted(used(machine)) if strict else ():
        code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    code.append((RETURN, 0, 0, ENOSYS if strict else ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def used(machine: str) -> set[int]:
    column = list(ARCHITECTURES).index(machine)
    return {number for numbers in USED.values() if (number := numbers[column]) is not None}
