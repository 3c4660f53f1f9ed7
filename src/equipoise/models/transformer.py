"""A small transformer that reads an image row by row."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.numerics.checks import check_size, check_within
from equipoise.numerics.options import named_options


class RowTransformer(nn.Module):
    """Transformer with one token for each row; see :func:`transformer_classifier`."""

    def __init__(
        self,
        token_features: int,
        classes: int,
        *,
        tokens: int,
        width: int = 64,
        heads: int = 4,
        depth: int = 4,
        dropout: float = 0.0,
        norm_first: bool = True,
    ):
        super().__init__()
        check_size(token_features=token_features, classes=classes, tokens=tokens)
        check_size(width=width, heads=heads, depth=depth)
        if width % heads:
            raise ValueError(f"heads must divide width, got {heads} heads for a width of {width}.")
        check_within("dropout", dropout, "[0, 1)")

        def layer() -> nn.TransformerEncoderLayer:
            return nn.TransformerEncoderLayer(
                width,
                heads,
                dim_feedforward=4 * width,
                dropout=dropout,
                activation="gelu",
                batch_first=True,
                norm_first=norm_first,
            )

        self.tokens = tokens
        self.token_features = token_features
        self.embedding = nn.Linear(token_features, width)
        # 0.02 as in BERT and ViT: small beside the embedded rows.
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, width))
        last = nn.LayerNorm(width) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer(), 1, norm=last, enable_nested_tensor=False)
        # PyTorch's encoder copies its first layer with its weights; these are drawn independently.
        self.encoder.layers = nn.ModuleList(layer() for _ in range(depth))
        self.encoder.num_layers = depth
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[N, classes]`` of images ``[N, C, H, W]``.

        Raises:
            ValueError: If the images have another shape than the model was built for.
        """
        if x.ndim != 4 or x.shape[2] != self.tokens or self._row(x) != self.token_features:
            raise ValueError(
                f"Expected images [N, C, H, W] with H = {self.tokens} rows of C·W = "
                f"{self.token_features} numbers, got {list(x.shape)}."
            )
        rows = x.transpose(1, 2).flatten(2)  # [N, H, C * W]
        encoded: Tensor = self.encoder(self.embedding(rows) + self.positions)
        logits: Tensor = self.head(encoded.mean(dim=1))
        return logits

    @staticmethod
    def _row(x: Tensor) -> int:
        return x.shape[1] * x.shape[3]


@named_options
def transformer_classifier(
    token_features: int,
    classes: int,
    *,
    tokens: int,
    width: int = 64,
    heads: int = 4,
    depth: int = 4,
    dropout: float = 0.0,
    norm_first: bool = True,
) -> RowTransformer:
    r"""A transformer classifier with one token for each row of an image.

    .. math:: \text{logits} = W \, \frac{1}{T} \sum_{t=1}^{T}
              \mathrm{encoder}(E x + p)_t + b

    with rows :math:`x_t`, embedding :math:`E` and learned positions :math:`p`.

    Args:
        token_features: Numbers in one row: channels times image width.
        classes: Number of logits.
        tokens: Rows: the image's height.
        width: Features of an embedded token.
        heads: Attention heads; must divide ``width``.
        depth: Encoder layers, each with a feed-forward part of ``4 * width`` neurons.
        dropout: Probability of dropping, in [0, 1); active in training only.
        norm_first: Whether layer normalisation stands before each part (and once at the end)
            or, as in the original, after each residual sum.

    Raises:
        ValueError: If a size is not positive, ``heads`` does not divide ``width``, or
            ``dropout`` is out of range.

    Shape:
        - Input: ``[N, C, H, W]`` with ``H == tokens`` and ``C * W == token_features``.
        - Output: ``[N, classes]``.

    Examples:
        >>> model = transformer_classifier(28, 10, tokens=28)
        >>> tuple(model(torch.zeros(2, 1, 28, 28)).shape)
        (2, 10)

    References:
        [vaswani2017] Attention is all you need;
        [xiong2020] On layer normalization in the transformer architecture.
    """
    return RowTransformer(
        token_features,
        classes,
        tokens=tokens,
        width=width,
        heads=heads,
        depth=depth,
        dropout=dropout,
        norm_first=norm_first,
    )
