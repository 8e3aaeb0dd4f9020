"""Token counters: how many tokens an item takes."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from hashlib import sha1, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stateroom.errors import BadData, NotFound, needs
from stateroom.model import Item
from stateroom.state import to_json

if TYPE_CHECKING:
    from tiktoken import Encoding

TOKENS_PER_ITEM = 4
"""Tokens of an item besides its text: its role and delimiters."""

TOKENS_PER_IMAGE = 1_100
"""Upper bound of an image's tokens in common models; its size in bytes does not matter."""

BYTES_PER_TOKEN = 3
"""Between compact JSON with 2 bytes a token, and English with 4; other scripts lie between."""


class TokenCounter(Protocol):
    """Counts the tokens of items. The same item always has the same count."""

    @property
    def name(self) -> str:
        """The name of the counter, for messages."""

    def count(self, item: Item) -> int:
        """The tokens of an item, or of a tool's schema."""


@dataclass(frozen=True)
class Estimate:
    """An estimate without a vocabulary: 4 tokens for an item, and one for each 3 bytes of its text.

    English and code take about a quarter less; compact JSON, digits and most other scripts up to half more. An image is
    1,100 tokens.
    """

    name = "estimate"

    def count(self, item: Item) -> int:
        texts, images = readable(item)
        size = sum(len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass")) for text in texts)
        return TOKENS_PER_ITEM + images * TOKENS_PER_IMAGE - (-size // BYTES_PER_TOKEN)


class TokenizerFile:
    """Counts with a tokenizer's JSON file, through the `tokenizers` package."""

    def __init__(self, path: str | Path) -> None:
        """Raises `NotFound` if the file or the package is missing, and `BadData` if the file is not a tokenizer."""
        with needs("a tokenizer file", "tokens"):
            from tokenizers import Tokenizer  # noqa: PLC0415 - an extra
        if not Path(path).is_file():
            raise NotFound(f"tokenizer file {str(path)!r} does not exist")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package has no narrower one
            raise BadData(f"{str(path)!r} is not a tokenizer JSON file: {error}") from error
        self._tokenizer.no_truncation()  # a file may ask for both
        self._tokenizer.no_padding()
        self.name = Path(path).name

    def count(self, item: Item) -> int:
        texts, images = readable(item)
        encode = self._tokenizer.encode
        tokens = sum(len(encode(_whole(text), add_special_tokens=False).ids) for text in texts)
        return TOKENS_PER_ITEM + images * TOKENS_PER_IMAGE + tokens


class Tiktoken:
    """Counts with an encoding of the `tiktoken` package: an `Encoding`, or the name of one whose vocabulary is on disk.

    It never downloads a vocabulary. It looks for one in the cache of `tiktoken`: in `TIKTOKEN_CACHE_DIR`, else in
    `data-gym-cache` in the folder for temporary files.
    """

    def __init__(self, encoding: str | Encoding) -> None:
        """Raises `NotFound` if the encoding, the package or the vocabulary is missing."""
        with needs("an encoding", "tokens"):
            import tiktoken  # noqa: PLC0415 - an extra
        if isinstance(encoding, str):
            _ensure_downloaded(encoding)
            encoding = tiktoken.get_encoding(encoding)
        self._encoding = encoding
        self.name = encoding.name

    def count(self, item: Item) -> int:
        texts, images = readable(item)
        encode = self._encoding.encode_ordinary
        return TOKENS_PER_ITEM + images * TOKENS_PER_IMAGE + sum(len(encode(text)) for text in texts)


_VOCABULARIES = {
    "r50k_base": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    "p50k_base": "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
"""SHA-256 digests by name: `tiktoken` downloads a file again if its digest differs."""

_ENCODINGS = {**{name: name for name in _VOCABULARIES}, "p50k_edit": "p50k_base", "o200k_harmony": "o200k_base"}
"""The vocabulary of each encoding."""


def _ensure_downloaded(encoding: str) -> None:
    """Raise `NotFound` unless `tiktoken` finds the vocabulary of an encoding on disk."""
    vocabulary = _ENCODINGS.get(encoding)
    if vocabulary is None:
        raise NotFound(f"unknown encoding {encoding!r}; choose from {', '.join(_ENCODINGS)}")
    url = f"https://openaipublic.blob.core.windows.net/encodings/{vocabulary}.tiktoken"
    given = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    folder = Path(tempfile.gettempdir()) / "data-gym-cache" if given is None else Path(given)
    file = folder / sha1(url.encode(), usedforsecurity=False).hexdigest()
    if given == "" or not file.is_file() or sha256(file.read_bytes()).hexdigest() != _VOCABULARIES[vocabulary]:
        raise NotFound(
            f"the vocabulary of {encoding!r} is missing, and is never downloaded: save {url} as {file}, "
            "or count with TokenizerFile or Estimate"
        )


_READ = {
    "message": ("content",),
    "function_call": ("name", "arguments"),
    "function_call_output": ("output",),
    "custom_tool_call": ("name", "input"),
    "custom_tool_call_output": ("output",),
    "reasoning": ("summary", "content", "encrypted_content"),
}
"""The fields of an item that a model reads; not its ids, log probabilities and token ids."""


def readable(item: Item) -> tuple[list[str], int]:
    """The texts of an item that a model reads, and its number of images."""
    texts: list[str] = []
    images = 0
    fields = _READ.get(item.get("type") or "message")
    if fields is None:  # an unknown kind, or a tool's schema
        return [_json(item)], 0
    for field in fields:
        value = item.get(field)
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, list):
            for part in value:
                images += _is_image(part)
                texts.append(_text_of_part(part))
        elif value is not None:
            texts.append(_json(value))
    return texts, images


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("input_image", "image_url", "computer_screenshot")


def _text_of_part(part: Any) -> str:
    if not isinstance(part, dict):
        return _json(part)
    text = part.get("text", part.get("refusal"))
    if isinstance(text, str):
        return text
    return "" if _is_image(part) else _json(part)


def _json(value: Any) -> str:
    return to_json(value).decode()


def _whole(text: str) -> str:
    """A text without half surrogate pairs, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
