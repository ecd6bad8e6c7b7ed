"""One network, one order of the data and one optimizer, trained by four kinds of loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.compatibility.session import Session, lightning_module

STEPS = 60
BATCH = 64


def _parts() -> tuple[Any, Any, Any]:
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten()
            )
            self.head = nn.Linear(32 * 14 * 14, 10)

        def forward(self, pictures: Any, labels: Any) -> dict[str, Any]:
            return {"loss": nn.functional.cross_entropy(self.head(self.body(pictures)), labels)}

    class Pictures(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __init__(self) -> None:
            self.pictures = torch.rand(STEPS * BATCH, 3, 32, 32)
            self.labels = torch.randint(0, 10, (STEPS * BATCH,))

        def __len__(self) -> int:
            return len(self.pictures)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"pictures": self.pictures[index], "labels": self.labels[index]}

    torch.manual_seed(1)
    model, data = Network(), Pictures()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), data


def lightning_trainer(session: Session) -> Any:
    """Train by Lightning's Trainer."""
    import lightning.pytorch as pl
    import torch

    model, optimizer, data = _parts()

    module = lightning_module(model, lambda network, batch: network(**batch)["loss"], lambda _: optimizer)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    pl.Trainer(**session.trainer_options(max_epochs=1)).fit(module, loader)
    return model


def fabric_loop(session: Session) -> Any:
    """Train by Fabric."""
    import torch
    from lightning.fabric import Fabric

    made = Fabric(accelerator="auto", devices=1)
    made.launch()
    original, optimizer, data = _parts()
    model, optimizer = made.setup(original, optimizer)
    loader = made.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=BATCH))
    with session.loop(model, optimizer) as perf:
        for batch in perf.steps(loader):
            made.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            session.step_ended()
    return original


def torch_loop(session: Session) -> Any:
    """Train by a loop in plain PyTorch."""
    import torch

    model, optimizer, data = _parts()
    with session.loop(model, optimizer) as perf:
        for batch in perf.steps(torch.utils.data.DataLoader(data, batch_size=BATCH)):
            model(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step_ended()
    return model


def hugging_face(session: Session) -> Any:
    """Train by the Trainer of Hugging Face, without its shuffling, clipping and learning rate schedule."""
    import torch
    import transformers

    model, optimizer, data = _parts()

    class InOrder(transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(data)

    arguments = transformers.TrainingArguments(
        str(session.folder / "output"),
        per_device_train_batch_size=BATCH,
        num_train_epochs=1,
        max_grad_norm=0.0,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    trainer = InOrder(
        model,
        arguments,
        train_dataset=data,
        optimizers=(optimizer, constant),
        callbacks=session.transformers_callbacks(),
    )
    trainer.train()
    return model


LOOPS: Mapping[str, Callable[[Session], Any]] = {
    "Lightning Trainer": lightning_trainer,
    "Fabric": fabric_loop,
    "plain PyTorch": torch_loop,
    "Hugging Face Trainer": hugging_face,
}
