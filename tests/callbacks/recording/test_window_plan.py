from __future__ import annotations

from pathlib import Path

from lightning_perf.callbacks.recording.schedule import Action, Schedule, WindowPlan


def plan(folder: Path = Path(), **schedule: int) -> WindowPlan:
    return WindowPlan(
        Schedule(**{"skip_first": 4, "wait": 0, "warmup": 1, "active": 2, "repeat": 1, **schedule}), folder
    )


def actions(plan: WindowPlan, steps: int) -> str:
    letters = {Action.REST: ".", Action.WARM_UP: "w", Action.RECORD: "r"}
    return "".join(letters[plan.action(step)] for step in range(steps))


def test_without_captures_it_is_the_schedule() -> None:
    assert actions(plan(), 9) == "....wrr.."
    assert [plan().ends_window(step) for step in range(4, 8)] == [False, False, True, False]


def test_a_capture_comes_between_and_the_schedule_goes_on() -> None:
    each = plan()
    assert each.capture(0, warmup=1, active=2, folder="slow-step-0")
    assert actions(each, 9) == "wrr.wrr.."
    assert [step for step in range(9) if each.ends_window(step)] == [2, 6]
    assert [each.capture_at(step) for step in (0, 2, 3, 5)] == ["slow-step-0", "slow-step-0", "", ""]


def test_a_capture_never_shares_a_step_with_another_window() -> None:
    each = plan()
    for start in (2, 3, 4, 6):
        assert not each.capture(start, warmup=1, active=2, folder="x")
    assert actions(each, 9) == "....wrr.."
    assert each.capture(7, warmup=0, active=2, folder="a")
    for start in (7, 8, 9):  # 9 is refused too: asked for while step 8 is open, it would take its window away
        assert not each.capture(start, warmup=0, active=1, folder="b")
    assert each.capture(10, warmup=0, active=1, folder="b")


def test_an_endless_schedule_without_rest_leaves_no_room() -> None:
    each = plan(skip_first=0, warmup=0, repeat=0)
    assert not any(each.capture(start, warmup=1, active=1, folder="x") for start in range(20))


def test_a_captures_folder_is_made_when_it_is_needed(tmp_path: Path) -> None:
    each = plan(tmp_path)
    assert each.folder_for("") == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert each.folder_for("slow-step-7") == tmp_path / "slow-step-7"
    assert (tmp_path / "slow-step-7").is_dir()
