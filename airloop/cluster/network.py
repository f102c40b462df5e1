"""The route between two machines: the address and interface by which one reaches the other."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from typing import NamedTuple

_ASK_ADDRESS = 0x8915  # SIOCGIFADDR, of Linux
_ANY_PORT = 9  # no data is sent


class Route(NamedTuple):
    address: str  # of this machine, as the other one sees it
    interface: str  # that has it; empty where none can be named


def route_to(host: str) -> Route:
    """How this machine reaches `host`: the kernel chooses, as it will for whatever is sent there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect((host, _ANY_PORT))
        address = towards.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address_of(towards, name) == address:
                return Route(address, name)
    # 127.0.0.2, for one, is no interface's own and is reached by the one that has 127.0.0.1.
    return Route(address, "lo" if address.startswith("127.") else "")


def free_ports(address: str, count: int = 1) -> list[int]:
    """As many free ports, all different. They should be used soon: they are not reserved."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for one in taken:
            one.bind((address, 0))
        return [one.getsockname()[1] for one in taken]


def _address_of(asking: socket.socket, interface: str) -> str | None:
    try:
        found = fcntl.ioctl(asking.fileno(), _ASK_ADDRESS, struct.pack("256s", interface.encode()[:15]))
    except OSError:  # it has none
        return None
    return socket.inet_ntoa(found[20:24])
