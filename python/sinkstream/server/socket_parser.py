"""The parser of `websockets`, which keeps no frame, and sets the answers to pings apart.

Knows nothing about connections, nor how much all of them hold.
"""

from __future__ import annotations

import codecs
from copy import copy
from typing import Any

from websockets.exceptions import ProtocolError
from websockets.frames import CTRL_OPCODES, CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

FRAGMENT_BYTES = 64
"""What a fragment of a message takes in addition to its data, rounded up."""
_CHECKED_AT_ONCE = 1 << 16
_new_decoder = codecs.getincrementaldecoder("utf-8")


class SocketParser(ServerProtocol):
    """A parser that checks the text of messages as it arrives.

    `current_size`, which has the limit of a message, counts `FRAGMENT_BYTES` for each fragment.
    """

    def __init__(self, **arguments: Any) -> None:
        """Pass the arguments on."""
        super().__init__(**arguments)
        self.pongs: list[bytes] = []
        """Frames that `data_to_send` returns first."""
        self._decoder: codecs.IncrementalDecoder | None = None
        """Of the message that is arriving, if it is a text."""

    def recv_frame(self, frame: Frame) -> None:
        """Take a frame."""
        super().recv_frame(frame)
        if frame.opcode in CTRL_OPCODES:
            return
        if not frame.fin:
            assert self.current_size is not None  # its message goes on
            self.current_size += FRAGMENT_BYTES
        if frame.opcode is not Opcode.CONT:
            self._decoder = _new_decoder() if frame.opcode is Opcode.TEXT else None
        if self._decoder is not None and not _is_text(self._decoder, frame):
            self.fail(CloseCode.INVALID_DATA, "message: must be UTF-8, but is not.")
            self.parser_exc = ProtocolError("invalid UTF-8")
        # The parser holds its last frame until the next one has arrived.
        self.events[-1] = copy(frame)
        frame.data = b""

    def send_frame(self, frame: Frame) -> None:
        """Queue a frame."""
        super().send_frame(frame)
        if frame.opcode is Opcode.PONG:
            pong = self.writes.pop()
            if self.state is not State.CONNECTING:  # what is sent first is the head
                self.pongs.append(pong)

    def data_to_send(self) -> list[bytes]:
        """Return what is to be sent, and forget it."""
        pongs, self.pongs = self.pongs, []
        return pongs + super().data_to_send()


def _is_text(decoder: codecs.IncrementalDecoder, frame: Frame) -> bool:
    """Return whether a message may still be UTF-8. The text itself is not made as a whole."""
    part = memoryview(frame.data)
    try:
        for begin in range(0, len(part), _CHECKED_AT_ONCE):
            decoder.decode(part[begin : begin + _CHECKED_AT_ONCE])
        if frame.fin:
            decoder.decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True
