"""Listens on a port of its own loopback and carries what comes to a unix socket. It stands alone: it runs inside of a
container that has no network, by whatever Python that has.

    python forwarder.py 3129 /opt/air/door/socket
"""

import contextlib
import socket
import sys
import threading


def carry(near: socket.socket, far: socket.socket) -> None:
    """One direction, until its end."""
    with contextlib.suppress(OSError):
        while data := near.recv(65536):
            far.sendall(data)
    for end in (near, far):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def serve(near: socket.socket, path: str) -> None:
    with near, socket.socket(socket.AF_UNIX) as far:
        try:
            far.connect(path)
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            return
        back = threading.Thread(target=carry, args=(far, near), daemon=True)
        back.start()
        carry(near, far)
        back.join()


def main() -> None:
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind(("127.0.0.1", int(sys.argv[1])))
    listening.listen(128)
    print("ready", flush=True)
    while True:
        near, _ = listening.accept()
        threading.Thread(target=serve, args=(near, sys.argv[2]), daemon=True).start()


if __name__ == "__main__":
    main()
