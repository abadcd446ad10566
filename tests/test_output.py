"""All files or none, never half of one, and no litter."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from normgen import output
from normgen.errors import NormgenError
from normgen.output import File, exists, read, write_all

needs_links = pytest.mark.skipif(os.name == "nt", reason="needs POSIX files")


def file(path: Path, text: str = "new\n") -> File:
    return File(path, path.name, text)


def everything(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


def fail_at(monkeypatch: pytest.MonkeyPatch, name: str, call: int, code: int) -> None:
    """Let the ``call``-th call of ``os.<name>`` fail, and none after it."""
    real, calls = getattr(os, name), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == call:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(output.os, name, failing)


def test_files_are_written_with_their_folders(tmp_path: Path) -> None:
    write_all([file(tmp_path / "a" / "b" / "c.py"), file(tmp_path / "d.py", "é\n")])
    assert everything(tmp_path) == {
        "a": None,
        "a/b": None,
        "a/b/c.py": b"new\n",
        "d.py": "é\n".encode(),
    }


def test_writing_nothing_is_fine() -> None:
    write_all([])


def test_a_full_disk_while_writing_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text("old\n")
    before = everything(tmp_path)
    fail_at(monkeypatch, "fsync", 2, errno.ENOSPC)
    with pytest.raises(
        NormgenError, match=r"^two\.py: cannot be written: No space left"
    ):
        write_all([file(tmp_path / "one.py"), file(tmp_path / "new" / "two.py")])
    assert everything(tmp_path) == before


def test_a_failure_halfway_brings_back_what_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.py").write_text("old\n")
    (tmp_path / "one.py").chmod(0o640)
    (tmp_path / "three.py").write_text("old too\n")
    before = everything(tmp_path)
    fail_at(monkeypatch, "replace", 3, errno.EIO)
    with pytest.raises(NormgenError, match=r"^three\.py: cannot be replaced: "):
        write_all([file(tmp_path / f"{name}.py") for name in ("one", "two", "three")])
    assert everything(tmp_path) == before
    assert stat.S_IMODE((tmp_path / "one.py").stat().st_mode) == 0o640


def test_an_interruption_is_cleaned_up_and_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_all([file(tmp_path / "one.py")])
    assert everything(tmp_path) == {}


@needs_links
def test_a_killed_process_never_leaves_half_a_file(tmp_path: Path) -> None:
    target = tmp_path / "big.py"
    script = (
        "import sys; from pathlib import Path; from normgen.output import *\n"
        "p = Path(sys.argv[1]); print('go', flush=True)\n"
        "while True:\n"
        "    for c in 'ab': write_all([File(p, 'big.py', c * 3_000_000)])\n"
    )
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(target)],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)
        process.kill()
        process.wait()
        process.stdout.close()
        if target.exists():
            assert len(target.read_text()) == 3_000_000
            assert len(set(target.read_text())) == 1


@needs_links
def test_permissions_stay_and_a_new_file_has_the_usual_ones(tmp_path: Path) -> None:
    old, new, usual = (tmp_path / name for name in ("old.py", "new.py", "usual.py"))
    old.write_text("old\n")
    old.chmod(0o754)
    usual.write_text("")
    write_all([file(old), file(new)])
    assert stat.S_IMODE(old.stat().st_mode) == 0o754
    assert stat.S_IMODE(new.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


@needs_links
def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "target.py", tmp_path / "link.py"
    target.write_text("old\n")
    link.symlink_to(target)
    write_all([file(link)])
    assert link.is_symlink()
    assert target.read_text() == "new\n"
    assert sorted(everything(tmp_path)) == ["link.py", "real", "real/target.py"]


@needs_links
def test_a_link_that_leads_to_itself_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    with pytest.raises(
        NormgenError, match=r"^loop\.py: cannot be (written|replaced): "
    ):
        write_all([file(tmp_path / "loop.py")])


@needs_links
def test_two_names_of_one_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("old\n")
    (tmp_path / "b.py").symlink_to(tmp_path / "a.py")
    with pytest.raises(NormgenError, match="two modules would be written to one file"):
        write_all([file(tmp_path / "a.py"), file(tmp_path / "b.py")])
    assert (tmp_path / "a.py").read_text() == "old\n"


def test_a_folder_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.py").mkdir()
    with pytest.raises(
        NormgenError, match=r"^a\.py: cannot be written: it is a directory"
    ):
        write_all([file(tmp_path / "a.py")])


def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "generated").write_text("")
    with pytest.raises(NormgenError, match=r"^a\.py: cannot be written: "):
        write_all([file(tmp_path / "b.py"), file(tmp_path / "generated" / "a.py")])
    assert everything(tmp_path) == {"generated": b""}


def test_line_ends_are_written_as_given(tmp_path: Path) -> None:
    write_all([file(tmp_path / "a.py", "x\ny\n")])
    assert (tmp_path / "a.py").read_bytes() == b"x\ny\n"


def test_reading_tells_missing_from_unreadable(tmp_path: Path) -> None:
    assert read(tmp_path / "gone.py", "gone.py") is None
    with pytest.raises(NormgenError, match=r"^d: cannot be read: Is a directory$"):
        read(tmp_path, "d")


def test_bytes_that_are_no_text_read_as_something_normgen_never_wrote(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff\x00")
    assert read(tmp_path / "a.py", "a.py") == "\ufffd\0"


def test_a_file_is_told_from_a_folder_and_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    assert exists(tmp_path / "a.py", "a.py")
    for path in (tmp_path, tmp_path / "b.py", tmp_path / "a.py" / "c", Path("\0")):
        assert not exists(path, "it")


def test_what_cannot_be_looked_at_is_not_taken_for_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, "stat", 1, errno.EACCES)
    with pytest.raises(NormgenError, match=r"^a: cannot be read: Permission denied$"):
        exists(tmp_path / "a", "a")
