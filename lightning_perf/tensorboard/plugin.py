"""The plugin that TensorBoard loads for the tab "PERF".

TensorBoard imports this module at every start if lightning_perf is installed, and an error here would stop it from
starting. This module therefore imports the base class only. The rest is imported when the plugin is first used. If that
fails, TensorBoard reports the error and continues without the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorboard.plugins import base_plugin

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOOK_S = 0.5
"""How long the list of tabs may wait for the first scan."""


class PerfPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The tab "PERF": reports, traces, studies and trade-off tables below TensorBoard's log directory."""

    plugin_name = "lightning_perf"

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        from lightning_perf.tensorboard.discovery import Scanner, roots_of

        self._scanner = Scanner(roots_of(context))

    def get_plugin_apps(self) -> Mapping[str, WSGIApplication]:
        """Return the tab's addresses with their applications."""
        from lightning_perf.tensorboard.queue import Queue
        from lightning_perf.tensorboard.routes import Routes

        return Routes(self._scanner, Queue()).applications()

    def is_active(self) -> bool:
        """Whether there is anything to show. It is true until the first scan has finished."""
        table = self._scanner.table(LOOK_S)
        return table is None or bool(table.runs)

    def frontend_metadata(self) -> Any:
        """Return how TensorBoard shows the tab. The page itself looks for new data."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="PERF", disable_reload=True)
