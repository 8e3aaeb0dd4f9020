"""`TempFolder`: a folder of files that belongs to a session, and is forked, rewound and moved with it."""

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
from stateroom.session.parameters import SessionInfo
from stateroom.session.resource import Resource

BLOCK = tarfile.BLOCKSIZE

SINCE = 315_532_800
"""The time that all files of an archive have: 1980, before which some formats know none."""


class TempFolder(Resource[Path]):
    """A private folder, which a tool is given as a `Path`: `resources = {"folder": TempFolder()}`.

    Kept are its files, its folders, links within it, and which files can be executed: all of it, each time that a call
    has changed something. Times, owners and other permissions are not. A call fails if it leaves more than `max_bytes`
    there, a link that leads out of the folder, or what is neither a file nor a folder.
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
        except FileNotFoundError:  # a tool has removed it
            return
        except PermissionError:
            _allow_all(handle)
            shutil.rmtree(handle)

    def save(self, handle: Path, /) -> bytes:
        """An archive that depends on nothing but what is in the folder."""
        archive = BytesIO()
        left = self.max_bytes
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in _within(handle):
                info, content = _member(handle, path, left)
                left -= BLOCK + len(content)
                if left < 0:
                    raise TooLarge(f"the folder holds more than the {self.max_bytes:,} bytes that it may")
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
    """All that is in a folder, in an order that depends on the names only; what links lead to is not."""
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _within(path)


def _member(folder: Path, path: Path, most: int) -> tuple[tarfile.TarInfo, bytes]:
    """What an archive says of a file, and its content; of that, a byte more than `most` are enough."""
    name = path.relative_to(folder).as_posix()
    info = tarfile.TarInfo(name)
    info.mtime, info.mode = SINCE, 0o755
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
        raise ToolError(f"{name} is neither a file nor a folder: it cannot be kept")
    return info, b""


def _target(folder: Path, path: Path, name: str) -> str:
    """Where a link leads to, if that is within the folder."""
    if _is_endless(path):
        raise ToolError(f"{name} is a link that leads in a circle: it cannot be kept")
    target = path.readlink()
    leads_to = Path(os.path.normpath(path.parent / target))  # as it looks while other links may not be there yet
    inside = leads_to.is_relative_to(folder) and path.resolve().is_relative_to(folder.resolve())
    if target.is_absolute() or not inside:
        raise ToolError(f"{name} is a link that leads out of the folder: it cannot be kept")
    return target.as_posix()


def _is_endless(link: Path) -> bool:
    try:
        link.stat()
    except OSError as error:
        return error.errno == ELOOP
    return False


def _allow_all(folder: Path) -> None:
    """Let the owner do what a tool may have forbidden: a file cannot be removed from a folder that is read-only."""
    folder.chmod(0o700)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            _allow_all(path)
