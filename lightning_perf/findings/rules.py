"""The decorators that add a rule: one for each kind of analysis that rules judge.

A rule is a function from analyses to a `Problem`, or to `None` if it finds nothing. The decorator holds its ID, and
makes a `Finding` of the problem: with the rank, and with the saving as a part of the step or of the fit. It drops a
problem with a saving that is too small to report, unless the rule gives it a severity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Generic, Literal, ParamSpec

from lightning_perf.analysis.compilation.summary import CompileReport
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.ranks.whole_fit import RanksOverFit
from lightning_perf.analysis.steps.fit_time import FitTime
from lightning_perf.analysis.steps.growth import MemoryGrowth
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.findings.finding import Finding, Problem, is_worth_it, make_finding
from lightning_perf.findings.savings import step_ns
from lightning_perf.run_files.fit.gpu_health import GpuHealth

P = ParamSpec("P")


class Rules(Generic[P]):
    """The rules about one kind of analysis by ID. Each instance is the decorator that adds a rule.

    Args:
        whole: Returns the time that savings are shares of, in nanoseconds, and the rank.
    """

    def __init__(
        self, whole: Callable[P, tuple[float | None, int | None]], per: Literal["step", "fit"] = "step"
    ) -> None:
        self.by_id: dict[str, Callable[P, Finding | None]] = {}
        self._whole = whole
        self._per = per

    def __call__(
        self, rule_id: str, *, part: Callable[..., float] | None = None
    ) -> Callable[[Callable[P, Problem | None]], Callable[P, Finding | None]]:
        """Return the decorator of the rule with this ID.

        Args:
            part: Returns the time that the saving is taken from, in nanoseconds. It limits the saving.
        """

        def register(judge: Callable[P, Problem | None]) -> Callable[P, Finding | None]:
            @wraps(judge)
            def rule(*args: P.args, **kwargs: P.kwargs) -> Finding | None:
                problem = judge(*args, **kwargs)
                if problem is None:
                    return None
                whole_ns, rank = self._whole(*args, **kwargs)
                judged = problem.saving if problem.severity is None else None
                if judged is not None and not is_worth_it(max(judged.ns), whole_ns, self._per):
                    return None
                most_ns = part(*args, **kwargs) if part is not None else None
                return make_finding(rule_id, problem, whole_ns=whole_ns, most_ns=most_ns, rank=rank, per=self._per)

            self.by_id[rule_id] = rule
            return rule

        return register

    def find(self, *args: P.args, **kwargs: P.kwargs) -> list[Finding]:
        """Apply every rule."""
        return [found for rule in self.by_id.values() if (found := rule(*args, **kwargs)) is not None]


def _of_straggler(distributed: Distributed) -> tuple[float | None, int | None]:
    rank = distributed.straggler.rank if distributed.straggler is not None else None
    return next((share.step_ns for share in distributed.ranks if share.rank == rank), None), rank


rule: Rules[[RankAnalysis]] = Rules(lambda analysis: (step_ns(analysis), analysis.rank))
"""Rules about one rank of a recording."""

run_rule: Rules[[Distributed]] = Rules(_of_straggler)
"""Rules that compare ranks with each other."""

ranks_rule: Rules[[RanksOverFit]] = Rules(
    lambda run: (run.step_ns, run.straggler.rank if run.straggler is not None else None)
)
"""Rules that compare ranks with each other over the whole fit."""

log_rule: Rules[[StepTimes, RankAnalysis | None, FitTime | None]] = Rules(
    lambda run, lead, _fit: (run.mean_ns, lead.rank if lead is not None else None)
)
"""Rules about the step log of the whole run."""

fit_rule: Rules[[FitTime]] = Rules(lambda fit: (fit.wall_ns, fit.rank), per="fit")
"""Rules about the account of a whole fit."""

compile_rule: Rules[[CompileReport]] = Rules(lambda report: (report.fit_ns, report.rank), per="fit")
"""Rules about the compilations of a whole fit."""

growth_rule: Rules[[MemoryGrowth]] = Rules(lambda growth: (None, growth.rank), per="fit")
"""Rules about the memory of a whole fit over time."""

device_rule: Rules[[Sequence[GpuHealth]]] = Rules(lambda _: (None, None), per="fit")
"""Rules about the GPUs of all ranks over a whole fit."""
