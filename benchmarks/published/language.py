"""Text: read, written and translated; and text beside pictures."""

from __future__ import annotations

from typing import Any

import torch

from published._published import Published, classes, pictures, tokens


def _gpt2() -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=100, n_positions=64, n_embd=128, n_layer=4, n_head=4)
    return GPT2LMHeadModel(config).train(), {"input_ids": tokens(8, 32)}


def _llama() -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=100,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    ids = tokens(8, 32)
    return LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids}


def _mixtral() -> tuple[Any, Any]:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    return MixtralForCausalLM(config).train(), {"input_ids": tokens(8, 16)}


def _mamba() -> tuple[Any, Any]:
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(vocab_size=100, hidden_size=64, state_size=8, num_hidden_layers=4)
    return MambaForCausalLM(config).train(), {"input_ids": tokens(8, 16)}


def _bert() -> tuple[Any, Any]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=100,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
    )
    ids = tokens(8, 32)
    labels = torch.where(torch.rand(8, 32) < 0.15, ids, -100)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    return BertForMaskedLM(config).train(), batch


def _distilbert() -> tuple[Any, Any]:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=100, dim=128, n_layers=3, n_heads=4, hidden_dim=256, num_labels=2
    )
    model = DistilBertForSequenceClassification(config).train()
    ids = tokens(16, 32)
    return model, {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "label": classes(16, of=2),
    }


def _t5() -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=100, d_model=64, d_kv=16, d_ff=128, num_layers=3, num_heads=4)
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config).train()
    return model, {"input_ids": tokens(8, 24), "labels": tokens(8, 12)}


def _clip() -> tuple[Any, Any]:
    from transformers import CLIPConfig, CLIPModel

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    config = CLIPConfig(
        text_config={**small, "vocab_size": 100, "eos_token_id": 99, "num_attention_heads": 4},
        vision_config={**small, "image_size": 32, "patch_size": 8, "num_attention_heads": 4},
        projection_dim=32,
    )
    batch = {"input_ids": tokens(16, 16), "pixel_values": pictures(16, 32), "return_loss": True}
    return CLIPModel(config).train(), batch


def _x_transformers() -> tuple[Any, Any]:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=128, depth=4, heads=4, rotary_pos_emb=True)
    model = AutoregressiveWrapper(
        TransformerWrapper(num_tokens=100, max_seq_len=64, attn_layers=layers)
    )
    return model, tokens(8, 33)


def _performer() -> tuple[Any, Any]:
    from performer_pytorch import PerformerLM

    model = PerformerLM(num_tokens=100, max_seq_len=32, dim=64, depth=3, heads=4, causal=False)
    ids = tokens(8, 32)
    return model, (ids, ids)


def _lightning_transformer() -> tuple[Any, Any]:
    from lightning.pytorch.demos import LightningTransformer

    ids = tokens(8, 33)
    return LightningTransformer(vocab_size=100), (ids[:, :-1], ids[:, 1:])


def _torch_transformer() -> tuple[Any, Any]:
    from torch.nn import Transformer

    model = Transformer(64, 4, 2, 2, 128, batch_first=True)
    return model, (torch.randn(8, 12, 64), torch.randn(8, 10, 64), torch.randn(8, 10, 64))


LANGUAGE = (
    Published("transformers", "GPT2LMHeadModel", _gpt2),
    Published("transformers", "LlamaForCausalLM", _llama),
    Published("transformers", "MixtralForCausalLM", _mixtral),
    Published("transformers", "MambaForCausalLM", _mamba),
    Published("transformers", "BertForMaskedLM", _bert),
    Published("transformers", "DistilBertForSequenceClassification", _distilbert),
    Published("transformers", "T5ForConditionalGeneration", _t5),
    Published("transformers", "CLIPModel", _clip),
    Published("x-transformers", "AutoregressiveWrapper", _x_transformers),
    Published("performer-pytorch", "PerformerLM", _performer),
    Published("lightning", "LightningTransformer", _lightning_transformer),
    Published("torch", "nn.Transformer", _torch_transformer),
)
