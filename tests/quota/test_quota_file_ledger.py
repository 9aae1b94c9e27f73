"""Ledgers in files: shared by real processes, killed at any moment, damaged, deleted, and misused."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from quota_child import KEY, asked

from qreward.quota import file_ledger
from qreward.quota.file_ledger import SLOT, VARIABLE, FileLedger, Unsafe, directory
from qreward.quota.ledger import FRESH, LEASE, RenewReply

CHILD = Path(__file__).with_name("quota_child.py")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "of" / "nobody" / "shares"


@contextmanager
def process(place: Path, member: str) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, str(CHILD), str(place), member], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"joined\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def permits(share: RenewReply) -> float:
    assert share.permits is not None
    return share.permits.hold


def open_files(place: Path) -> int:
    """The files below a directory that this process has open; other threads may open others at any time."""
    found = 0
    for each in Path("/dev/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            found += str(each.readlink()).startswith(str(place))
    return found


def ledger_file(place: Path) -> Path:
    return place / f"{KEY}-{file_ledger.LAYOUT}"


def test_members_of_one_key_share_and_of_another_do_not(place: Path, clock: Clock) -> None:
    one, other = FileLedger(KEY, place, clock), FileLedger(KEY, place, clock)
    assert permits(one.renew("a", asked())) == 8
    assert permits(other.renew("b", asked())) == 0
    with closing(FileLedger("else", place, clock)) as separate:
        assert permits(separate.renew("b", asked())) == 8
    assert permits(one.renew("a", asked(hold=8))) == 4
    one.renew("a", asked(hold=4))
    assert permits(other.renew("b", asked())) == 4
    one.close(), other.close()


def test_a_member_that_leaves_leaves_nothing_behind_but_the_ledger(place: Path, clock: Clock) -> None:
    transport = FileLedger(KEY, place, clock)
    transport.renew("a", asked())
    assert open_files(place) == 2, "the ledger and the member's file"
    assert len(list(place.iterdir())) == 2
    transport.leave("a", asked())
    transport.close()
    assert open_files(place) == 0
    assert [path.name for path in place.iterdir()] == [f"{KEY}-{file_ledger.LAYOUT}"]
    assert place.stat().st_mode & 0o777 == 0o700
    assert permits(transport.renew("b", asked())) == 8
    del transport
    gc.collect()
    assert open_files(place) == 0, "a transport that is not used any more closes its files"


def test_two_closes_at_the_same_time_close_every_file_once(place: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, close = FileLedger(KEY, place, clock), os.close
    transport.renew("a", asked())
    transport.renew("b", asked())
    closed: list[int] = []

    def close_again(file: int) -> None:
        closed.append(file)
        if len(closed) == 1:
            transport.close()  # the exit of the interpreter may close the files while the renewal thread closes them
        close(file)

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_again)
        transport.close()
    assert len(closed) == len(set(closed)) == 3, "the ledger and the members' files"


def test_a_member_that_leaves_takes_its_own_file_away_even_if_the_ledger_cannot_be_written(
    place: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = FileLedger(KEY, place, clock)
    transport.renew("a", asked())
    monkeypatch.setattr(file_ledger, "SLOT", 20)
    with pytest.raises(OSError, match="too many members"):
        transport.leave("a", asked())
    transport.close()
    assert [path.name for path in place.iterdir()] == [ledger_file(place).name]


def test_a_ledger_that_does_not_fit_into_its_file_is_refused_and_any_other_can_be_read(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    for size in range(32, 256):
        monkeypatch.setattr(file_ledger, "SLOT", size)
        one, other = FileLedger(KEY, tmp_path / str(size), clock), FileLedger(KEY, tmp_path / str(size), clock)
        try:
            one.renew("a", asked())
        except OSError:
            refused.append(size)
        else:
            assert permits(other.renew("a", asked())) == 8, size
        one.close(), other.close()
    assert refused == list(range(32, refused[-1] + 1))


def test_a_member_whose_file_is_missing_keeps_its_share_until_its_lease_runs_out(place: Path, clock: Clock) -> None:
    one, other = FileLedger(KEY, place, clock), FileLedger(KEY, place, clock)
    one.renew("a", asked())
    (place / f"{ledger_file(place).name}.a").unlink()
    shares = {}
    for pause in (FRESH + 0.1, LEASE + 0.1):
        clock.now = Clock.now + pause
        shares[pause] = permits(other.renew("b", asked()))
    assert list(shares.values()) == [0, 8]
    one.close(), other.close()


def test_a_killed_process_is_noticed_long_before_its_lease_runs_out(place: Path) -> None:
    transport = FileLedger(KEY, place)
    with process(place, "a") as child:
        assert permits(transport.renew("b", asked())) == 0
        child.kill()
        child.wait()
    transport._clock = lambda: time.monotonic() + FRESH + 0.01
    transport._clock = transport._clock
    share = transport.renew("b", asked())
    assert (share.members, permits(share)) == (1, 8)
    assert not list(place.glob("*.a"))
    transport.close()


def test_a_process_that_lives_and_is_silent_keeps_its_share_until_its_lease_runs_out(place: Path) -> None:
    transport = FileLedger(KEY, place)
    with process(place, "a") as child:
        child.send_signal(signal.SIGSTOP)
        for _ in range(20):  # it may have been stopped while it held the lock
            try:
                transport.renew("b", asked())
                break
            except TimeoutError:
                child.send_signal(signal.SIGCONT)
                time.sleep(0.01)
                child.send_signal(signal.SIGSTOP)
        now = time.monotonic()
        transport._clock = lambda: now + FRESH + 0.1
        assert permits(transport.renew("b", asked())) == 0
        transport._clock = lambda: now + LEASE + 0.1
        assert permits(transport.renew("b", asked())) == 8
    transport.close()


def test_processes_killed_in_the_middle_of_writing_never_spoil_the_ledger(place: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    rng, transport = random.Random(seed), FileLedger(KEY, place)
    hold = permits(transport.renew("steady", asked()))
    for number in range(3):
        with process(place, f"a{number}") as first, process(place, f"b{number}") as second:
            for child in (first, second):
                time.sleep(rng.uniform(0.0, 0.01))
                child.kill()
                child.wait()
        share = transport.renew("steady", asked(hold=hold))
        hold = permits(share)
        assert transport._serial > 1, "the ledger before the last is still there"
        assert share.members >= 1
    transport._clock = lambda: time.monotonic() + FRESH + 0.01
    transport.renew("steady", asked(hold=hold))
    assert permits(transport.renew("steady", asked(hold=hold))) == 8
    transport.close()


def test_what_was_half_written_is_as_if_it_had_not_been_begun(place: Path, clock: Clock) -> None:
    transport = FileLedger(KEY, place, clock)
    for hold in (0, 8, 8):
        transport.renew("a", asked(hold=hold))
    for torn in (0, 1, 10, 30, 200):
        serial = transport._serial
        with ledger_file(place).open("r+b") as file:
            file.seek((serial + 1) % 2 * SLOT)
            file.write(b"\xff" * torn)  # a process began to write the next one, and died
        share = transport.renew("a", asked(hold=8))
        assert (permits(share), transport._serial) == (8, serial + 1), torn
    transport.close()


def test_a_write_that_a_full_disk_cut_short_fails_the_renewal_and_leaves_the_state_before(
    place: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, other = FileLedger(KEY, place, clock), FileLedger(KEY, place, clock)
    transport.renew("a", asked())
    write = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, content, at: write(file, content[:-20], at))
        with pytest.raises(OSError, match="disk full"):
            transport.renew("b", asked())
    assert other.renew("a", asked()).members == 1, "it can be locked by others"
    assert transport.renew("c", asked()).members == 2
    transport.close(), other.close()


def test_a_damaged_ledger_begins_anew_and_waits_for_those_who_may_hold_something(tmp_path: Path, clock: Clock) -> None:
    for number, content in enumerate((b"", b"nonsense" * 100, b"\0" * 5000)):
        clock.now, place = Clock.now, tmp_path / str(number)
        old, new = FileLedger(KEY, place, clock), FileLedger(KEY, place, clock)
        old.renew("a", asked())
        ledger_file(place).write_bytes(content)
        assert permits(new.renew("b", asked())) == 0, content
        assert permits(old.renew("a", asked(hold=8))) == 8, content
        clock.now += LEASE
        assert permits(old.renew("a", asked(hold=8))) == 4, content
        old.close(), new.close()


def test_a_damaged_ledger_without_a_living_member_is_no_reason_to_wait(place: Path, clock: Clock) -> None:
    gone = FileLedger(KEY, place, clock)
    gone.renew("a", asked())
    gone.close()
    ledger_file(place).write_bytes(b"nonsense")
    transport = FileLedger(KEY, place, clock)
    assert permits(transport.renew("b", asked())) == 8
    transport.close()


def test_a_deleted_ledger_or_directory_is_made_again_and_all_meet_there(place: Path, clock: Clock) -> None:
    one, other = FileLedger(KEY, place, clock), FileLedger(KEY, place, clock)
    one.renew("a", asked())
    for path in place.iterdir():
        path.unlink()
    place.rmdir()
    one.renew("a", asked(hold=8))
    assert other.renew("b", asked()).members == 2
    assert one.renew("a", asked(hold=8)).members == 2
    one.close(), other.close()


def test_a_ledger_of_a_time_before_the_machine_started_again_does_not_count(place: Path, clock: Clock) -> None:
    before = FileLedger(KEY, place, clock)
    before.renew("a", asked())
    before.close()
    clock.now = 5.0
    transport = FileLedger(KEY, place, clock)
    assert permits(transport.renew("b", asked())) == 8
    transport.close()


def test_a_directory_that_is_a_link_or_open_to_others_or_of_another_user_is_refused(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, link = tmp_path / "private", tmp_path / "link"
    private.mkdir(mode=0o700)
    link.symlink_to(private)
    with pytest.raises(OSError, match="link"):
        FileLedger(KEY, link, clock).renew("a", asked())
    for mode in (0o777, 0o720, 0o701):
        public = tmp_path / f"{mode:o}"
        public.mkdir()
        public.chmod(mode)
        with pytest.raises(Unsafe, match=f"mode {mode:o}"):
            FileLedger(KEY, public, clock).renew("a", asked())
    monkeypatch.setattr(os, "geteuid", lambda: private.stat().st_uid + 1)
    with pytest.raises(Unsafe, match="must belong to this user alone"):
        FileLedger(KEY, private, clock).renew("a", asked())
    assert open_files(tmp_path) == 0
    assert list(private.iterdir()) == []


def test_a_link_or_a_pipe_in_the_place_of_a_ledger_is_not_used(place: Path, tmp_path: Path, clock: Clock) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place.mkdir(mode=0o700, parents=True)
    ledger_file(place).symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        FileLedger(KEY, place, clock).renew("a", asked())
    assert victim.read_text() == "precious"
    ledger_file(place).unlink()
    os.mkfifo(ledger_file(place), 0o600)
    with pytest.raises(OSError, match="seek"):
        FileLedger(KEY, place, clock).renew("a", asked())


def test_a_directory_that_cannot_be_made_is_an_error_of_the_renewal(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "file"
    file.touch()
    transport = FileLedger(KEY, file / "shares", clock)
    with pytest.raises(OSError, match="file"):
        transport.renew("a", asked())
    with pytest.raises(OSError, match="file"):
        transport.leave("a", asked())
    file.unlink()
    assert permits(transport.renew("a", asked())) == 8
    transport.close()


def test_a_process_that_keeps_the_lock_is_waited_for_a_moment_only(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_ledger, "PATIENCE", 0.02)
    one, other = FileLedger(KEY, place), FileLedger(KEY, place)
    one.renew("a", asked())
    with one.locked("a"), pytest.raises(TimeoutError, match="another process holds the lock of the ledger"):
        other.renew("b", asked())
    assert other.renew("b", asked()).members == 2
    one.close(), other.close()


def test_a_lock_that_is_released_within_a_moment_is_waited_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = FileLedger(KEY, place), FileLedger(KEY, place)
    one.renew("a", asked())
    held = ExitStack()
    held.enter_context(one.locked("a"))
    monkeypatch.setattr(time, "sleep", lambda _: held.close())
    assert other.renew("b", asked()).members == 2
    one.close(), other.close()


def test_a_forked_child_that_closes_its_copies_does_not_keep_its_parent_alive(place: Path) -> None:
    """As a client's child does. The parent dies; its lock dies with it, though the child lives."""
    ready, done = os.pipe(), os.pipe()
    if (parent := os.fork()) == 0:
        transport = FileLedger(KEY, place)
        transport.renew("a", asked())
        if os.fork() == 0:
            transport.close()
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        os._exit(0)
    os.waitpid(parent, 0)
    try:
        transport = FileLedger(KEY, place, lambda: time.monotonic() + FRESH + 0.1)
        assert transport.renew("b", asked()).members == 1
        transport.close()
    finally:
        os.write(done[1], b"x")
        for end in (*ready, *done):
            os.close(end)


def test_ledgers_are_kept_where_only_this_user_comes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert directory() == Path("/run/user/7/qreward")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert directory() == tmp_path
    monkeypatch.delenv(VARIABLE)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert directory().name == f"qreward-{os.geteuid()}"
