from pathlib import Path

from lightning_perf.workers.limits import free_bytes


def machine(root: Path, group: str = "/") -> tuple[Path, Path]:
    """A stand-in for ``/proc`` and for the control groups: 8 GiB are free, the process is in a group."""
    proc, groups = root / "proc", root / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\nHugePages_Total:  0\n")
    (proc / "self" / "cgroup").write_text(f"4:memory:/old\n0::{group}\n")
    (groups / group.lstrip("/")).mkdir(parents=True)
    return proc, groups


def limit(folder: Path, most: str, used: int, cached: int) -> None:
    (folder / "memory.max").write_text(f"{most}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cached}\n")


def test_without_a_limit_it_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, "/user.slice/shell")
    assert free_bytes(proc, groups) == 8 << 30
    limit(groups / "user.slice", "max", 3 << 30, 0)
    assert free_bytes(proc, groups) == 8 << 30


def test_a_container_s_limit_counts_less_what_it_uses_and_cannot_give_back(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path)
    limit(groups, str(4 << 30), 3 << 30, 1 << 30)
    assert free_bytes(proc, groups) == 2 << 30
    limit(groups, str(4 << 30), 5 << 30, 0)
    assert free_bytes(proc, groups) == 0


def test_the_tightest_of_the_groups_around_counts(tmp_path: Path) -> None:
    proc, groups = machine(tmp_path, "/pods/one")
    limit(groups / "pods" / "one", str(6 << 30), 0, 0)
    limit(groups / "pods", str(5 << 30), 2 << 30, 0)
    assert free_bytes(proc, groups) == 3 << 30


def test_where_there_is_no_proc_nothing_is_known(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "none", tmp_path) == 0
