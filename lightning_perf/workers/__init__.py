"""Run work that may crash, hang or need too much memory in a worker process of its own, and supervise it.

A worker process is a fresh Python interpreter: it never imports the caller's main module again, which would start
training a second time, and it inherits neither threads nor CUDA from a fork. Supervisor and worker process exchange
typed messages. Standard library and msgspec do all of it: pools such as ``concurrent.futures`` cannot end one task
after a timeout, and psutil would add nothing but a dependency.

`WorkerProcess` (``process.py``) is the supervisor's side, `Channel` (``channel.py``) the worker's. `run_command`
(``command.py``) supervises a program that knows nothing of this library. What has ended a process, and what it printed
last, is described in ``exit_status.py``. ``memory_limit.py`` limits the memory of a worker process.
"""
