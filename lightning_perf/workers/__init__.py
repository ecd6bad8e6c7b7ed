"""Run work that may crash, hang or need too much memory in a worker process of its own, and supervise it.

A worker process is a fresh Python interpreter. It never imports the caller's main module again, which would start
training a second time. It inherits neither threads nor CUDA from a fork. Supervisor and worker process exchange typed
messages. The standard library and msgspec suffice: `concurrent.futures` cannot end one task after a timeout, and
psutil would only add a dependency.

`WorkerProcess` (``process.py``) is the supervisor's side, `Channel` (``channel.py``) the worker's. `run_command`
(``command.py``) supervises any other program. ``limits.py`` limits its memory.
"""
