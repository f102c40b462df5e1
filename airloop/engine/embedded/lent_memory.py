"""GPU memory that is given back and taken again at the same address.

Captured graphs hold addresses. torch's allocator would hand out another one the next time, so this asks the driver
itself: an address range is reserved once, and physical memory is mapped into it and unmapped.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from airloop.errors import AirError

PINNED, DEVICE, READ_WRITE = 1, 1, 3


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Flags(ctypes.Structure):
    _fields_ = (
        ("compression", ctypes.c_ubyte),
        ("direct", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", _Flags),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class LentMemory:
    """At least `size` bytes on `device`, mapped at first. Whoever unmaps it must have seen to it that nothing runs."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device
        index = device.index if device.index is not None else torch.cuda.current_device()
        self._location = _Location(DEVICE, index)
        self._properties = _Properties(PINNED, 0, self._location, None, _Flags())
        self._driver: Any = ctypes.CDLL("libcuda.so.1")
        torch.cuda.synchronize(device)  # the driver is started, and this thread has its context
        step = ctypes.c_size_t()
        self._call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(self._properties), 0)
        self.size = -(-size // step.value) * step.value
        self._address = ctypes.c_uint64()
        zero = ctypes.c_uint64(0)
        self._call("cuMemAddressReserve", ctypes.byref(self._address), self._bytes, ctypes.c_size_t(0), zero, zero)
        self._handle: ctypes.c_uint64 | None = None
        self.take()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the interpreter's end there may be no driver any more
            self.close()

    @property
    def taken(self) -> bool:
        return self._handle is not None

    @property
    def _bytes(self) -> ctypes.c_size_t:
        return ctypes.c_size_t(self.size)

    def tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The memory as a tensor, to be used only while it is taken."""
        kind = {1: "|u1", 2: "<f2", 4: "<f4", 8: "<f8"}[dtype.itemsize]
        described = {"shape": tuple(shape), "typestr": kind, "data": (self._address.value, False), "version": 2}
        holder = type("Memory", (), {"__cuda_array_interface__": described, "memory": self})()
        return torch.as_tensor(holder, device=self._device).view(dtype)

    def take(self) -> None:
        """Map memory again; what it holds is undefined."""
        if self._handle is not None:
            return
        torch.cuda.empty_cache()  # what torch keeps for later is not free for others
        handle, zero = ctypes.c_uint64(), ctypes.c_uint64(0)
        self._call("cuMemCreate", ctypes.byref(handle), self._bytes, ctypes.byref(self._properties), zero)
        self._call("cuMemMap", self._address, self._bytes, ctypes.c_size_t(0), handle, zero)
        access = _Access(self._location, READ_WRITE)
        self._call("cuMemSetAccess", self._address, self._bytes, ctypes.byref(access), ctypes.c_size_t(1))
        self._handle = handle

    def give_back(self) -> None:
        if self._handle is None:
            return
        torch.cuda.synchronize(self._device)
        self._call("cuMemUnmap", self._address, self._bytes)
        self._call("cuMemRelease", self._handle)
        self._handle = None

    def close(self) -> None:
        """For good: the address too. The tensor must not be used again."""
        self.give_back()
        if self._address.value:
            self._call("cuMemAddressFree", self._address, self._bytes)
            self._address = ctypes.c_uint64(0)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code == 0:
            return
        said = ctypes.c_char_p()
        self._driver.cuGetErrorString(code, ctypes.byref(said))
        raise AirError(
            f"The GPU's driver refused {name} for {self.size / 2**30:.1f} GiB of key/value memory: "
            f"{(said.value or b'?').decode()}.",
            "lower inference.kv_tokens or trainer.token_budget; `air plan` shows what takes how much.",
        )
