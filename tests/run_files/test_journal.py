import pytest

from lightning_perf.run_files import journal
from lightning_perf.run_files.journal import Again, BlockOver, Lost, RunBegan, RunOver, read_block

ENTRIES = (
    RunBegan("a", 0, "runs/1", "host-cpu"),
    RunOver("a", 0, 1.5, revision="c1"),
    RunBegan("b", 0, "runs/2", "host-cpu"),
    RunOver("b", 0, 0.5, problem="exit code 1"),
    RunBegan("b", 1, "runs/3", "host-cpu"),
    RunOver("b", 1, 2.0),
    RunBegan("a", 1, "runs/4", "host-cpu"),
    RunOver("a", 1, 2.5, revision="c2"),
    BlockOver(True),
)


@pytest.fixture
def write(tmp_path):
    def write(*entries):
        for entry in entries:
            journal.append(tmp_path, 1, entry)
        return read_block(tmp_path, 1)

    return write


def test_a_block_that_was_repeated_and_finished(write):
    state = write(*ENTRIES)
    assert (state.over, state.done, state.attempt, state.failures, state.begun) == (True, True, 1, 1, 4)
    assert state.finished == {"a", "b"}
    assert state.open_run is None
    assert state.seconds == [1.5, 2.0, 2.5]
    assert [(code.arm, code.revision) for code in state.code] == [("a", "c1"), ("a", "c2")]
    assert state.events == ["the run of b failed (exit code 1). The whole block is repeated."]
    assert state.device == "host-cpu"


def test_what_has_not_begun(tmp_path):
    state = read_block(tmp_path, 1)
    assert (state.over, state.begun, state.finished, state.device) == (False, 0, set(), None)


def test_wherever_a_writer_dies_the_next_entry_is_read_and_the_others_stay(tmp_path):
    path = tmp_path / "blocks" / "block001.jsonl"
    for count, entry in enumerate(ENTRIES):
        path.unlink(missing_ok=True)
        for earlier in ENTRIES[:count]:
            journal.append(tmp_path, 1, earlier)
        before = path.read_bytes() if path.exists() else b""
        states = [read_block(tmp_path, 1)]
        journal.append(tmp_path, 1, entry)
        states.append(read_block(tmp_path, 1))
        whole = path.read_bytes()
        for end in range(len(before), len(whole)):
            path.write_bytes(whole[:end])
            torn = read_block(tmp_path, 1)
            assert torn in states
            journal.append(tmp_path, 1, Lost("its driver died"))
            after = read_block(tmp_path, 1)
            assert after.finished == torn.finished
            assert after.events == [*torn.events, "its driver died. It resumed with the missing runs."]


def test_a_run_without_an_end_is_open_and_told_once_when_it_is_run_anew(write):
    began = RunBegan("a", 0, "runs/1", "cpu")
    assert write(began).open_run.folder == "runs/1"
    assert write(began).events == ["the run of a was cut off and started again."]
    assert write(Lost("its job was lost"), began).events[1:] == ["its job was lost. It resumed with the missing runs."]


def test_a_block_given_up_and_tried_again_gets_its_attempts_anew(write):
    failed = [entry for n in range(2) for entry in (RunBegan("a", n, "x", "cpu"), RunOver("a", n, 1.0, problem="p"))]
    given_up = write(*failed, BlockOver(False, "p"))
    assert (given_up.over, given_up.done, given_up.failures, given_up.failure) == (True, False, 2, "p")
    assert given_up.problem == "the run of a failed (p)"
    again = write(Again())
    assert (again.over, again.failures, again.attempt) == (False, 0, 2)


def test_the_warm_up_of_a_further_device_has_a_journal_of_its_own(tmp_path):
    journal.append(tmp_path, 0, RunBegan("a", 0, "x", "n1-GPU/1"), "n1-GPU/1")
    assert read_block(tmp_path, 0).begun == 0
    (name,) = journal.device_warm_ups(tmp_path)
    assert read_block(tmp_path, 0, name).begun == read_block(tmp_path, 0, "n1-GPU/1").begun == 1
