"""Ports for servers that a test starts a moment later, by number.

A port that the system gives (bind to 0) and that is bound again later may be given to anybody in between, also to an
outgoing connection, of which tests have thousands. So these are below the range from which the system gives
(net.ipv4.ip_local_port_range), each worker of pytest has a block of its own, and none is given twice in a row.
"""

from __future__ import annotations

import itertools
import os
import re
import socket

FIRST, EACH, BLOCKS = 20_000, 1_000, 12  # up to 32,000: Linux gives from 32,768 on

# From another place in every process: several may run tests on this machine, and a child has its parent's worker.
_numbers = itertools.count(os.getpid() * 37)


def free_port(address: str = "127.0.0.1") -> int:
    worker = re.search(r"\d+", os.environ.get("PYTEST_XDIST_WORKER", "gw0"))
    first = FIRST + EACH * (int(worker[0]) % BLOCKS if worker else 0)
    for number in itertools.islice(_numbers, EACH):
        port = first + number % EACH
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
        return port
    raise AssertionError(f"no port of {first} to {first + EACH - 1} is free at {address}")
