"""The files that a run leaves: one module per kind of file, with its values, its writer and its reader.

- ``rank0.….pt.trace.json.gz``: `traces`
- ``steps.rank0.jsonl``, step times: `steps`
- ``windows.rank0.jsonl``, cost of the profiler: `windows`
- ``captures.rank0.jsonl``, ``slow-step-120/``, ``on-demand-300/``: `captures`
- ``loss_scale.rank0.jsonl``: `numerics.samples`
- ``underflow.rank0.jsonl``, gradients by magnitude: `numerics.samples`
- ``forecast.rank0.jsonl``, rounding of sampled layers: `numerics.samples`
- ``fp8.rank0.jsonl``, scales of FP8 layers: `numerics.samples`
- ``estimates.jsonl``, estimated and measured savings: `estimates`
- ``shadow.rank0.jsonl``, losses and gradients next to FP32: `numerics.samples`
- ``account.rank0.jsonl``, the time of the whole fit: `account`
- ``compile.rank0.jsonl``, the compilations of ``torch.compile``: `compilations`
- ``probe.json``, operators that were run again: `probe`
- ``notes.rank0.jsonl``: `notes`
- ``precision.json``: `numerics.precision`
- ``report.json``: `report`
- ``run.jsonl``, the run record: `run_record`
- ``blocks/block001.jsonl``, the journal of a study: `journal`
- notes of ``lightning-perf run``: `launch`
- ``.lightning_perf``, ``.rank0.done``, ``profile-now``, ``.disk-full``, markers and requests: `run_folder`

Logs that grow with a run go through `jsonl`, files that are replaced go through `atomic`.
"""
