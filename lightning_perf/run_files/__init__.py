"""The files that a run leaves: one module per kind of file, with its values, its writer and its reader.

- ``rank0.….pt.trace.json.gz``: `traces`
- ``steps.rank0.jsonl``, step times: `steps`
- ``windows.rank0.jsonl``, ``captures.rank0.jsonl``, ``slow-step-120/``, ``on-demand-300/``: `captures`
- ``loss_scale``, ``underflow``, ``shadow``, ``fp8`` and ``forecast.rank0.jsonl``: `numerics.samples`
- ``estimates.jsonl``, estimated and measured savings: `estimates`
- ``account``, ``compile``, ``memory`` and ``out_of_memory.rank0.jsonl``, on the whole fit: `fit`
- ``probe.json``, operators that were run again: `probe`
- ``precision.json``: `numerics.precision`
- ``report.json``, ``notes.rank0.jsonl``: `report`
- ``run.jsonl``, the run record: `run_record`
- ``blocks/block001.jsonl``, the journal of a study: `journal`
- notes of ``lightning-perf run``: `launch`
- ``.lightning_perf``, ``.rank0.done``, ``profile-now``, ``.disk-full``, markers and requests: `run_folder`

Logs that grow with a run go through `jsonl`, files that are replaced go through `atomic`.
"""
