"""A connection whose requests are read by httptools, in C: where it is installed.

uvicorn bounds nothing of what httptools reads: neither heads, nor what stands around a body (lengths of chunks, what
comes behind the last), nor how many requests one sends behind each other. Here all are. And a body's only encoding is
`chunked`, said once, as h11 has it: of any other, two readers may see different ends.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

LARGEST_HEAD = 64 << 10  # bytes, as h11's
AROUND = 8  # bytes around each byte of a body: chunks may be small
MOST_BEHIND = 64  # requests that wait for the one that is being answered


class Connection(HttpToolsProtocol):
    _half_read = _encoded = False
    _around = 0  # bytes of this request that are not of its body
    _body = 0  # bytes of its body

    @property
    def half_read(self) -> bool:
        """Whether there is more to come of the request."""
        return self._half_read

    def data_received(self, data: bytes) -> None:
        self._around += len(data)
        super().data_received(data)
        if self._half_read and self._around > LARGEST_HEAD + AROUND * self._body and not self.transport.is_closing():
            self.send_400_response("The head of this request is too large.")

    def on_message_begin(self) -> None:
        self._half_read, self._encoded = True, False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if name.lower() == b"transfer-encoding":
            if self._encoded or value.strip().lower() != b"chunked":
                raise ValueError("an encoding that is not known")  # for uvicorn an error of httptools
            self._encoded = True

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if len(self.pipeline) > MOST_BEHIND:
            self.transport.abort()
            raise ValueError("too many requests behind each other")  # by which it is not read any further

    def on_body(self, body: bytes) -> None:
        self._around -= len(body)
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._half_read = False
        self._around = self._body = 0
        super().on_message_complete()
