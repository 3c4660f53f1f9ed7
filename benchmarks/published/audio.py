"""Sound, and other series in time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from published._published import Published, classes, tokens


def _wav2vec() -> tuple[Any, Any]:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=32,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        conv_dim=(64,) * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
    )
    model = Wav2Vec2ForCTC(config).train()
    return model, {"input_values": torch.randn(4, 8000), "labels": tokens(4, 8, 32)}


def _whisper() -> tuple[Any, Any]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=100,
        num_mel_bins=40,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).train()
    return model, {"input_features": torch.randn(4, 40, 100), "labels": tokens(4, 16)}


def _spectrograms() -> tuple[Any, Any]:
    from transformers import ASTConfig, ASTForAudioClassification

    config = ASTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        max_length=64,
        num_mel_bins=32,
        num_labels=10,
    )
    model = ASTForAudioClassification(config).train()
    return model, {"input_values": torch.randn(8, 64, 32), "labels": classes(8)}


def _conformer() -> tuple[Any, Any]:
    from conformer import Conformer

    model = Conformer(dim=64, depth=3, dim_head=16, heads=4, conv_kernel_size=15)
    return model, (torch.randn(4, 50, 64), torch.randn(4, 50, 64))


def _tcn() -> tuple[Any, Any]:
    from pytorch_tcn import TCN

    model = TCN(num_inputs=1, num_channels=[32] * 4, output_projection=10)
    return model, (torch.randn(8, 1, 128), classes(8, 128))


def _patches() -> tuple[Any, Any]:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=3,
        context_length=64,
        prediction_length=16,
        patch_length=8,
        patch_stride=8,
        d_model=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        ffn_dim=128,
    )
    model = PatchTSTForPrediction(config).train()
    return model, {"past_values": torch.randn(8, 64, 3), "future_values": torch.randn(8, 16, 3)}


def _lstm() -> tuple[Any, Any]:
    model = nn.LSTM(input_size=16, hidden_size=64, num_layers=2, batch_first=True)
    return model, (torch.randn(16, 20, 16), torch.randn(16, 20, 64))


AUDIO = (
    Published("transformers", "Wav2Vec2ForCTC", _wav2vec),
    Published("transformers", "WhisperForConditionalGeneration", _whisper),
    Published("transformers", "ASTForAudioClassification", _spectrograms),
    Published("conformer", "Conformer", _conformer),
    Published("pytorch-tcn", "TCN", _tcn),
    Published("transformers", "PatchTSTForPrediction", _patches),
    Published("torch", "nn.LSTM", _lstm),
)
