"""A filter of system calls for one call of `run_python`: its process reads, computes and prints, and nothing of it
lasts.

A sandbox serves every call of an episode, so whatever a call could leave in it (a directory, where a link points, a
time on a file, a process, a segment of shared memory) the next would find: or not, if the sandbox was replaced. The
filter names what may be done and refuses all else: a list of what may not would be wrong with the next kernel. It
comes on top of the sandbox's own and is installed by inside.py before the agent's code; it cannot be taken off again.
"""

from __future__ import annotations

import platform
import struct

from airloop.sandbox.bubblewrap.seccomp import (
    AARCH64,
    ALLOW,
    CLONE3,
    ENOSYS,
    EPERM,
    JUMP_BITS,
    JUMP_EQUAL,
    LOAD,
    RETURN,
    X86_64,
)

# Name, number on x86-64, number on aarch64; "-" where an architecture has no such call.
# Files that are there and streams that are open; waiting, and talking to oneself, which threads and asyncio need;
# memory; threads, signals and the end of this process (waiting for others says that there are none); facts.
ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, lseek 8 62, close 3 57, close_range 436 436, dup 32 23,
dup2 33 -, dup3 292 24, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, statfs 137 43,
fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents64 217 61,
getcwd 79 17, chdir 80 49, fchdir 81 50, umask 95 166, fadvise64 221 223,
pipe 22 -, pipe2 293 59, poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19, socketpair 53 199, sendto 44 206, recvfrom 45 207,
getsockopt 55 209, getsockname 51 204, getpeername 52 205, shutdown 48 210,
mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233, brk 12 214, membarrier 324 283,
futex 202 98, set_robust_list 273 99, rseq 334 293, set_tid_address 218 96, gettid 186 178, sched_yield 24 124,
sched_getaffinity 204 123, arch_prctl 158 -, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, sigaltstack 131 132, rt_sigpending 127 136,
rt_sigtimedwait 128 137, rt_sigsuspend 130 133, pause 34 -, alarm 37 -, setitimer 38 103, getitimer 36 102,
restart_syscall 219 128,
getpid 39 172, getppid 110 173, getpgrp 111 -, getpgid 121 155, getsid 124 156, getuid 102 174, geteuid 107 175,
getgid 104 176, getegid 108 177, getgroups 115 158, getresuid 118 148, getresgid 120 150, uname 63 160, sysinfo 99 179,
getrusage 98 165, times 100 153, getrlimit 97 163, getcpu 309 168, clock_gettime 228 113, clock_getres 229 114,
clock_nanosleep 230 115, nanosleep 35 101, gettimeofday 96 169, time 201 -, getrandom 318 278
"""
LOOKED_INTO = "open 2 -, openat 257 56, fcntl 72 25, ioctl 16 29, prlimit64 302 261, clone 56 220, socket 41 198"

# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC and the own bit of O_TMPFILE: the same on both.
WRITES = 0o1 | 0o2 | 0o100 | 0o1000 | 0o20000000
CLONE_THREAD = 0x10000
# Of a descriptor alone: F_DUPFD to F_SETLKW, F_DUPFD_CLOEXEC. Others set what a directory's inode keeps.
DESCRIPTOR = (*range(8), 1030)
# FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, and three questions about terminals. Others set flags of files.
STREAM = (0x541B, 0x5421, 0x5451, 0x5450, 0x5401, 0x5413, 0x802C542A)
ERRNO = 0x00050000
EACCES, ENOTTY, ENETUNREACH = ERRNO | 13, ERRNO | 25, ERRNO | 101

Instruction = tuple[int, int, int, int]


def program(machine: str = "") -> bytes | None:
    """The filter for a machine as an array of struct sock_filter; None where the numbers are not known."""
    known = {"x86_64": (X86_64, 1), "aarch64": (AARCH64, 2)}.get(machine or platform.machine())
    if known is None:
        return None
    audit, column = known
    code: list[Instruction] = [
        (LOAD, 0, 0, 4),  # the architecture: a call made in another ABI has other numbers
        (JUMP_EQUAL, 1, 0, audit),
        _answer(EPERM),
        (LOAD, 0, 0, 0),  # the call's number
    ]
    for number in numbers(ALLOWED, column).values():
        code += _when(number, [_answer(ALLOW)])
    into = numbers(LOOKED_INTO, column)
    if "open" in into:
        code += _when(into["open"], [_argument(1), *_without(WRITES, EACCES)])
    code += _when(into["openat"], [_argument(2), *_without(WRITES, EACCES)])
    code += _when(into["fcntl"], [_argument(1), *_among(DESCRIPTOR, EPERM)])
    code += _when(into["ioctl"], [_argument(1), *_among(STREAM, ENOTTY)])
    code += _when(into["prlimit64"], [_argument(0), *_among((0,), EPERM)])  # its own limits, not another's
    code += _when(into["clone"], [_argument(0), (JUMP_BITS, 0, 1, CLONE_THREAD), _answer(ALLOW), _answer(EPERM)])
    code += _when(into["socket"], [_answer(ENETUNREACH)])
    code += _when(CLONE3, [_answer(ENOSYS)])  # libraries fall back to clone, whose flags can be looked at
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in [*code, _answer(EPERM)])


def numbers(table: str, column: int) -> dict[str, int]:
    rows = [row.split() for row in table.split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _when(number: int, then: list[Instruction]) -> list[Instruction]:
    """`then` must end in an answer."""
    return [(JUMP_EQUAL, 0, len(then), number), *then]


def _argument(place: int) -> Instruction:
    """The low half of an argument: all that these have is in it."""
    return (LOAD, 0, 0, 16 + 8 * place)


def _answer(action: int) -> Instruction:
    return (RETURN, 0, 0, action)


def _without(bits: int, otherwise: int) -> list[Instruction]:
    return [(JUMP_BITS, 0, 1, bits), _answer(otherwise), _answer(ALLOW)]


def _among(values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    found = [(JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*found, _answer(otherwise), _answer(ALLOW)]
