"""What TensorBoard loads: the plugin behind the tab "PERF".

TensorBoard imports this module at every start, wherever lightning_perf is installed, and an error here would keep it
from starting. So this module imports nothing but the base class; everything else is imported when a route is first
asked for.
"""

from __future__ import annotations

from tensorboard.plugins import base_plugin

__all__ = ["PerfPlugin"]


class PerfPlugin(base_plugin.TBPlugin):
    """The tab "PERF"."""

    plugin_name = "lightning_perf"

    def get_plugin_apps(self):
        """Nothing yet."""
        return {}

    def is_active(self):
        """Not yet."""
        return False
