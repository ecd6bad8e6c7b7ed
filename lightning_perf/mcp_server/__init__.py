"""The MCP server (``lightning-perf mcp``): the commands as tools for agents.

`TOOLS` (``tools.py``) lists the tools. The server (``server.py``) runs each call in a worker process that can open only
files in the folders given (``confinement.py``), and cuts its answer to a fixed size.
"""
