"""A small GPT: pre-norm Transformer blocks with causal attention and tied embeddings."""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

INITIAL_STD = 0.02
"""Standard deviation of the initial weights, as in GPT-2."""


class GPT(nn.Module):
    """A decoder-only Transformer.

    Args:
        vocabulary: Number of tokens.
        context: Longest sequence.
        layers: Blocks.
        heads: Attention heads per block.
        width: Size of the residual stream, a multiple of `heads`.
        dropout: Probability of dropout.
        checkpointing: Recompute each block in the backward pass instead of keeping its activations.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        *,
        layers: int,
        heads: int,
        width: int,
        dropout: float = 0.0,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.token_embedding.weight
        self.apply(_initialize)
        # Each block adds two outputs to the residual stream. Smaller ones keep its variance at the same level.
        for name, parameter in self.named_parameters():
            if name.endswith("output.weight"):
                nn.init.normal_(parameter, std=INITIAL_STD / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the next token, ``(batch, time, vocabulary)``, of tokens ``(batch, time)``."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            if self.checkpointing and self.training:
                x = cast(Tensor, checkpoint(block, x, use_reentrant=False))
            else:
                x = block(x)
        return cast(Tensor, self.head(self.norm(x)))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each on normalized input and added to the residual stream."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this block, of the same shape as before."""
        x = x + self.attention(self.attention_norm(x))
        return cast(Tensor, x + self.mlp(self.mlp_norm(x)))


class CausalAttention(nn.Module):
    """Multi-head attention in which no token sees a later one."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values, ``(batch, time, width)``."""
        batch, time, width = x.shape
        qkv = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return cast(Tensor, self.output(attended.transpose(1, 2).reshape(batch, time, width)))


class MLP(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, 4 * width)
        self.output = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, ``(batch, time, width)``."""
        return cast(Tensor, self.dropout(self.output(functional.gelu(self.hidden(x)))))


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
