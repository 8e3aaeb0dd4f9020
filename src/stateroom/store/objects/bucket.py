"""`s3://`, `gs://`, `az://`: objects in a bucket, with obstore.

A head is swapped by a conditional write (`If-Match` and `If-None-Match`, on Google a generation). obstore retries
requests that may be repeated, for some seconds at most; a swap is not retried: if its answer is lost, and another
process swaps before the second attempt, that is refused as if the first had never been.

Requests are made by threads of our own. obstore has an asynchronous interface too, but its threads sometimes kill a
process that ends soon after its last request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from stateroom.errors import StoreUnavailable, UnknownStore
from stateroom.store.objects.backend import Found, Listed, Missing, Moved, ObjectBackend, Version
from stateroom.store.url import StoreURL, without_secrets

if TYPE_CHECKING:
    from obstore import PutMode
    from obstore.store import ClientConfig, RetryConfig

T = TypeVar("T")

TIMEOUT = timedelta(seconds=5)
"""Limit for a connection and for a small request, and for the retries of a failed one."""
LARGE_BYTES = 1 << 20
LARGE_TIMEOUT = timedelta(seconds=60)
"""Limit for a request with at least `LARGE_BYTES` bytes."""
MAX_REQUESTS = 32
"""Most requests at once."""
RETRY: RetryConfig = {
    "max_retries": 4,
    "retry_timeout": TIMEOUT,
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1), "base": 2},
}
ONCE: RetryConfig = {**RETRY, "max_retries": 0}
OPTIONS = {"s3": {"endpoint", "region"}, "gs": {"endpoint"}, "az": {"account", "endpoint"}}
"""The options of a URL, by its scheme."""
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run with an IAM role",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or run with a service account",
    "az": "set AZURE_STORAGE_ACCOUNT_KEY, or run with a managed identity",
}

_Bucket = S3Store | GCSStore | AzureStore


def open_bucket(scheme: str, url: StoreURL, timeout: timedelta, retry: RetryConfig) -> _Bucket:
    """The bucket at a URL. What the URL does not say, such as credentials, comes from the environment."""
    if not url.host:
        raise UnknownStore(f"{without_secrets(url.url)}: write {scheme}://bucket or {scheme}://bucket/prefix")
    if "@" in url.host:  # a service would show them in its messages
        raise UnknownStore(f"{without_secrets(url.url)}: remove the credentials from the URL; {CREDENTIALS[scheme]}")
    endpoint = url.options.get("endpoint")
    client: ClientConfig = {"connect_timeout": TIMEOUT, "timeout": timeout}
    if endpoint and endpoint.startswith("http://"):
        client["allow_http"] = True
    common: dict[str, Any] = {"client_options": client, "retry_config": retry}
    if prefix := url.path.strip("/"):
        common["prefix"] = prefix
    given: dict[str, Any] = {name: value for name, value in url.options.items() if value}
    try:
        match scheme:
            case "s3":
                return S3Store(url.host, **common, **given)
            case "gs":
                return GCSStore(url.host, **common, **_renamed(given, endpoint="base_url"))
            case _:
                return AzureStore(url.host, **common, **_renamed(given, account="account_name"))
    except (BaseError, ValueError) as error:
        raise UnknownStore(f"{without_secrets(url.url)}: {_first_line(error)}") from error


def _renamed(options: dict[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in options.items()}


class Bucket(ObjectBackend):
    """Objects in a bucket."""

    remote = True

    def __init__(self, scheme: str, url: StoreURL) -> None:
        super().__init__(without_secrets(url.url).partition("?")[0], MAX_REQUESTS)
        self.scheme = scheme
        self._bucket = open_bucket(scheme, url, TIMEOUT, RETRY)
        self._large = open_bucket(scheme, url, LARGE_TIMEOUT, RETRY)
        self._swaps = open_bucket(scheme, url, TIMEOUT, ONCE)

    async def _ask(self, request: Callable[[], T]) -> T:
        try:
            return await self.in_thread(request)
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error) or "ContainerNotFound" in str(error):
                raise self._unavailable(error) from error
            raise Missing(_first_line(error)) from error
        except (AlreadyExistsError, PreconditionError) as error:
            raise Moved(_first_line(error)) from error
        except NotModifiedError:
            raise
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        text = str(error)
        if "NoSuchBucket" in text or "ContainerNotFound" in text or "bucket does not exist" in text:
            return StoreUnavailable(f"{self.url}: this bucket does not exist; create it first")
        if "169.254." in text or "metadata.google" in text:  # the addresses of a machine's own credentials
            return StoreUnavailable(f"{self.url}: no credentials; {CREDENTIALS[self.scheme]}")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or "403 Forbidden" in text:
            return StoreUnavailable(f"{self.url}: the credentials were rejected; {CREDENTIALS[self.scheme]}")
        return StoreUnavailable(f"{self.url}: {_first_line(error)}")

    async def read(self, name: str) -> Found:
        return await self._ask(lambda: self._read(name))

    async def read_changed(self, name: str, version: Version) -> Found | None:
        try:
            return await self._ask(lambda: self._read(name, version.get("e_tag")))
        except NotModifiedError:
            return None

    def _read(self, name: str, tag: str | None = None) -> Found:
        result = obstore.get(self._bucket, name, options={"if_none_match": tag} if tag else None)
        return Found(bytes(result.bytes()), _version(result.meta))

    async def read_part(self, name: str, start: int, end: int) -> bytes:
        bucket = self._large if end - start > LARGE_BYTES else self._bucket
        return bytes(await self._ask(lambda: obstore.get_range(bucket, name, start=start, end=end)))

    async def write(self, name: str, data: bytes) -> None:
        bucket = self._large if len(data) > LARGE_BYTES else self._bucket
        await self._ask(lambda: obstore.put(bucket, name, data, use_multipart=False))

    async def swap(self, name: str, data: bytes, version: Version | None) -> Version:
        mode: PutMode = "create" if version is None else version
        return _version(await self._ask(lambda: obstore.put(self._swaps, name, data, mode=mode, use_multipart=False)))

    async def list(self, folder: str, after: str = "") -> AsyncGenerator[list[Listed]]:
        stream = obstore.list(self._bucket, folder or None, offset=after or None, chunk_size=1000)
        while (chunk := await self._ask(lambda: next(stream, None))) is not None:
            yield [Listed(meta["path"], meta["size"], meta["last_modified"], meta["e_tag"]) for meta in chunk]

    async def remove(self, names: Iterable[str]) -> None:
        listed = list(names)
        try:
            if listed:
                await self._ask(lambda: obstore.delete(self._bucket, listed))
        except Missing:  # some services refuse names that do not exist: then one by one
            await asyncio.gather(*(self._remove_one(name) for name in listed))

    async def _remove_one(self, name: str) -> None:
        with suppress(Missing):
            await self._ask(lambda: obstore.delete(self._bucket, name))


def _version(result: Any) -> dict[str, str]:
    return {part: result[part] for part in ("e_tag", "version") if result[part] is not None}


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip()
