"""Short trainings in the way that each package's own introduction shows, with random weights and drawn data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.compatibility.programs import forecasting, language, lightning_own, science, vision
from benchmarks.compatibility.session import Session

__all__ = ["PROGRAMS", "Program"]


@dataclass(frozen=True)
class Program:
    """A training that a package's users write.

    Attributes:
        package: The package on PyPI, or the repository.
        environment: The environment that it runs in; "" for that of this process.
        train: Trains in a session, and returns the trained module.
        door: The class of lightning_perf that measures it.
    """

    package: str
    environment: str
    train: Callable[[Session], Any]
    door: str = "PerfCallback"


PROGRAMS: Mapping[str, Program] = {
    "neuralforecast": Program("neuralforecast", "forecasting", forecasting.neuralforecast),
    "darts": Program("u8darts", "forecasting", forecasting.darts),
    "pytorch-forecasting": Program("pytorch-forecasting", "forecasting", forecasting.pytorch_forecasting),
    "gluonts": Program("gluonts", "forecasting", forecasting.gluonts),
    "scvi-tools": Program("scvi-tools", "science", science.scvi_tools),
    "chemprop": Program("chemprop", "science", science.chemprop),
    "torch-geometric": Program("torch-geometric", "graphs", science.torch_geometric),
    "pytorch-tabular": Program("pytorch-tabular", "tabular", science.pytorch_tabular),
    "lightly": Program("lightly", "vision", vision.lightly),
    "segmentation-models": Program("segmentation-models-pytorch", "vision", vision.segmentation_models),
    "torchgeo": Program("torchgeo", "vision", vision.torchgeo),
    "kornia": Program("kornia", "vision", vision.kornia),
    "anomalib": Program("anomalib", "anomalib", vision.anomalib),
    "timm": Program("timm", "", vision.timm_classifier),
    "litgpt": Program("litgpt", "litgpt", language.litgpt),
    "hydra-template": Program("lightning-hydra-template", "hydra", lightning_own.lightning_hydra_template),
    "lightning-bolts": Program("lightning-bolts", "bolts", lightning_own.lightning_bolts),
    "transformer": Program("lightning", "", lightning_own.lightning_transformer),
    "gan": Program("lightning", "", lightning_own.lightning_gan),
    "torchmetrics": Program("torchmetrics", "", lightning_own.torchmetrics_heavy),
    "fabric": Program("lightning", "", language.fabric, "PerfLoop"),
    "plain-loop": Program("torch", "", language.plain_loop, "PerfLoop"),
    "accelerate": Program("accelerate", "transformers", language.accelerate_loop, "PerfLoop"),
    "transformers": Program("transformers", "transformers", language.transformers_trainer, "PerfTrainerCallback"),
}
