"""Text to disk: all files or none, and never half of one.

Every file is first written whole under a temporary name in its own folder; only then
are the targets replaced.  If one cannot be, those replaced before it get their old
content back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from normgen.errors import NormgenError, Problem


@dataclass(frozen=True)
class File:
    """One file to write; ``name`` is what messages call it."""

    path: Path
    name: str
    text: str


@dataclass(frozen=True)
class _Staged:
    file: File
    target: Path
    temporary: Path
    before: bytes | None
    mode: int | None


def read(path: Path, name: str) -> str | None:
    """The text of a file, or None where there is none.

    Bytes that are not UTF-8 come back as replacement characters: nothing that normgen
    wrote equals such a text.  Raises NormgenError where the path cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _fault(name, "cannot be read", error) from None


def exists(path: Path, name: str) -> bool:
    """Whether there is a file; raises NormgenError where that cannot be told."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise _fault(name, "cannot be read", error) from None


def write_all(files: Sequence[File]) -> None:
    """Write all files, or change nothing and raise NormgenError.

    Folders are made.  A symbolic link stays, and what it points to is written.  An
    existing file keeps its permissions.
    """
    targets = {file: _target(file) for file in files}
    if len(set(targets.values())) < len(files):
        names = ", ".join(sorted(file.name for file in files))
        raise NormgenError(Problem(names, "two modules would be written to one file"))
    made: list[Path] = []
    staged: list[_Staged] = []
    replaced: list[_Staged] = []
    try:
        for file, target in targets.items():
            with _named(file, "cannot be written"):
                _make_folder(target.parent, made)
                staged.append(_prepare(file, target))
                _fill(staged[-1].temporary, file.text.encode("utf-8"), staged[-1].mode)
        for item in staged:
            with _named(item.file, "cannot be replaced"):
                os.replace(item.temporary, item.target)
                replaced.append(item)
    except BaseException:
        _undo(staged, replaced, made)
        raise


def _target(file: File) -> Path:
    with _named(file, "cannot be written"):
        try:
            target = file.path.resolve()
        except RuntimeError:  # what Python before 3.13 says of a loop of links
            raise OSError("the symbolic link leads to itself") from None
        if target.is_dir():
            raise IsADirectoryError("it is a directory")
        if target.exists() and not target.is_file():
            raise OSError("it is not a regular file")
    return target


def _make_folder(folder: Path, made: list[Path]) -> None:
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    for path in reversed(missing):
        path.mkdir()
        made.append(path)


def _prepare(file: File, target: Path) -> _Staged:
    temporary = target.with_name(f".normgen-{secrets.token_hex(6)}.tmp")
    if not target.exists():
        return _Staged(file, target, temporary, before=None, mode=None)
    mode = stat.S_IMODE(target.stat().st_mode)
    return _Staged(file, target, temporary, target.read_bytes(), mode)


def _fill(path: Path, data: bytes, mode: int | None) -> None:
    with open(path, "xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    if mode is not None:
        path.chmod(mode)


def _undo(
    staged: Sequence[_Staged], replaced: Sequence[_Staged], made: Sequence[Path]
) -> None:
    """Put back what was there.  Temporary files go first: they may hold the last bytes
    that the disk has."""
    for item in staged:
        with contextlib.suppress(OSError):
            item.temporary.unlink(missing_ok=True)
    for item in replaced:
        with contextlib.suppress(OSError):
            if item.before is None:
                item.target.unlink()
            else:
                _fill(item.temporary, item.before, item.mode)
                os.replace(item.temporary, item.target)
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def _named(file: File, what: str) -> Iterator[None]:
    """Turn an operating system's error into one that names the file."""
    try:
        yield
    except OSError as error:
        raise _fault(file.name, what, error) from None


def _fault(name: str, what: str, error: OSError) -> NormgenError:
    return NormgenError(Problem(name, f"{what}: {error.strerror or error}"))
