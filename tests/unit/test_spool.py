"""Spool files of undelivered requests: no request is lost, and no foreign file is read."""

import contextlib
import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devtools.waiting import LIMIT
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.spool import directory as module
from scrapy_bloom.spool.directory import SpoolDirectory
from scrapy_bloom.spool.file import SpoolFile

KEY = "shop:requests"
ANOTHER_USER = 12_345


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, of this test's own."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a job."""
    path = tmp_path / "job [1]"
    path.mkdir()
    return path


@pytest.fixture
def spool(directory: Path) -> SpoolDirectory:
    """The spool of a worker in it."""
    return SpoolDirectory(KEY, directory)


def entries(*members: bytes) -> list[OutboxEntry]:
    """Different entries."""
    return [OutboxEntry(member, number, member + b"\xe4") for number, member in enumerate(members)]


def members(found: Iterable[tuple[Path, list[OutboxEntry]]]) -> list[bytes | str]:
    """All loaded members, in their order."""
    return [entry.member for _, portion in found for entry in portion]


def files(directory: Path) -> list[str]:
    """The suffixes of the files in a directory."""
    return sorted(path.suffix for path in directory.iterdir())


def mend(path: Path, old: bytes, new: bytes) -> None:
    """Change some bytes of a file in place."""
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


# Writing and reading.


def test_what_was_written_is_read(spool: SpoolDirectory, directory: Path) -> None:
    """Requests come back unchanged, text as bytes, and the file is deleted when all are delivered."""
    path = spool.save([OutboxEntry(b"\xff\x00", -3, b"\xe4f"), OutboxEntry("täxt".encode(), 0.5, None)])
    assert path.parent == directory
    ((found, portion),) = spool.load()
    assert found == path
    assert [(entry.member, entry.score, entry.fingerprint) for entry in portion] == [
        (b"\xff\x00", -3, b"\xe4f"),
        ("täxt".encode(), 0.5, None),
    ]
    assert files(directory) == []


def test_saved_is_on_the_disk(spool: SpoolDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole file is synced when its path is returned."""
    sizes: list[int] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    path = spool.save(entries(b"a", b"b"))
    assert sizes == [path.stat().st_size]


def test_portions(spool: SpoolDirectory) -> None:
    """A file is read some entries at a time, all of them, in their order."""
    spool.save(entries(*(b"%d" % number for number in range(10))))
    sizes, found = [], []
    for _, portion in spool.load(4):
        sizes.append(len(portion))
        found += [entry.member for entry in portion]
    assert sizes == [4, 4, 2]
    assert found == [b"%d" % number for number in range(10)]


def test_the_current_directory_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crawl without a job has its files where it was started, even if it changes its directory."""
    monkeypatch.chdir(tmp_path)
    spool = SpoolDirectory(KEY)
    monkeypatch.chdir("/")
    assert spool.save(entries(b"a")).parent == tmp_path
    assert members(spool.load()) == [b"a"]


@pytest.mark.parametrize("other", ["shop:requests-2", "shop_requests", "shop", "shop:request", "*"])
def test_another_queue_of_a_similar_name(
    spool: SpoolDirectory, directory: Path, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A file belongs to the queue with its full name; other files are left."""
    SpoolDirectory(other, directory).save(entries(b"other"))
    spool.save(entries(b"own"))
    assert members(spool.load()) == [b"own"]
    assert members(SpoolDirectory(other, directory).load()) == [b"other"]
    assert caplog.records == []


def test_long_names(directory: Path) -> None:
    """A queue's name may be too long for a file."""
    long = "ü" * 5000
    SpoolDirectory(long, directory).save(entries(b"a"))
    assert members(SpoolDirectory(long, directory).load()) == [b"a"]


# In doubt: the filter may know a request only from a check whose reply was lost.


def unsure(*members: bytes) -> list[OutboxEntry]:
    """Entries that the filter may know from the worker that wrote them."""
    return [replace(entry, is_unsure=True) for entry in entries(*members)]


def doubts(found: Iterable[tuple[Path, list[OutboxEntry]]]) -> list[tuple[bytes, bool]]:
    """Return all loaded members, and whether each is in doubt."""
    return [(entry.member, entry.is_unsure) for _, portion in found for entry in portion]


def test_doubt_is_kept_by_line(spool: SpoolDirectory) -> None:
    """A line is in doubt if its entry was."""
    spool.save([*entries(b"a"), *unsure(b"b"), *entries(b"c")])
    assert doubts(spool.load()) == [(b"a", False), (b"b", True), (b"c", False)]


@pytest.mark.parametrize("said", ["", ', "unsure": true', ', "unsure": null', ', "unsure": 0', ', "unsure": "no"'])
def test_line_that_does_not_say(spool: SpoolDirectory, directory: Path, said: str) -> None:
    """A line of an earlier version, or a damaged one, is in doubt: its request may be fetched twice."""
    spool.save(entries(b"a"))
    (path,) = directory.iterdir()
    mend(path, b', "unsure": false', said.encode())
    assert doubts(spool.load()) == [(b"a", True)]


@pytest.mark.parametrize("portion", [1, 2, 100])
def test_fingerprint_in_doubt_is_loaded_once(spool: SpoolDirectory, portion: int) -> None:
    """Of several entries in doubt with the same fingerprint only the first is loaded."""
    spool.save([*unsure(b"a"), *entries(b"b"), *unsure(b"a", b"c"), *entries(b"a", b"c"), *unsure(b"c")])
    assert doubts(spool.load(portion)) == [(b"a", True), (b"b", False), (b"c", True)]


def test_doubt_behind_a_sure_line(spool: SpoolDirectory) -> None:
    """An unsure line counts even after a sure line of its fingerprint."""
    spool.save([*entries(b"a"), *unsure(b"a")])
    assert doubts(spool.load()) == [(b"a", False), (b"a", True)]


def test_what_the_filter_is_not_asked_for(spool: SpoolDirectory) -> None:
    """Requests without a fingerprint are no repeats of each other."""
    spool.save([OutboxEntry(member, 0, None, is_unsure=True) for member in (b"a", b"a", b"b")])
    assert [member for member, _ in doubts(spool.load())] == [b"a", b"a", b"b"]


# Delivered once, and lost never.


def test_an_interrupted_start_leaves_the_rest(spool: SpoolDirectory) -> None:
    """A failed start leaves exactly its undelivered requests to the next one."""
    spool.save(entries(b"a", b"b", b"c"))
    with contextlib.closing(spool.load(1)) as loading:
        assert members([next(loading), next(loading)]) == [b"a", b"b"]
    assert members(spool.load()) == [b"b", b"c"]
    assert members(spool.load()) == []


def test_two_starts_at_once(spool: SpoolDirectory, directory: Path) -> None:
    """A file that one worker is delivering is skipped by the others, and delivered once."""
    spool.save(entries(b"a", b"b"))
    both, other = spool.load(1), SpoolDirectory(KEY, directory)
    first = [next(both)]
    assert members(other.load()) == []
    assert members([*first, *both]) == [b"a", b"b"]
    assert members(other.load()) == []


def test_a_file_that_vanishes(
    spool: SpoolDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that another worker deletes while this one opens it is no error, at any moment."""
    before, after = spool.save(entries(b"a")), spool.save(entries(b"b"))
    lock = module._lock

    def vanish(descriptor: int) -> None:
        lock(descriptor)
        before.unlink(missing_ok=True)
        after.unlink(missing_ok=True)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_lock", vanish)
        assert members(spool.load()) == []
    spool.save(entries(b"c"))
    spool.save(entries(b"c"))
    loading = spool.load()
    found, _ = next(loading)
    for path in found.parent.glob("*.jsonl"):
        path.unlink()
    assert members(loading) == []
    assert caplog.records == []


KILLED = """
import os, signal, sys
from scrapy_bloom.queue.entries import OutboxEntry
from scrapy_bloom.spool.directory import SpoolDirectory

file = SpoolDirectory(sys.argv[1], sys.argv[2]).create()
file.append([OutboxEntry(b"%d" % number, number, None) for number in range(10)])
file.read(3)
file.mark_delivered()
file.read(3)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left(spool: SpoolDirectory, directory: Path) -> None:
    """The next start reads the undelivered rest of a killed worker's file."""
    subprocess.run([sys.executable, "-c", KILLED, KEY, str(directory)], check=False, timeout=LIMIT)
    (path,) = directory.glob("undelivered-*.jsonl")
    with path.open("ab") as file:
        file.write(b'{"request": "eA')
    assert members(spool.load()) == [b"%d" % number for number in range(3, 10)]
    assert files(directory) == [".unreadable"]


# Spilled and read back.


@pytest.fixture
def spill(spool: SpoolDirectory) -> Iterator[SpoolFile]:
    """A file of a running worker."""
    with contextlib.closing(spool.create()) as file:
        yield file


def test_spilling(spill: SpoolFile, directory: Path) -> None:
    """Entries come back in order during appends; the file is deleted at the end."""
    taken: list[bytes | str] = []
    for number in range(20):
        spill.append(entries(b"%d" % number, b"%d again" % number))
        taken += [entry.member for entry in spill.read(1)]
        spill.mark_delivered()
        assert len(spill) == number + 1
    while portion := spill.read(7):
        taken += [entry.member for entry in portion]
    spill.mark_delivered()
    assert len(spill) == 0
    assert taken == [part for number in range(20) for part in (b"%d" % number, b"%d again" % number)]
    spill.close()
    assert files(directory) == []


def test_what_was_not_delivered_stays(spool: SpoolDirectory, spill: SpoolFile) -> None:
    """At its end a worker leaves the entries not delivered, even if they were read."""
    spill.append(entries(b"a", b"b", b"c"))
    spill.read(1)
    spill.mark_delivered()
    spill.read(1)
    spill.close()
    spill.close()
    assert members(spool.load()) == [b"b", b"c"]


def test_a_file_in_use_is_not_loaded(spool: SpoolDirectory, spill: SpoolFile) -> None:
    """A worker that starts beside another one does not take its spilled requests."""
    spill.append(entries(b"a"))
    assert members(spool.load()) == []
    spill.close()
    assert members(spool.load()) == [b"a"]


def test_appended_is_handed_to_the_system(spill: SpoolFile) -> None:
    """Every appended entry has been written to the file."""
    spill.append(entries(b"a", b"b"))
    assert len(spill.path.read_bytes().splitlines()) == 3


def test_a_full_disk_leaves_no_part(
    spool: SpoolDirectory, directory: Path, spill: SpoolFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append that fails half-way appends nothing; earlier and later entries are read."""
    write, calls = os.pwrite, []

    def fill_up(descriptor: int, data: bytes, place: int) -> int:
        calls.append(place)
        if len(calls) % 2 == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:10], place)

    for member in (b"a", b"b"):
        spill.append(entries(member))
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fill_up)
            with pytest.raises(OSError, match="No space"):
                spill.append(entries(b"lost"))
    assert len(calls) == 4
    assert len(spill) == 2
    spill.close()
    assert members(spool.load()) == [b"a", b"b"]
    assert files(directory) == []


def test_nothing_to_mark(spool: SpoolDirectory, spill: SpoolFile) -> None:
    """Marking before any read changes nothing."""
    spill.append(entries(b"a"))
    spill.mark_delivered()
    spill.close()
    assert members(spool.load()) == [b"a"]


# Unreadable lines.

UNREADABLE = [
    b"\n",
    b"{\n",
    b"\xff\n",
    b"[]\n",
    b"null\n",
    b"[" * 100_000 + b"\n",
    b'{"request": "YQ==", "score": 1}\n',
    b'{"request": "YQ", "score": 1, "fingerprint": null}\n',
    b'{"request": "Y*Q==", "score": 1, "fingerprint": null}\n',
    b'{"request": 7, "score": 1, "fingerprint": null}\n',
    b'{"request": "YQ==", "score": "1", "fingerprint": null}\n',
    b'{"request": "YQ==", "score": NaN, "fingerprint": null}\n',
    b'{"request": "YQ==", "score": 1' + b"0" * 400 + b', "fingerprint": null}\n',
    b'{"request": "YQ==", "score": 1, "fingerprint": "\\u20ac"}\n',
    b'{"request": "YQ==", "score": 1, "fingerprint": 5}\n',
]


@pytest.mark.parametrize("line", UNREADABLE, ids=range(len(UNREADABLE)))
def test_a_bad_line_costs_itself(
    spool: SpoolDirectory, directory: Path, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines around it are read; the bad line is kept separately, and the log counts them once."""
    path = spool.save(entries(b"a", b"b", b"c"))
    first, a, b, c = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + a + b + line + line + c)
    assert members(spool.load(1)) == [b"a", b"b", b"c"]
    (aside,) = directory.iterdir()
    assert [record.getMessage() for record in caplog.records] == [f"{path}: 3 lines cannot be read; kept in {aside}"]
    assert aside.read_bytes().splitlines(keepends=True)[1:] == [line] * 3
    assert aside.stat().st_mode & 0o777 == 0o600


def test_a_file_of_bad_lines_alone(spool: SpoolDirectory, directory: Path) -> None:
    """Bad lines are loaded once they are mended and the file has its old suffix again."""
    path = spool.save(entries(b"a"))
    mend(path, b'"request"', b'"reques-"')
    assert members(spool.load()) == []
    (aside,) = directory.iterdir()
    mend(aside, b'"reques-"', b'"request"')
    aside.rename(path)
    assert members(spool.load()) == [b"a"]
    assert files(directory) == []


def test_bad_lines_stay_where_nothing_can_be_made(
    spool: SpoolDirectory, directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A file whose bad lines cannot be saved separately is kept itself."""
    path = spool.save(entries(b"a", b"b"))
    mend(path, b'"score": 0', b'"score": -')
    opened = os.open

    def refuse(name: Path, flags: int, mode: int = 0o777) -> int:
        if name.suffix == ".unreadable":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(name, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    assert members(spool.load()) == [b"b"]
    assert [each.name for each in directory.iterdir()] == [path.name]
    assert ": 1 line cannot be read" in caplog.text


# Ownership of the files.


def test_private_from_the_beginning(spool: SpoolDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other user may read or write a file at any moment, with any umask."""
    modes = []
    rename = Path.rename

    def look(self: Path, target: Path) -> Path:
        modes.append(self.stat().st_mode & 0o777)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", look)
    before = os.umask(0)
    try:
        path = spool.save(entries(b"a"))
    finally:
        os.umask(before)
    assert modes == [path.stat().st_mode & 0o777] == [0o600]


def untrusted(path: Path, how: str) -> None:
    """Make a file look as if another user could have written it."""
    if how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can change the owner of a file")
        os.chown(path, ANOTHER_USER, -1)
    elif how == "of a link":
        path.rename(path.with_suffix(".target"))
        path.symlink_to(path.with_suffix(".target"))
    elif how == "a pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    else:
        path.chmod({"of a group": 0o660, "of everybody": 0o602}[how])


@pytest.mark.parametrize("how", ["of a group", "of everybody", "another user's", "of a link", "a pipe"])
def test_not_trusted(spool: SpoolDirectory, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """A file that another user could have written is left, with one warning that gives the remedy."""
    path, _ = spool.save(entries(b"theirs")), spool.save(entries(b"ours"))
    untrusted(path, how)
    assert members(spool.load()) == [b"ours"]
    (record,) = caplog.records
    assert [part for part in (str(path), "chmod 600", "delete it") if part not in record.getMessage()] == []
    assert os.path.lexists(path)


HEADERS = [
    b"",
    b"\n",
    b"{}\n",
    b"[5]\n",
    b"5\n",
    b"\xff\n",
    b'{"format": 2, "queue": "shop:requests"}\n',
    b"[" * 50_000,
]


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_not_of_this_version(spool: SpoolDirectory, header: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A file with another header is left, with one warning; the crawl starts."""
    path = spool.save(entries(b"a"))
    path.write_bytes(header)
    assert members(spool.load()) == []
    assert path.read_bytes() == header
    (record,) = caplog.records
    assert f"{path} has no header of format 1: its requests are not queued; if a newer" in record.getMessage()
    assert "upgrade here" in record.getMessage()


def test_another_version_of_another_queue(spool: SpoolDirectory, caplog: pytest.LogCaptureFixture) -> None:
    """Such a file of another queue causes no message."""
    path = spool.save(entries(b"a"))
    path.write_text(json.dumps({"format": 2, "queue": "another"}) + "\n")
    assert members(spool.load()) == []
    assert caplog.records == []


# Location of the files.


def refuse_in(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Make a directory take no new files; a mode does not stop root."""
    opened = os.open

    def refuse(name: Path, flags: int, mode: int = 0o777) -> int:
        if Path(name).parent == directory and flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(name, flags, mode)

    patch.setattr(os, "open", refuse)


def test_a_directory_that_cannot_be_written(
    spool: SpoolDirectory, directory: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory for temporary files is used instead, and read by the next start."""
    refuse_in(directory, monkeypatch)
    path = spool.save(entries(b"a"))
    with contextlib.closing(spool.create()) as file:
        assert file.path.parent == path.parent == temporary
    assert members(spool.load()) == [b"a"]


def test_a_directory_that_fills_up(
    spool: SpoolDirectory, directory: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No partial file is left on a full disk."""

    def fill_up(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(directory):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fill_up)
    assert spool.save(entries(b"a")).parent == temporary
    assert files(directory) == []


def test_no_directory_at_all(
    spool: SpoolDirectory, directory: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error gives the number of lost requests, and where to make room."""
    refuse_in(directory, monkeypatch)
    refuse_in(temporary, monkeypatch)
    with pytest.raises(OSError, match="2 requests lost") as caught:
        spool.save(entries(b"a", b"b"))
    assert [part for part in (str(directory), str(temporary), "Read-only") if part not in str(caught.value)] == []
    with pytest.raises(OSError, match="requests cannot be buffered on disk"):
        spool.create()


def test_a_machine_without_temporary_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no problem as long as the directory of the job can be written."""

    def none() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(tempfile, "gettempdir", none)
    spool = SpoolDirectory(KEY, directory)
    spool.save(entries(b"a"))
    assert members(spool.load()) == [b"a"]


def test_one_place_for_both(temporary: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crawl started in the directory for temporary files reads it once."""
    spool = SpoolDirectory(KEY, temporary)
    spool.save(entries(b"a")).chmod(0o666)
    assert members(spool.load()) == []
    assert len(caplog.records) == 1


def test_a_file_that_cannot_be_deleted(
    spool: SpoolDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, the start continues, and no request of the file is delivered again."""
    spool.save(entries(b"a"))

    def refuse(_: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    assert members(spool.load()) == [b"a"]
    assert "cannot be deleted: Read-only" in caplog.text
    assert members(spool.load()) == []
