"""`compress=zstd`: compressed bodies in a store.

A body is stored as `MARK` + `z` + a zstd frame with a checksum, or unchanged if it is small or would not shrink. The
rare body that begins with `MARK` itself is stored as `MARK` + `p` + the body. What was written without compression
stays readable: entries and snapshots are msgpack, which never begins with `MARK`, and a blob that does is recognised by
its name, the digest of its content.
"""

from __future__ import annotations

import sys

from stateroom.errors import BadData
from stateroom.state import digest_of
from stateroom.store.contract import Store
from stateroom.store.wrapper import MARK, Location, TransformedStore, location_name

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdCompressor, ZstdError, decompress
else:
    from backports.zstd import CompressionParameter, ZstdCompressor, ZstdError, decompress

SMALL_BODY_BYTES = 128
"""Bodies of fewer bytes are not compressed."""

PACKED = MARK + b"z"
PLAIN = MARK + b"p"


class CompressedStore(TransformedStore):
    """Another store, with its bodies compressed by zstd."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        # Kept, because setting one up takes longer than compressing a small body.
        self._compressor = ZstdCompressor(options={CompressionParameter.checksum_flag: 1})

    def write(self, body: bytes, location: Location) -> bytes:
        if len(body) >= SMALL_BODY_BYTES:
            packed = PACKED + self._compressor.compress(body, ZstdCompressor.FLUSH_FRAME)
            if len(packed) < len(body):
                return packed
        return PLAIN + body if body.startswith(MARK) else body

    def read(self, kept: bytes, location: Location) -> bytes:
        if not kept.startswith(MARK) or _is_content(kept, location):
            return kept
        form, content = kept[:2], kept[2:]
        if form == PLAIN:
            return content
        if form != PACKED:
            raise BadData(
                f"{location_name(location)} is encrypted or damaged; if it is encrypted, add keys= to the store's URL"
            )
        try:
            return decompress(content)
        except ZstdError as error:
            raise BadData(f"{location_name(location)} is damaged: {error}") from error


def _is_content(kept: bytes, location: Location) -> bool:
    """Whether this is a blob that was written without compression."""
    what, _, digest, *_ = location
    return what == "blob" and digest_of(kept) == digest
