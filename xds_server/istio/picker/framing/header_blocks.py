"""What a client's headers say. A gateway's requests have the same ones again and again, in ten bytes."""

from __future__ import annotations

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

from xds_server.istio.picker.framing.frames import Error, Http2Error

_MOST_KEPT = 64


class HeaderBlocks:
    """Reads the blocks of one connection, all of them, in their order: each may add to the table."""

    def __init__(self, max_bytes: int) -> None:
        """Read blocks that are at most `max_bytes` long when they are unpacked."""
        self._decoder = Decoder(max_header_list_size=max_bytes)
        self._read: dict[bytes, dict[str, str]] = {}
        """What was read, for as long as the table that it refers to stays as it is."""

    def read(self, block: bytes) -> dict[str, str]:
        """Return the fields of a block.

        Raises:
            Http2Error: It cannot be unpacked, and none after it could.
        """
        known = self._read.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table
        before, size = _newest(table), table.maxsize
        try:
            fields = {str(each[0]): str(each[1]) for each in self._decoder.decode(block)}
        except (HPACKError, UnicodeDecodeError) as error:
            raise Http2Error(Error.COMPRESSION_ERROR, f"headers: {error}") from None
        if _newest(table) is not before or table.maxsize != size:
            self._read.clear()  # Every entry has another number now.
        elif len(self._read) < _MOST_KEPT:
            self._read[block] = fields
        return fields


def _newest(table: HeaderTable) -> object:
    return table.dynamic_entries[0] if table.dynamic_entries else None
