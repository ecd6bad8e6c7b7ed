"""Models of molecules, cells and graphs."""

from __future__ import annotations

from typing import Any

from benchmarks.compatibility.session import Session


def scvi_tools(session: Session) -> Any:
    """Train scVI on random counts."""
    import anndata
    import numpy as np
    import scvi

    scvi.settings.seed = 1
    counts = np.random.default_rng(0).poisson(1.0, (1000, 200)).astype(np.float32)
    data = anndata.AnnData(counts)
    scvi.model.SCVI.setup_anndata(data)
    model = scvi.model.SCVI(data, n_latent=5)
    options = session.trainer_options("accelerator", "devices", "enable_checkpointing")
    model.train(max_epochs=12, accelerator="cpu", **options)
    return model.module


def chemprop(session: Session) -> Any:
    """Train a message-passing network on a few molecules."""
    import lightning.pytorch as pl
    import numpy as np
    from chemprop import data, models, nn

    pl.seed_everything(1)
    smiles = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "CCCC", "C1CCCCC1", "CO", "CN"] * 40
    points = [data.MoleculeDatapoint.from_smi(text, np.array([float(len(text))])) for text in smiles]
    loader = data.build_dataloader(data.MoleculeDataset(points), batch_size=8, num_workers=0, seed=1)
    module = models.MPNN(nn.BondMessagePassing(d_h=64), nn.MeanAggregation(), nn.RegressionFFN(input_dim=64))
    pl.Trainer(**session.trainer_options(max_epochs=2)).fit(module, loader)
    return module


def torch_geometric(session: Session) -> Any:
    """Train a graph network on random graphs, with PyG's Lightning data module."""
    import lightning.pytorch as pl
    import torch
    from torch_geometric.data import Data
    from torch_geometric.data.lightning import LightningDataset
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Graphs(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(16, 32), GCNConv(32, 32)
            self.head = torch.nn.Linear(32, 4)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
            hidden = self.first(batch.x, batch.edge_index).relu()
            hidden = self.second(hidden, batch.edge_index).relu()
            logits = self.head(global_mean_pool(hidden, batch.batch))
            loss = torch.nn.functional.cross_entropy(logits, batch.y)
            self.log("loss", loss, batch_size=batch.num_graphs)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    pl.seed_everything(1)
    graphs = [
        Data(x=torch.rand(20, 16), edge_index=torch.randint(0, 20, (2, 60)), y=torch.randint(0, 4, (1,)))
        for _ in range(800)
    ]
    module = Graphs()
    trainer = pl.Trainer(**session.trainer_options(max_epochs=2))
    trainer.fit(module, datamodule=LightningDataset(graphs, batch_size=16, num_workers=0))
    return module


def pytorch_tabular(session: Session) -> Any:
    """Train a table of numbers and categories."""
    import numpy as np
    import pandas as pd
    from pytorch_tabular import TabularModel
    from pytorch_tabular.config import DataConfig, OptimizerConfig, TrainerConfig
    from pytorch_tabular.models import CategoryEmbeddingModelConfig

    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(2000, 6)), columns=[f"number_{index}" for index in range(6)])
    table["kind"] = draw.choice(list("abc"), len(table))
    table["label"] = draw.integers(0, 2, len(table))
    model = TabularModel(
        data_config=DataConfig(
            target=["label"], continuous_cols=list(table.columns[:6]), categorical_cols=["kind"], num_workers=0
        ),
        model_config=CategoryEmbeddingModelConfig(task="classification", layers="64-32"),
        optimizer_config=OptimizerConfig(),
        trainer_config=TrainerConfig(
            batch_size=32,
            max_epochs=2,
            accelerator="cpu",
            progress_bar="none",
            early_stopping=None,
            checkpoints=None,
            load_best=False,
            seed=1,
            trainer_kwargs={"default_root_dir": str(session.folder), "enable_model_summary": False},
        ),
        verbose=False,
    )
    model.fit(train=table[:1600], validation=table[1600:], callbacks=session.callbacks())
    return model.model
