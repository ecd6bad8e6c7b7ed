"""The recipe of a language model: its text, its batches, its network, and that it learns."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightning_perf.errors import LocatedError
from recipes.tinylm import cli
from recipes.tinylm.data import IGNORED, TextData, collate, pack
from recipes.tinylm.model import GPT
from recipes.tinylm.settings import Packing, TrainSettings
from recipes.tinylm.text import END, decode, encode, generate_documents, unigram_entropy
from recipes.tinylm.train import build_training

SMALL = TrainSettings(layers=1, heads=2, width=32, context=48, documents=400, batch_size=16)


def small_data(packing: Packing) -> TextData:
    return TextData(200, context=48, batch_size=8, packing=packing, seed=0)


def padding_share(data: TextData) -> float:
    labels = [batch["labels"] for batch in data.train_dataloader()]
    return sum(int((row == IGNORED).sum()) for row in labels) / sum(row.numel() for row in labels)


def tokens_of(data: TextData) -> int:
    return sum(int((batch["labels"] != IGNORED).sum()) for batch in data.train_dataloader())


def test_text_is_the_same_for_a_seed_and_of_varying_length() -> None:
    documents = generate_documents(50, seed=1)
    assert documents == generate_documents(50, seed=1) != generate_documents(50, seed=2)
    assert max(map(len, documents)) > 3 * min(map(len, documents))
    assert decode(encode(documents[0]).tolist()) == documents[0]


def test_unigram_entropy_of_two_equally_frequent_tokens_is_one_bit() -> None:
    assert unigram_entropy([torch.tensor([1, 2, 2, 1])]) == pytest.approx(math.log(2))


def test_collate_shifts_labels_by_one_and_marks_padding() -> None:
    batch = collate([torch.tensor([5, 6, 7]), torch.tensor([8, 9])])
    assert batch["input_ids"].tolist() == [[5, 6], [8, END]]
    assert batch["labels"].tolist() == [[6, 7], [9, IGNORED]]


def test_pack_fills_every_row_and_keeps_the_order() -> None:
    documents = [torch.arange(5), torch.arange(5, 8), torch.arange(8, 12)]
    rows = pack(documents, context=4)
    assert [row.tolist() for row in rows] == [[0, 1, 2, 3, 4], [4, 5, 6, 7, 8]]


def test_packing_leaves_less_padding_than_buckets_and_buckets_less_than_none() -> None:
    none, bucket, packed = (padding_share(small_data(packing)) for packing in Packing)
    assert none > 2 * bucket > packed == 0


def test_buckets_hold_every_document_once() -> None:
    assert tokens_of(small_data(Packing.BUCKET)) == tokens_of(small_data(Packing.NONE))


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    network = GPT(16, 8, layers=2, heads=2, width=8)
    tokens = torch.randint(16, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 16
    before, after = network(tokens), network(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_checkpointing_changes_no_gradient() -> None:
    def gradients(*, checkpointing: bool) -> list[Tensor]:
        torch.manual_seed(0)
        network = GPT(16, 8, layers=2, heads=2, width=8, dropout=0.1, checkpointing=checkpointing)
        network(torch.arange(8).view(1, 8)).square().sum().backward()
        return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]

    kept, recomputed = gradients(checkpointing=False), gradients(checkpointing=True)
    assert len(kept) == len(recomputed) > 10
    assert all(torch.equal(one, other) for one, other in zip(kept, recomputed, strict=True))


def test_it_learns_more_than_the_frequency_of_each_token() -> None:
    torch.manual_seed(0)
    module, data = build_training(SMALL)
    module.log = lambda *_, **__: None  # type: ignore[method-assign]  # there is no Trainer
    optimizer = module.configure_optimizers()
    loss = torch.tensor(math.inf)
    for _ in range(3):
        for batch in data.train_dataloader():
            loss = module.training_step(batch, 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert float(loss.detach()) < 0.9 * unigram_entropy(data.training)


def test_decay_leaves_biases_and_norms_alone() -> None:
    module, _ = build_training(SMALL)
    decayed, other = module.configure_optimizers().param_groups
    assert all(parameter.dim() == 2 for parameter in decayed["params"])
    assert all(parameter.dim() == 1 for parameter in other["params"])
    assert other["weight_decay"] == 0


def test_a_width_that_heads_do_not_divide_is_an_error() -> None:
    with pytest.raises(LocatedError, match=r"--width 30: is not a multiple of --heads 4. Give a multiple, such as 28"):
        build_training(TrainSettings(width=30, heads=4))


def test_the_command_line_names_wrong_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--width", "30", "--accelerator", "cpu", "--log-dir", str(tmp_path)]) == 2
    assert "error: --width 30" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["--packing", "packed"])
    assert "Did you mean pack?" in capsys.readouterr().err
