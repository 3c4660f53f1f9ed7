"""Transformers for images and language, and the MLP-Mixer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from architectures._architecture import (
    CLASSES,
    SIDE,
    TOKENS,
    VOCABULARY,
    Architecture,
    Batch,
    cross_entropy,
    images,
    texts,
    token_cross_entropy,
)
from architectures._attention import (
    Attention,
    BiasedSoftmax,
    CausalSoftmax,
    PackedProjections,
    Rotary,
    SeparateProjections,
    Windowed,
    fused,
)
from architectures._parts import (
    Permute,
    Residual,
    initialise_,
    normal_,
    truncated_normal_,
)

MASK = VOCABULARY - 1
MASKED = 10  # tokens of each text: about 15 %


def pre_norm(norm: Callable[[], nn.Module], mixer: nn.Module, mlp: nn.Module) -> list[nn.Module]:
    """Two residual blocks, one among tokens and one in each, both with a norm before."""
    return [Residual(mixer, before=norm()), Residual(mlp, before=norm())]


def mlp(width: int, hidden: int, activation: Callable[[], nn.Module] = nn.GELU) -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(width, hidden), activation(), nn.Linear(hidden, width))


def patches(width: int, size: int) -> list[nn.Module]:
    """Tokens ``[N, T, width]``, one for each patch of an image."""
    return [nn.Conv2d(3, width, size, size), nn.Flatten(2), Permute(0, 2, 1)]


class ClassToken(nn.Module):
    """Prepend a learned token, and add learned positions to all."""

    def __init__(self, width: int, tokens: int):
        super().__init__()
        self.token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, width), std=0.02))
        positions = torch.empty(1, tokens + 1, width)
        self.positions = nn.Parameter(nn.init.trunc_normal_(positions, std=0.02))

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[N, T + 1, width]`` from ``[N, T, width]``."""
        return torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions


class First(nn.Module):
    """Keep the first token."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``[N, width]`` of ``[N, T, width]``."""
        return x[:, 0]


class Mean(nn.Module):
    """Average over some dimensions."""

    def __init__(self, *dims: int):
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        """Return x without those dimensions."""
        return x.mean(self.dims)


def vit(width: int = 128, heads: int = 4, depth: int = 4, patch: int = 4) -> nn.Module:
    """ViT [Dosovitskiy 2020, arXiv:2010.11929] from DeiT's initialisation [arXiv:2012.12877]."""
    norm = partial(nn.LayerNorm, width, eps=1e-6)
    blocks: list[nn.Module] = []
    for _ in range(depth):
        attention = Attention(width, PackedProjections(width, heads), fused())
        blocks += pre_norm(norm, attention, mlp(width, 4 * width))
    model = nn.Sequential(
        *patches(width, patch),
        ClassToken(width, (SIDE // patch) ** 2),
        *blocks,
        norm(),
        First(),
        nn.Linear(width, CLASSES),
    )
    initialise_(model, truncated_normal_(0.02), nn.Linear)
    return model


def mixer(width: int = 128, depth: int = 4, patch: int = 4) -> nn.Module:
    """MLP-Mixer: MLPs across tokens and across features [Tolstikhin 2021, arXiv:2105.01601]."""
    tokens = (SIDE // patch) ** 2
    norm = partial(nn.LayerNorm, width)
    blocks: list[nn.Module] = []
    for _ in range(depth):
        across = nn.Sequential(Permute(0, 2, 1), mlp(tokens, 2 * tokens), Permute(0, 2, 1))
        blocks += pre_norm(norm, across, mlp(width, 4 * width))
    head = nn.Linear(width, CLASSES)
    return nn.Sequential(*patches(width, patch), *blocks, norm(), Mean(1), head)


class PatchMerging(nn.Module):
    """Halve an image's resolution: 2×2 tokens become one of twice the width."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``[N, H / 2, W / 2, 2 * width]`` from ``[N, H, W, width]``."""
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        merged: Tensor = self.reduction(self.norm(torch.cat(corners, dim=-1)))
        return merged


def swin(width: int = 96, head_width: int = 32, patch: int = 2, window: int = 4) -> nn.Module:
    """Swin without shifts: two stages of two blocks [Liu 2021, arXiv:2103.14030]."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, patch, patch),
        Permute(0, 2, 3, 1),
        nn.LayerNorm(width),
    ]
    for stage in range(2):
        if stage > 0:
            layers.append(PatchMerging(width))
            width *= 2
        heads = width // head_width
        for _ in range(2):
            attention = Attention(
                width, PackedProjections(width, heads), BiasedSoftmax(window, heads)
            )
            norm = partial(nn.LayerNorm, width)
            layers += pre_norm(norm, Windowed(attention, window), mlp(width, 4 * width))
    layers += [nn.LayerNorm(width), Mean(1, 2), nn.Linear(width, CLASSES)]
    model = nn.Sequential(*layers)
    initialise_(model, truncated_normal_(0.02), nn.Linear)
    return model


class LanguageModel(nn.Module):
    """Embedded tokens through a body to logits of the next token.

    Args:
        body: Blocks and the last norm.
        width: Features of a token.
        positions: Whether learned positions are added.
        tied: Whether the embedding's weight is the head's as well.
    """

    def __init__(self, body: list[nn.Module], width: int, *, positions: bool, tied: bool):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(TOKENS, width) if positions else None
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits ``[N, T, vocabulary]`` of tokens ``[N, T]``."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        logits: Tensor = self.head(self.body(x))
        return logits


def gpt2(width: int = 128, heads: int = 4, depth: int = 4) -> nn.Module:
    """GPT-2 [Radford 2019], without dropout.

    Weights start from a standard deviation of 0.02, divided by the root of the number of
    residual blocks where a branch ends.
    """
    blocks: list[nn.Module] = []
    ends: list[nn.Module] = []
    for _ in range(depth):
        attention = Attention(width, PackedProjections(width, heads), fused(causal=True))
        feedforward = mlp(width, 4 * width, partial(nn.GELU, approximate="tanh"))
        blocks += pre_norm(partial(nn.LayerNorm, width), attention, feedforward)
        ends += [attention.out, feedforward[-1]]
    model = LanguageModel([*blocks, nn.LayerNorm(width)], width, positions=True, tied=True)
    initialise_(model, normal_(0.02), nn.Linear, nn.Embedding)
    for end in ends:
        initialise_(end, normal_(0.02 * len(ends) ** -0.5), nn.Linear)
    return model


def gpt_explicit(width: int = 128, heads: int = 4, depth: int = 4) -> nn.Module:
    """A GPT as teaching code writes it: three projections, softmax, an untied head."""
    blocks: list[nn.Module] = []
    for _ in range(depth):
        attention = Attention(width, SeparateProjections(width, heads), CausalSoftmax(TOKENS))
        blocks += pre_norm(partial(nn.LayerNorm, width), attention, mlp(width, 4 * width))
    model = LanguageModel([*blocks, nn.LayerNorm(width)], width, positions=True, tied=False)
    initialise_(model, normal_(0.02), nn.Linear, nn.Embedding)
    return model


class RMSNorm(nn.Module):
    """Divide by the root mean square, written as arithmetic [Zhang 2019, arXiv:1910.07467]."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class SwiGLU(nn.Module):
    """A hidden layer gated by SiLU of another [Shazeer 2020, arXiv:2002.05202]."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform the last dimension."""
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


def llama(width: int = 128, heads: int = 4, depth: int = 4) -> nn.Module:
    """Llama [Touvron 2023, arXiv:2302.13971], drawn with a standard deviation of 0.02."""
    hidden = -(-8 * width // 3 // 64) * 64  # 8/3 of the width, rounded up as the original does
    blocks: list[nn.Module] = []
    for _ in range(depth):
        rotate = Rotary(width // heads, TOKENS)
        project = SeparateProjections(width, heads, bias=False, rotate=rotate)
        attention = Attention(width, project, fused(causal=True), bias=False)
        blocks += pre_norm(partial(RMSNorm, width), attention, SwiGLU(width, hidden))
    model = LanguageModel([*blocks, RMSNorm(width)], width, positions=False, tied=False)
    initialise_(model, normal_(0.02), nn.Linear, nn.Embedding)
    return model


def bert(width: int = 128, heads: int = 4, depth: int = 4) -> nn.Module:
    """BERT's encoder, norms after the sums, for one segment [Devlin 2018, arXiv:1810.04805].

    The head for masked tokens is tied to the embedding, without its bias.
    """
    layers = [
        nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.1,
            activation=F.gelu,
            layer_norm_eps=1e-12,
            batch_first=True,
        )
        for _ in range(depth)
    ]
    before = [nn.LayerNorm(width, eps=1e-12), nn.Dropout(0.1)]
    after = [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=1e-12)]
    model = LanguageModel([*before, *layers, *after], width, positions=True, tied=True)
    draw = truncated_normal_(0.02)
    initialise_(model, draw, nn.Linear, nn.Embedding)
    for layer in layers:
        draw(layer.self_attn.in_proj_weight)
    return model


def masked_texts(size: int, generator: torch.Generator) -> Batch:
    """Random tokens, some masked; targets are those under the masks, and -100 elsewhere."""
    tokens = torch.randint(MASK, (size, TOKENS), generator=generator)
    masked = torch.rand(size, TOKENS, generator=generator).argsort(dim=1) < MASKED
    return tokens.masked_fill(masked, MASK), tokens.masked_fill(~masked, -100)


TWELVE_LAYERS = Architecture(
    "gpt2 of 12 layers", partial(gpt2, depth=12), texts, token_cross_entropy
)
TRANSFORMERS = (
    Architecture("vit", vit, images, cross_entropy),
    Architecture("swin", swin, images, cross_entropy),
    Architecture("mlp_mixer", mixer, images, cross_entropy),
    Architecture("gpt2", gpt2, texts, token_cross_entropy),
    Architecture("gpt_explicit", gpt_explicit, texts, token_cross_entropy),
    Architecture("llama", llama, texts, token_cross_entropy),
    Architecture("bert", bert, masked_texts, token_cross_entropy),
)
