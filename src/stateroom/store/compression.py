"""`compress=zstd`: bodies that lie in a store compressed.

A body is kept as `MARK` + `z` + a zstd frame with a checksum, or as it is if it is small or would not become smaller.
The rare body which begins with `MARK` itself is kept as `MARK` + `p` + the body. What was written before the store
compressed stays readable: entries and snapshots are msgpack, which never begins with `MARK`; and a blob that does is
known by its name, which is the digest of its content.
"""

from __future__ import annotations

import sys

from stateroom.errors import BadData
from stateroom.state.large import digest_of
from stateroom.store.contract import Store
from stateroom.store.wrapper import MARK, Place, TransformedStore, place_name

if sys.version_info >= (3, 14):
    from compression.zstd import CompressionParameter, ZstdCompressor, ZstdError, decompress
else:
    from backports.zstd import CompressionParameter, ZstdCompressor, ZstdError, decompress

SMALL = 128
"""Bodies of fewer bytes than this are not worth the time."""

PACKED = MARK + b"z"
PLAIN = MARK + b"p"


class CompressedStore(TransformedStore):
    """Another store, with its bodies compressed by zstd."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        # To set one up takes longer than to compress a small body, so it is kept.
        self._compressor = ZstdCompressor(options={CompressionParameter.checksum_flag: 1})

    def write(self, body: bytes, place: Place) -> bytes:
        if len(body) >= SMALL:
            packed = PACKED + self._compressor.compress(body, ZstdCompressor.FLUSH_FRAME)
            if len(packed) < len(body):
                return packed
        return PLAIN + body if body.startswith(MARK) else body

    def read(self, kept: bytes, place: Place) -> bytes:
        if not kept.startswith(MARK) or _is_content(kept, place):
            return kept
        form, content = kept[:2], kept[2:]
        if form == PLAIN:
            return content
        if form != PACKED:
            raise BadData(
                f"{place_name(place)} is not compressed but encrypted, or damaged: is keys= missing in the URL?"
            )
        try:
            return decompress(content)
        except ZstdError as error:
            raise BadData(f"{place_name(place)} is damaged: {error}") from error


def _is_content(kept: bytes, place: Place) -> bool:
    """Whether this is a blob as it was before there was compression."""
    what, _, digest, *_ = place
    return what == "blob" and digest_of(kept) == digest
