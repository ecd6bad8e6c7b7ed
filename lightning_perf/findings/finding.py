"""A finding: one cause of lost time, with its evidence, its fix and an estimate of the saving.

A rule is a function from analyses to a `Problem`, or to `None` if it finds nothing. Its decorator holds its ID, and
makes a `Finding` of the problem: with the rank, and with the saving as a part of the step or of the fit. It drops a
problem with a saving that is too small to report, unless the rule gives it a severity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Generic, Literal, ParamSpec

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from lightning_perf.analysis.compilation import CompileReport
from lightning_perf.analysis.rank import RankAnalysis
from lightning_perf.analysis.ranks.distributed import Distributed
from lightning_perf.analysis.ranks.whole_fit import RanksOverFit
from lightning_perf.analysis.steps.fit_time import FitTime, MemoryGrowth
from lightning_perf.analysis.steps.step_times import StepTimes
from lightning_perf.findings.pages import rule_page_url
from lightning_perf.run_files.fit.gpu_health import GpuHealth

Severity = Literal["high", "moderate", "low"]

Basis = Literal["recording", "general", "probed"]
"""The basis of an estimate: times of the recording, factors that hold for all networks, or a probe of this network."""

BASIS_TEXT: dict[Basis, str] = {
    "recording": "",
    "general": ", general range, not probed",
    "probed": ", probed on this device",
}
"""The basis in words, for the end of an estimate."""

MIN_SHARE = 0.03
MODERATE_SHARE = 0.05
HIGH_SHARE = 0.15
"""Shares of the step time. A cause is reported if it could save at least the first one. Its severity is moderate or
high if the middle of its estimate reaches the second or the third.

XProf uses similar thresholds: 5 and 20 % for input, 3 and 15 % for launches and communication.
"""


MIN_FIT_SAVING_NS = 1_000_000_000
"""Least saving of a fit that is reported. In shorter fits, a few milliseconds would be a large share."""

SIXTEEN_BITS = "products round to 16 bits, so compare your metric over several runs"
LARGER_BATCH = "a larger batch makes fewer updates per epoch, so compare your metric at the same number of epochs"
ONLY_LARGER_BATCH = "only a larger batch does, since it makes fewer updates per epoch"
ANOTHER_MODEL = "another size or dropout is another model, so train it again and compare your metric"
SKIPPED_WORK = "only if you skip work that the training needs, such as an average of the weights"
"""How fixes of several rules change results."""


class Finding(Struct, frozen=True):
    """A cause of lost time.

    Attributes:
        kind: The ID of the rule that found it: ``input-bound``, ``launch-bound``, …
        severity: ``high``, ``moderate`` or ``low``, by the middle of the estimated saving as a share of the step.
        title: The problem in one clause, with its main number.
        evidence: Figures from this recording that show the problem, one sentence each.
        action: The fix, with the line of code to change if there is one.
        saving_low_ms: Least estimated saving in milliseconds per step, or of the fit; ``None`` if no model gives one.
        saving_high_ms: Most estimated saving, in the same unit.
        model: How the saving was estimated: the share that can shrink, and its factor.
        rank: The rank that it was found on; ``None`` if the recording does not say.
        step_ms: Mean step time of that rank, or the time of the fit, for shares of the saving; ``None`` if no saving is
            estimated.
        basis: ``probed`` for a saving measured on this device with the recorded operators, ``general`` for a range for
            all networks that a probe would narrow, ``recording`` for other estimates.
        page: Address of the page that explains the rule, always the one that belongs to ``kind``.
        per: ``step`` or ``fit``: whether the saving is per step or of the whole fit.
        changes: How the fix may change the results of the training, beyond the order of sums; empty if it does not.
        part: The part of the fit's account that has the lost time: a hook by its name, ``logging`` or ``checkpoints``;
            empty for any other.
    """

    kind: str
    severity: Severity
    title: str
    evidence: tuple[str, ...]
    action: str
    saving_low_ms: float | None
    saving_high_ms: float | None
    model: str
    rank: int | None = None
    step_ms: float | None = None
    basis: Basis = "recording"
    page: str = ""
    per: Literal["step", "fit"] = "step"
    changes: str = ""
    part: str = ""

    def __post_init__(self) -> None:
        """Derive the page from the rule, also when a document is read: an address in it is not trusted."""
        force_setattr(self, "page", rule_page_url(self.kind))

    @property
    def warning(self) -> str:
        """A sentence that says how the fix changes results; empty if it does not."""
        return f"Changes results: {self.changes}." if self.changes else ""


class SavingRange(Struct, frozen=True):
    """A saving in nanoseconds per step, or of the fit, and how it was estimated."""

    ns: tuple[float, float]
    model: str
    basis: Basis = "recording"


NO_SAVING = SavingRange((0.0, 0.0), "")
"""A problem with this saving is too small to report."""


class Problem(Struct, frozen=True):
    """A cause of lost time as a rule returns it. The rule's decorator makes a `Finding` of it.

    Attributes:
        evidence: A sentence with figures that show it, or several. Empty ones are left out.
        severity: The severity; None for that of the estimate.
        changes: How the fix may change results, as a clause without a full stop; empty if it does not.
        part: The part of the fit's account that has the lost time, as in `Finding`.
    """

    title: str
    evidence: str | Sequence[str]
    action: str
    saving: SavingRange | None = None
    severity: Severity | None = None
    changes: str = ""
    part: str = ""


def is_worth_it(saving_ns: float, whole_ns: float | None, per: Literal["step", "fit"] = "step") -> bool:
    """Return whether a saving is large enough to report: 3 % of the step, or of the fit, and 1 s of a fit."""
    if per == "fit":
        return saving_ns >= max(MIN_FIT_SAVING_NS, MIN_SHARE * (whole_ns or 0.0))
    return whole_ns is not None and whole_ns > 0 and saving_ns >= MIN_SHARE * whole_ns


def make_finding(
    rule_id: str,
    problem: Problem,
    *,
    whole_ns: float | None,
    rank: int | None,
    most_ns: float | None = None,
    per: Literal["step", "fit"] = "step",
) -> Finding:
    """Make a finding of a problem.

    A saving never exceeds `whole_ns`, the time of the step or of the fit, nor `most_ns`, the part it is taken from.
    """
    found = Finding(
        rule_id,
        problem.severity or "low",
        problem.title,
        (problem.evidence,) if isinstance(problem.evidence, str) else tuple(filter(None, problem.evidence)),
        problem.action,
        saving_low_ms=None,
        saving_high_ms=None,
        model="",
        rank=rank,
        per=per,
        changes=problem.changes,
        part=problem.part,
    )
    saving = problem.saving
    if saving is None or whole_ns is None:
        return found
    limits = [limit for limit in (whole_ns or None, most_ns) if limit is not None]
    low, high = (min(saving, *limits) if limits else saving for saving in sorted(saving.ns))
    return replace(
        found,
        severity=problem.severity or severity_of(low, high, whole_ns),
        saving_low_ms=low / 1e6,
        saving_high_ms=high / 1e6,
        model=saving.model,
        step_ms=whole_ns / 1e6,
        basis=saving.basis,
    )


def severity_of(low: float, high: float, step: float) -> Severity:
    """Return the severity of a cause, by the middle of its estimated saving as a share of the step.

    Example:
        >>> severity_of(10, 30, 100), severity_of(0, 20, 100), severity_of(0, 6, 100)
        ('high', 'moderate', 'low')
    """
    share = (low + high) / 2 / step if step > 0 else 0.0
    return "high" if share >= HIGH_SHARE else "moderate" if share >= MODERATE_SHARE else "low"


LEADING = frozenset({"cold-start", "debug-settings", "growing-steps"})
"""Rules that lead if they are of high severity: the figures of other findings then describe another training."""


def by_saving(finding: Finding) -> tuple[bool, float, float, str]:
    """Return the key that sorts findings: leading rules, then the most to save, those without an estimate last.

    The saving counts as a share of its own step: the recorded steps take longer than those of the run.
    """
    follows = finding.kind not in LEADING or finding.severity != "high"
    low, high, step = finding.saving_low_ms, finding.saving_high_ms, finding.step_ms
    if low is None or high is None or not step:
        return follows, 1.0, 1.0, finding.kind
    return follows, -(low + high) / 2 / step, -high / step, finding.kind


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
        self, rule_id: str, *, part: Callable[..., float | None] | None = None
    ) -> Callable[[Callable[P, Problem | None]], Callable[P, Finding | None]]:
        """Return the decorator of the rule with this ID.

        Args:
            part: Returns the time that the saving is taken from, in nanoseconds; None if it is unknown. It limits the
                saving.
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


def saving_whole_ns(analysis: RankAnalysis) -> float:
    """Return the step time that savings are shares of: that of the run if recorded steps are notably slower."""
    return analysis.usual.step_ns if analysis.usual is not None else analysis.breakdown.wall.mean_ns or 0.0


rule: Rules[[RankAnalysis]] = Rules(lambda analysis: (saving_whole_ns(analysis), analysis.rank))
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


FIXES = {
    "autocast-tax": "Convert the weights once: model.to(torch.bfloat16) or model.half() instead of torch.autocast. "
    "lightning-perf infer measures speed and agreement of such variants.",
    "channels-last": "Keep model and inputs in channels last: model.to(memory_format=torch.channels_last), and "
    "images = images.contiguous(memory_format=torch.channels_last).",
    "cpu-channels-last": "Keep images in channels last: model.to(memory_format=torch.channels_last). Activations "
    "follow the weights.",
    "cold-start": "Call the model a few times before you record, or with torch.profiler schedule(skip_first=20, …).",
    "cudnn-benchmark": "If you recorded the first calls, record later ones. If shapes change from call to call, turn "
    "the measurements off: torch.backends.cudnn.benchmark = False.",
    "exposed-communication": "Issue collectives earlier, so that compute hides them, or split the model over fewer "
    "devices.",
    "half-precision": 'Run the model in 16 bits: with torch.autocast("cuda", dtype=torch.bfloat16), or torch.float16 '
    "before Ampere. lightning-perf infer measures speed and agreement of such variants.",
    "host-work": "Do less between batches, or prepare the next batch in another thread or process.",
    "memory-full": "Use a smaller batch, or weights in 16 bits: model.to(torch.bfloat16).",
    "memory-spare": "Double the batch as long as samples/s rise.",
    "sync-points": "Keep values on the device between batches, and copy results once per batch. Copy inputs from "
    "pinned memory: tensor.to(device, non_blocking=True).",
    "tf32-off": 'Allow TF32: torch.set_float32_matmul_precision("high"), and torch.backends.cudnn.allow_tf32 = True '
    "for convolutions.",
}
"""Fixes by rule. Those of other rules hold for inference, too."""

CHANGES = {
    "autocast-tax": "operators that autocast keeps in FP32 run in 16 bits, too",
    "memory-full": f"in 16 bits, {SIXTEEN_BITS}",
    **dict.fromkeys(("exposed-communication", "host-work", "launch-bound", "memory-spare", "stop-flags"), ""),
}
"""How these fixes change results, where that differs from a training. A larger batch does not change inference."""


def for_inference(finding: Finding, analysis: RankAnalysis) -> Finding:
    """Return the finding, with the fix for inference if the recording shows no training."""
    if analysis.workload.trains is not False:
        return finding
    return replace(
        finding,
        action=FIXES.get(finding.kind, finding.action),
        changes=CHANGES.get(finding.kind, finding.changes),
    )
