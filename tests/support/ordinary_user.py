"""Files' modes bind whoever tests run as: root does without the rights that pass over them, for a while."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

VERSION = 0x20080522  # of the call: three words, twice
OVERRIDE, READ_SEARCH = 1, 2  # CAP_DAC_…


class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class Words(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable")]


@contextlib.contextmanager
def modes_bind() -> Iterator[None]:
    """Of this thread; asked of the kernel again and again, so that nothing of it is left afterwards."""
    if os.getuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, words = Header(VERSION, 0), (Words * 2)()
    if libc.capget(ctypes.byref(header), words) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    before = words[0].effective
    try:
        words[0].effective &= ~(1 << OVERRIDE | 1 << READ_SEARCH)
        if libc.capset(ctypes.byref(header), words) != 0:
            raise OSError(ctypes.get_errno(), "capset")
        yield
    finally:
        words[0].effective = before
        libc.capset(ctypes.byref(header), words)
