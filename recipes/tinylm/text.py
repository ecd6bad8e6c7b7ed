"""Generate documents from a small grammar, and encode them as bytes."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

VOCABULARY = 128
"""Tokens: the bytes of ASCII. The text needs fewer, but matrix products are fastest at multiples of 64."""

END = 0
"""Token after each document. The text has no zero bytes."""

_NAMES = ("Ada", "Ben", "Cleo", "Dana", "Eli", "Faye", "Gus", "Hana")
_ADJECTIVES = ("old", "red", "small", "quiet", "heavy", "bright", "broken", "wooden")
_NOUNS = ("kite", "boat", "lamp", "drum", "clock", "basket", "letter", "ladder", "window", "bridge")
_ACTIONS = ("finds", "paints", "carries", "repairs", "hides", "sells", "borrows", "watches")
_PLACES = ("in the garden", "by the river", "near the station", "on the roof", "behind the mill")
_ENDINGS = ("It is late.", "Nobody asks why.", "Then it rains.", "The others laugh.")

_SENTENCES = 4.0
"""Mean number of sentences per document."""

_MOST_SENTENCES = 30


def generate_documents(number: int, seed: int) -> list[str]:
    """Generate short stories. Their lengths vary as those of real documents do: most are short, and some are long.

    Args:
        number: Number of documents.
        seed: Seed of the generator.

    Example:
        >>> generate_documents(1, seed=3)[0].split(".")[0]
        'Dana watches a small bridge behind the mill'
    """
    generator = random.Random(seed)
    return [_document(generator) for _ in range(number)]


def _document(generator: random.Random) -> str:
    name, noun = generator.choice(_NAMES), generator.choice(_NOUNS)
    sentences = [_sentence(generator, name, f"a {generator.choice(_ADJECTIVES)} {noun}")]
    more = min(int(generator.expovariate(1 / (_SENTENCES - 1))), _MOST_SENTENCES)
    sentences += [_sentence(generator, generator.choice((name, name, "Everyone")), f"the {noun}") for _ in range(more)]
    return " ".join([*sentences, generator.choice(_ENDINGS)])


def _sentence(generator: random.Random, subject: str, thing: str) -> str:
    place = f" {generator.choice(_PLACES)}" if generator.random() < 0.5 else ""
    return f"{subject} {generator.choice(_ACTIONS)} {thing}{place}."


def encode(document: str) -> Tensor:
    """Return the tokens of a document, with `END` at the end."""
    return torch.tensor([*document.encode("ascii"), END])


def decode(tokens: Iterable[int]) -> str:
    """Return the text of tokens, up to the first `END`."""
    text = bytes(tokens)
    return text.partition(bytes([END]))[0].decode("ascii")


def unigram_entropy(documents: Sequence[Tensor]) -> float:
    """Return the entropy of single tokens in nats: the loss of a model that knows only how frequent each one is."""
    counts = Counter(token for document in documents for token in document.tolist())
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values())
