"""`TempFolder`: a folder of a session, which is forked, rewound and moved with it."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from errno import ELOOP
from io import BytesIO
from pathlib import Path
from stat import S_IXUSR

from stateroom.errors import DefinitionError, TooLarge, ToolError
from stateroom.session import Resource, SessionInfo

BLOCK = tarfile.BLOCKSIZE

MODIFIED = 315_532_800
"""The modification time of all files in an archive: 1980, the earliest in some formats."""


class TempFolder(Resource[Path]):
    """A private folder, injected as a `Path`: `resources = {"folder": TempFolder()}`.

    After each call that changes the folder, all of it is stored: files, folders, internal links, and executable bits,
    but not times, owners and other permissions. A call fails if the folder then exceeds `max_bytes`, or contains a link
    that leads out of it or a special file.
    """

    kind = "exportable"

    def __init__(self, *, max_bytes: int = 16 * 2**20) -> None:
        if max_bytes <= 0:
            raise DefinitionError(f"max_bytes must be above 0, not {max_bytes}")
        self.max_bytes = max_bytes

    def start(self, session: SessionInfo, /) -> Path:
        return Path(tempfile.mkdtemp(prefix="stateroom-folder-"))

    def stop(self, handle: Path, /) -> None:
        try:
            shutil.rmtree(handle)
        except FileNotFoundError:  # a tool removed it
            return
        except PermissionError:
            _allow_all(handle)
            shutil.rmtree(handle)

    def save(self, handle: Path, /) -> bytes:
        """An archive that depends only on the content of the folder."""
        archive = BytesIO()
        left = self.max_bytes
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in _within(handle):
                info, content = _member(handle, path, left)
                left -= BLOCK + len(content)
                if left < 0:
                    raise TooLarge(f"the folder has more than {self.max_bytes:,} bytes")
                tar.addfile(info, BytesIO(content))
        return archive.getvalue()

    def restore(self, saved: bytes, session: SessionInfo, /) -> Path:
        folder = self.start(session)
        try:
            with tarfile.open(fileobj=BytesIO(saved)) as tar:
                tar.extractall(folder, filter="data")
        except BaseException:
            self.stop(folder)
            raise
        return folder


def _within(folder: Path) -> Iterator[Path]:
    """The content of a folder, ordered by name; it does not follow links."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _within(path)


def _member(folder: Path, path: Path, most: int) -> tuple[tarfile.TarInfo, bytes]:
    """The archive member of a file, and its content, up to one byte more than `most`."""
    name = path.relative_to(folder).as_posix()
    info = tarfile.TarInfo(name)
    info.mtime, info.mode = MODIFIED, 0o755
    if path.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, _target(folder, path, name)
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
    elif path.is_file():
        with path.open("rb") as file:
            content = file.read(most + 1)
            executable = os.fstat(file.fileno()).st_mode & S_IXUSR
        info.size, info.mode = len(content), 0o755 if executable else 0o644
        return info, content
    else:
        raise ToolError(f"{name} cannot be stored: it is not a file, a folder or a link")
    return info, b""


def _target(folder: Path, path: Path, name: str) -> str:
    """The target of a link. Raises `ToolError` if it is outside the folder."""
    if _is_endless(path):
        raise ToolError(f"{name} cannot be stored: the link leads to itself")
    target = path.readlink()
    leads_to = Path(os.path.normpath(path.parent / target))  # lexically: other links may not exist yet
    inside = leads_to.is_relative_to(folder) and path.resolve().is_relative_to(folder.resolve())
    if target.is_absolute() or not inside:
        raise ToolError(f"{name} cannot be stored: the link leads out of the folder")
    return target.as_posix()


def _is_endless(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == ELOOP
    return False


def _allow_all(folder: Path) -> None:
    """Make all folders writable again: a tool may have made one read-only, and its files could not be deleted."""
    folder.chmod(0o700)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _allow_all(path)
