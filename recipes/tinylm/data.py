"""The LightningDataModule: batches of documents, padded, sorted by length or packed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Sampler

from recipes.tinylm.settings import Packing
from recipes.tinylm.text import END, encode, generate_documents

IGNORED = -100
"""Label of padding, which the loss ignores (the default of `torch.nn.functional.cross_entropy`)."""

BUCKET_BATCHES = 20
"""Batches that are sorted by length together. More would leave less padding, and a less random order."""

HELD_OUT = 10
"""One document in this many is held out for validation."""

Batch = dict[str, Tensor]
"""``input_ids`` and ``labels``, both ``(batch, time)`` of int64."""


class TextData(LightningDataModule):
    """Generated documents.

    Args:
        documents: Number of documents.
        context: Longest sequence.
        batch_size: Sequences per batch.
        packing: How documents form a batch. Validation always pads them, so that its losses are comparable.
        seed: Seed of the text and the order.
    """

    def __init__(self, documents: int, context: int, batch_size: int, packing: Packing, seed: int) -> None:
        super().__init__()
        encoded = [encode(document) for document in generate_documents(documents, seed)]
        self.context = context
        self.batch_size = batch_size
        self.packing = packing
        self.seed = seed
        self.held_out = encoded[::HELD_OUT]
        self.training = [document for place, document in enumerate(encoded) if place % HELD_OUT]

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Return batches of the training documents in a new order in each epoch."""
        if self.packing is Packing.PACK:
            rows = pack(self.training, self.context)
            return DataLoader(rows, self.batch_size, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]
        documents = self._cut(self.training)
        if self.packing is Packing.BUCKET:
            buckets = LengthBuckets([len(document) for document in documents], self.batch_size, self.seed)
            return DataLoader(documents, batch_sampler=buckets, collate_fn=collate)  # type: ignore[arg-type]
        return DataLoader(documents, self.batch_size, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Tensor]:
        """Return batches of the held-out documents."""
        return DataLoader(self._cut(self.held_out), self.batch_size, collate_fn=collate)  # type: ignore[arg-type]

    def _cut(self, documents: Sequence[Tensor]) -> list[Tensor]:
        # One token more than the context, because inputs and labels are one token apart.
        return [document[: self.context + 1] for document in documents]


def pack(documents: Sequence[Tensor], context: int) -> list[Tensor]:
    """Join documents and cut them into rows without padding.

    A row may start within a document, and a token sees the documents before its own in the row, as in GPT-3's training
    (https://arxiv.org/abs/2005.14165, appendix B). The rest that fills no row is left out.

    Args:
        documents: Tokens of each document.
        context: Inputs per row. A row has one token more, for the label of the last input.
    """
    stream = torch.cat(list(documents))
    rows = (len(stream) - 1) // context
    return [stream[row * context : (row + 1) * context + 1] for row in range(rows)]


def collate(rows: Sequence[Tensor]) -> Batch:
    """Pad token sequences to the longest of them, and split them into inputs and labels.

    Causal attention needs no mask for this padding: it comes last, so no real token sees it.

    Args:
        rows: Token sequences of any length from 2 on.
    """
    inputs = pad_sequence([row[:-1] for row in rows], batch_first=True, padding_value=END)
    labels = pad_sequence([row[1:] for row in rows], batch_first=True, padding_value=IGNORED)
    return {"input_ids": inputs, "labels": labels}


class LengthBuckets(Sampler[list[int]]):
    """Batches of sequences of similar length, in random order.

    Args:
        lengths: Length of each sequence.
        batch_size: Sequences per batch.
        seed: Seed of the order.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self._lengths = lengths
        self._batch_size = batch_size
        self._random = random.Random(seed)

    def __len__(self) -> int:
        return -(-len(self._lengths) // self._batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = list(range(len(self._lengths)))
        self._random.shuffle(order)
        bucket = BUCKET_BATCHES * self._batch_size
        batches = []
        for start in range(0, len(order), bucket):
            similar = sorted(order[start : start + bucket], key=self._lengths.__getitem__)
            batches += [similar[at : at + self._batch_size] for at in range(0, len(similar), self._batch_size)]
        self._random.shuffle(batches)
        return iter(batches)
