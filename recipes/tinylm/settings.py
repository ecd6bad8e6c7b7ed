"""Settings of a training."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Packing(str, Enum):
    """How documents of different lengths form a batch."""

    NONE = "none"
    BUCKET = "bucket"
    PACK = "pack"


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """One training; the defaults take less than a minute on two CPU cores.

    Attributes:
        precision: Lightning's name of the precision.
        packing: How documents form a batch.
        checkpointing: Recompute each block in the backward pass instead of keeping its activations.
        layers: Transformer blocks.
        heads: Attention heads per block.
        width: Size of the residual stream, a multiple of `heads`.
        context: Longest sequence in bytes. Longer documents are cut.
        dropout: Probability of dropout, also on the attention weights.
        documents: Documents to generate. A tenth of them is held out.
        epochs: Passes over the training documents.
        batch_size: Sequences per batch.
        lr: Learning rate of AdamW.
        seed: Seed of the text, the weights and the order.
        accelerator: Lightning's name of the accelerator.
        log_dir: Folder for the logs.
    """

    precision: str = "32-true"
    packing: Packing = Packing.NONE
    checkpointing: bool = False
    layers: int = 2
    heads: int = 4
    width: int = 128
    context: int = 256
    dropout: float = 0.0
    documents: int = 2000
    epochs: int = 1
    batch_size: int = 16
    lr: float = 2e-3
    seed: int = 0
    accelerator: str = "auto"
    log_dir: Path = Path("lightning_logs")
