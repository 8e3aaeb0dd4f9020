"""Tokens: what an item counts."""

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest
from tiktoken import Encoding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from stateroom.agent import Estimate, Tiktoken, TokenCounter, TokenizerFile
from stateroom.errors import BadData, NotFound
from stateroom.model import Item, function_call, function_call_output, message
from tests.messages import raises

PER_ITEM, PER_IMAGE = 4, 1_100


def user(content: Any) -> Item:
    return {"role": "user", "content": content}


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    """A tokenizer that knows a few words, and is told to cut, to fill up and to add tokens of its own."""
    tokenizer = Tokenizer(WordLevel({"?": 0, "a": 1, "b": 2, "[start]": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[start] $A", special_tokens=[("[start]", 3)])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def bytes_encoding() -> Encoding:
    """An encoding that has a token for each byte, and one for `ab`."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256}
    return Encoding("bytes", pat_str=r"\s+|\S+", mergeable_ranks=ranks, special_tokens={"<|end|>": 257})


@pytest.fixture(params=["estimate", "file", "tiktoken"])
def counter(request: pytest.FixtureRequest, tokenizer_file: Path) -> TokenCounter:
    if request.param == "estimate":
        return Estimate()
    return TokenizerFile(tokenizer_file) if request.param == "file" else Tiktoken(bytes_encoding())


def test_the_estimate_is_what_it_states() -> None:
    count = Estimate().count
    assert count(user("")) == PER_ITEM
    assert count(user("abcdef")) == PER_ITEM + 2
    assert count(user("abcdefg")) == PER_ITEM + 3
    assert count(user("é" * 3)) == PER_ITEM + 2  # bytes, not characters
    assert count(user("\ud83d")) == PER_ITEM + 1


def test_a_tokenizer_file_counts_all_of_a_text_and_nothing_else(tokenizer_file: Path) -> None:
    counter = TokenizerFile(tokenizer_file)
    assert counter.name == "tokenizer.json"
    assert counter.count(user("a b a")) == PER_ITEM + 3
    assert counter.count(user("a b " * 100)) == PER_ITEM + 200
    assert counter.count(user("a \ud83d")) == PER_ITEM + 2


def test_an_encoding_takes_a_text_for_text() -> None:
    counter = Tiktoken(bytes_encoding())
    assert counter.name == "bytes"
    assert counter.count(user("abab c")) == PER_ITEM + 4
    assert counter.count(user("<|end|>")) == PER_ITEM + 7


def test_everything_that_a_model_reads_counts(counter: TokenCounter) -> None:
    long = "a b " * 50
    texts = [
        user(long),
        user([{"type": "input_text", "text": long}]),
        message(long),
        {"role": "assistant", "content": [{"type": "refusal", "refusal": long}]},
        function_call("f", "c", x=long),
        {"type": "function_call", "call_id": "c", "name": long, "arguments": "{}"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": {"x": long}},
        function_call_output("c", long),
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": long}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": long}]},
        {"type": "reasoning", "summary": [], "encrypted_content": long},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": long},
        {"type": "function", "name": "f", "description": long, "parameters": {}},
        {"type": "of the future", "whatever": [long]},
        user([{"type": "input_file", "file_data": long}]),
        user([long, 7, None]),
    ]
    for item in texts:
        assert counter.count(item) >= counter.count(user(long)), item


def test_what_is_kept_for_others_does_not_count(counter: TokenCounter) -> None:
    item = message("a")
    kept: Item = {**item, "id": "msg_1", "generation_token_ids": [1] * 1000, "generation_log_probs": [0.5] * 1000}
    assert counter.count(kept) == counter.count(item)


def test_an_image_counts_the_same_whatever_its_bytes(counter: TokenCounter) -> None:
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{'A' * 100_000}"}
    expected = counter.count(user("a")) + PER_IMAGE
    assert counter.count(user([{"type": "input_text", "text": "a"}, picture])) == expected


@pytest.mark.parametrize("content", [None, 7, {}, [None], [[]], [{}], [{"text": None}], [{"text": 7}], {"a": ["b"]}])
def test_odd_content_is_counted_somehow(counter: TokenCounter, content: Any) -> None:
    assert counter.count(user(content)) >= PER_ITEM
    assert counter.count({"type": None, "content": content}) >= PER_ITEM


def test_a_file_that_is_missing_or_something_else_is_named(tmp_path: Path) -> None:
    with raises(NotFound):
        TokenizerFile(tmp_path / "missing.json")
    (tmp_path / "other.json").write_text("{}")
    with raises(BadData):
        TokenizerFile(tmp_path / "other.json")


def test_a_vocabulary_that_is_not_on_disk_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiktoken.load.read_file", lambda path: pytest.fail(f"{path} was asked for"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    url = "https://openaipublic.blob.core.windows.net/encodings/cl100k_base.tiktoken"
    with raises(NotFound):
        Tiktoken("cl100k_base")
    damaged = tmp_path / hashlib.sha1(url.encode()).hexdigest()
    damaged.write_bytes(base64.b64encode(b"a") + b" 0\n")
    with raises(NotFound):
        Tiktoken("cl100k_base")
    assert damaged.exists()  # tiktoken would have removed it, and asked for another
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")  # it keeps none
    with raises(NotFound):
        Tiktoken("cl100k_base")


def test_an_encoding_that_there_is_not_is_named_with_those_there_are() -> None:
    with raises(NotFound):
        Tiktoken("gpt-7")


@pytest.mark.parametrize(("package", "make"), [("tokenizers", TokenizerFile), ("tiktoken", Tiktoken)])
def test_a_package_that_is_not_installed_is_named(
    package: str, make: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with raises(NotFound):
        make("x")
