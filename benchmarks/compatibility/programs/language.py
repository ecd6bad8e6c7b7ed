"""Language models and loops without a Lightning Trainer."""

from __future__ import annotations

from typing import Any

from benchmarks.compatibility.session import Session, lightning_module


def litgpt(session: Session) -> Any:
    """Pretrain a tiny LitGPT model in a Lightning module, as LitGPT's documentation shows."""
    import lightning.pytorch as pl
    import torch
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    def optimizers(parameters: Any) -> Any:
        optimizer = torch.optim.AdamW(parameters, lr=2e-4, weight_decay=0.0, betas=(0.9, 0.95))
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))]

    pl.seed_everything(1)
    size = {"n_layer": 2, "n_head": 4, "n_embd": 64, "intermediate_size": 256, "block_size": 64}
    network = GPT(Config.from_name("pythia-14m", padded_vocab_size=256, **size))
    module = lightning_module(
        network, lambda gpt, batch: chunked_cross_entropy(gpt(batch[0][:, :-1]), batch[0][:, 1:]), optimizers
    )
    data = torch.utils.data.TensorDataset(torch.randint(0, 256, (480, 65)))
    trainer = pl.Trainer(**session.trainer_options(max_epochs=1, accumulate_grad_batches=2, gradient_clip_val=1.0))
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=4))
    return module


def _classifier(seed: int = 1) -> tuple[Any, Any, Any]:
    import torch
    from torch import nn

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    data = torch.utils.data.TensorDataset(torch.rand(800, 3, 32, 32), torch.randint(0, 10, (800,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)


def plain_loop(session: Session) -> Any:
    """Train a classifier in plain PyTorch, with accumulation, under `PerfLoop`."""
    import torch

    model, optimizer, loader = _classifier()
    with session.loop(model, optimizer) as perf:
        for _ in range(2):
            for number, (pictures, labels) in enumerate(perf.steps(loader)):
                loss = torch.nn.functional.cross_entropy(model(pictures), labels)
                (loss / 2).backward()  # type: ignore[no-untyped-call]
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                    session.step_ended()
            session.record_metrics({"loss": loss.detach()})
    return model


def fabric(session: Session) -> Any:
    """Train a classifier with Fabric, under `PerfLoop`."""
    import torch
    from lightning.fabric import Fabric

    made = Fabric(accelerator="auto", devices=1)
    made.launch()
    original, optimizer, loader = _classifier()
    model, optimizer = made.setup(original, optimizer)
    loader = made.setup_dataloaders(loader)
    with session.loop(model, optimizer) as perf:
        for _ in range(2):
            for pictures, labels in perf.steps(loader):
                loss = torch.nn.functional.cross_entropy(model(pictures), labels)
                made.backward(loss)
                made.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
                session.step_ended()
            session.record_metrics({"loss": loss.detach()})
    return original


def accelerate_loop(session: Session) -> Any:
    """Train a classifier with Accelerate, which skips the optimizer inside an accumulation, under `PerfLoop`."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(*_classifier())
    with session.loop(model, optimizer) as perf:
        for _ in range(2):
            for pictures, labels in perf.steps(loader):
                with accelerator.accumulate(model):
                    loss = torch.nn.functional.cross_entropy(model(pictures), labels)
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    session.step_ended()
            session.record_metrics({"loss": loss.detach()})
    return accelerator.unwrap_model(model)


def transformers_trainer(session: Session) -> Any:
    """Train a tiny GPT-2 with the Trainer of Hugging Face, with accumulation and evaluation."""
    import torch
    import transformers

    class Tokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
        def __init__(self, length: int) -> None:
            self.tokens = torch.randint(0, 200, (length, 64))

        def __len__(self) -> int:
            return len(self.tokens)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"input_ids": self.tokens[index], "labels": self.tokens[index]}

    transformers.set_seed(1)
    size = {"n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=200, **size))
    arguments = transformers.TrainingArguments(
        str(session.folder / "output"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
        seed=1,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=Tokens(480),
        eval_dataset=Tokens(32),
        callbacks=session.transformers_callbacks(),
    )
    trainer.train()
    for entry in trainer.state.log_history:
        session.record_metrics(
            {f"{name}@{entry['step']}": entry[name] for name in ("loss", "eval_loss") if name in entry}
        )
    return model
