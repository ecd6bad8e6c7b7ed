"""The recordings of a run analysed all over a Ray cluster. Needs the extra ``[ray]``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_perf.compare.engines.ray_cluster import connect
from lightning_perf.compare.errors import CompareError
from lightning_perf.report.recording import Recording, analyze_recording, decode_recording, encode_recording

__all__ = ["RayRecordings"]


class RayRecordings:
    """Analyses each recording as a task of one processor. The files have to be on storage that all machines see.

    Args:
        address: Of the cluster; None for ``RAY_ADDRESS`` or a cluster of this machine alone.

    Example:
        >>> import lightning_perf
        >>> report = lightning_perf.analyze("/shared/perf", executor=RayRecordings("10.0.0.1:6379"))  # doctest: +SKIP
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address

    def __call__(self, groups: Sequence[Sequence[Path]], *, by_shape: bool = False) -> list[Recording]:
        """Analyse the recordings of a run; see `lightning_perf.report.recordings.analyze_recordings`.

        Raises:
            CompareError: There is no such cluster, or it loses the work again and again.
            MissingExtraError: Ray is not installed.
        """
        ray = connect(self._address)
        task = ray.remote(num_cpus=1)(_analyze)
        tasks = [task.remote([str(path.absolute()) for path in group], by_shape) for group in groups]
        try:
            return [decode_recording(answer) for answer in ray.get(tasks)]
        except ray.exceptions.RayTaskError:
            raise
        except ray.exceptions.RayError as error:
            raise CompareError(f"The Ray cluster lost an analysis ({type(error).__name__}): {error}") from error
        finally:
            for reference in tasks:
                ray.cancel(reference)  # those that are done are left alone


def _analyze(paths: Sequence[str], by_shape: bool) -> bytes:
    """The task."""
    return encode_recording(analyze_recording([Path(path) for path in paths], by_shape=by_shape))
