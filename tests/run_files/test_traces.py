import gzip
import os
from pathlib import Path

import pytest

from lightning_perf.errors import TraceError
from lightning_perf.run_files.captures import is_capture_folder
from lightning_perf.run_files.traces import export_trace, find_traces, group_windows, rank_in_name


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def names(paths: tuple[Path, ...]) -> list[str]:
    return [path.name for path in paths]


def test_a_file_stands_for_itself_whatever_it_is_called(tmp_path: Path) -> None:
    touch(tmp_path, "odd.name")
    assert find_traces(tmp_path / "odd.name") == (tmp_path / "odd.name",)


def test_profiler_traces_win_over_other_json(tmp_path: Path) -> None:
    touch(tmp_path, "report.json", "rank1.17.pt.trace.json.gz", "rank0.17.pt.trace.json.gz", "._rank0.pt.trace.json")
    assert names(find_traces(tmp_path)) == ["rank0.17.pt.trace.json.gz", "rank1.17.pt.trace.json.gz"]


def test_any_json_will_do_when_there_is_no_profiler_trace(tmp_path: Path) -> None:
    touch(tmp_path, "b.json.gz", "a.json", "notes.txt")
    assert names(find_traces(tmp_path)) == ["a.json", "b.json.gz"]


def test_the_only_folder_below_with_traces_is_taken(tmp_path: Path) -> None:
    touch(tmp_path, "version_0/hparams.json", "version_0/perf/rank0.17.pt.trace.json")
    assert names(find_traces(tmp_path)) == ["rank0.17.pt.trace.json"]


def test_several_runs_are_ambiguous(tmp_path: Path) -> None:
    for number, age_s in ((9, 20), (10, 10)):
        trace = f"version_{number}/perf/rank0.1.pt.trace.json"
        touch(tmp_path, trace)
        os.utime(tmp_path / trace, (10_000 - age_s, 10_000 - age_s))
    with pytest.raises(TraceError, match=r"traces of 2 runs.*the newest are \S*version_10/perf, \S*version_9/perf"):
        find_traces(tmp_path)


def test_links_do_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere", "rank0.1.pt.trace.json")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TraceError, match="holds no trace"):
        find_traces(tmp_path / "run")


def test_a_capture_folder_has_its_name_and_the_record_beside_it(tmp_path: Path) -> None:
    for name in ("slow-step-12", "on-demand-3", "slow-step-x", "version_0"):
        (tmp_path / name).mkdir()
    assert not is_capture_folder(tmp_path / "slow-step-12")  # somebody's own folder of that name
    (tmp_path / "captures.rank1.jsonl").touch()
    assert names(tuple(filter(is_capture_folder, sorted(tmp_path.iterdir())))) == ["on-demand-3", "slow-step-12"]


def test_what_is_not_there_is_said_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"missing\.json: no such file or folder\. Give a trace"):
        find_traces(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.1700000000.pt.trace.json.gz", 0),
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("trace_rank_7.json", 7),
        ("frank3.json", None),
        ("ranking.json", None),
        ("host_4711.1623143089861.pt.trace.json", None),
    ],
)
def test_rank_in_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_windows_of_a_worker_group_by_the_name_before_the_time_stamp() -> None:
    paths = [Path(f"{name}.pt.trace.json") for name in ("a_1.1623143089861", "b_2.1623143089861", "a_1.1623143099999")]
    assert group_windows(paths) == ((paths[0], paths[2]), (paths[1],))


class Recording:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text('{"traceEvents": []}')
        if self.fails:
            raise RuntimeError("half-way")


def test_a_trace_is_packed_under_its_name(tmp_path: Path) -> None:
    path = export_trace(Recording(), tmp_path, 0, 17)
    assert path == tmp_path / "rank0.17.pt.trace.json.gz"
    assert gzip.decompress(path.read_bytes()) == b'{"traceEvents": []}'
    assert list(tmp_path.iterdir()) == [path]


def test_a_failing_export_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="half-way"):
        export_trace(Recording(fails=True), tmp_path, 0, 17)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_gets_its_room_back(tmp_path: Path) -> None:
    class Full:
        def export_chrome_trace(self, path: str) -> None:
            Path(f"{path}.tmp").write_text("{")  # torch writes this first, and raises nothing when that fails

    (tmp_path / "rank0.16.pt.trace.json.gz").touch()
    with pytest.raises(OSError, match="its disk may be full"):
        export_trace(Full(), tmp_path, 0, 17)
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.16.pt.trace.json.gz"]
