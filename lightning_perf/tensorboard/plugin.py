"""What TensorBoard loads: the plugin behind the tab "PERF".

TensorBoard imports this module at every start, wherever lightning_perf is installed, and an error here would keep it
from starting. So nothing is imported here but the base class; the rest is imported when the plugin is put to work,
where TensorBoard reports an error and goes on without the plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensorboard.plugins import base_plugin

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

__all__ = ["PerfPlugin"]

LOOK_S = 0.5
"""How long TensorBoard's list of tabs may wait for the runs."""


class PerfPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The tab "PERF": reports, traces, studies and trade-off tables below TensorBoard's log directory.

    Args:
        context: What TensorBoard tells its plugins.
    """

    plugin_name = "lightning_perf"

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        from lightning_perf.tensorboard.discovery import roots_of
        from lightning_perf.tensorboard.scanner import Scanner

        self._scanner = Scanner(roots_of(context))

    def get_plugin_apps(self) -> Mapping[str, WSGIApplication]:
        """The tab's addresses."""
        from lightning_perf.tensorboard.document_queue import DocumentQueue
        from lightning_perf.tensorboard.routes import Routes

        return Routes(self._scanner, DocumentQueue()).applications()

    def is_active(self) -> bool:
        """Whether there is anything to show; yes while the first look goes on."""
        table = self._scanner.table(LOOK_S)
        return table is None or bool(table.runs)

    def frontend_metadata(self) -> Any:
        """How TensorBoard shows the tab. The page looks for new data by itself."""
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="PERF", disable_reload=True)
