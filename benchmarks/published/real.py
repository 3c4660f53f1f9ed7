"""Models at the sizes at which they were published, for an accelerator."""

from __future__ import annotations

from typing import Any

from published._published import Published, classes, pictures, tokens


def _gpt2() -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = tokens(8, 1024, 50_257)
    return GPT2LMHeadModel(GPT2Config()).train(), {"input_ids": ids, "labels": ids}


def _llama() -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
    )
    ids = tokens(4, 1024, 128_256)
    return LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids}


def _mixtral() -> tuple[Any, Any]:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=12,
        num_key_value_heads=4,
        num_local_experts=8,
    )
    ids = tokens(4, 512, 32_000)
    return MixtralForCausalLM(config).train(), {"input_ids": ids, "labels": ids}


def _mamba() -> tuple[Any, Any]:
    from transformers import MambaConfig, MambaForCausalLM

    ids = tokens(4, 128, 50_280)
    return MambaForCausalLM(MambaConfig()).train(), {"input_ids": ids, "labels": ids}


def _bert() -> tuple[Any, Any]:
    from transformers import BertConfig, BertForMaskedLM

    ids = tokens(32, 256, 30_522)
    return BertForMaskedLM(BertConfig()).train(), {"input_ids": ids, "labels": ids}


def _t5() -> tuple[Any, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).train()
    return model, {"input_ids": tokens(16, 256, 32_128), "labels": tokens(16, 64, 32_128)}


def _vit() -> tuple[Any, Any]:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_labels=1000)).train()
    return model, {"pixel_values": pictures(32, 224), "labels": classes(32, of=1000)}


def _swin() -> tuple[Any, Any]:
    from transformers import Swinv2Config, Swinv2ForImageClassification

    model = Swinv2ForImageClassification(Swinv2Config(num_labels=1000)).train()
    return model, {"pixel_values": pictures(32, 224), "labels": classes(32, of=1000)}


def _convnext() -> tuple[Any, Any]:
    from transformers import ConvNextV2Config, ConvNextV2ForImageClassification

    model = ConvNextV2ForImageClassification(ConvNextV2Config(num_labels=1000)).train()
    return model, {"pixel_values": pictures(32, 224), "labels": classes(32, of=1000)}


def _segformer() -> tuple[Any, Any]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=150)).train()
    return model, {"pixel_values": pictures(8, 512), "labels": classes(8, 512, 512, of=150)}


def _clip() -> tuple[Any, Any]:
    from transformers import CLIPConfig, CLIPModel

    batch = {
        "input_ids": tokens(64, 77, 49_000),
        "pixel_values": pictures(64, 224),
        "return_loss": True,
    }
    return CLIPModel(CLIPConfig()).train(), batch


def _whisper() -> tuple[Any, Any]:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration(WhisperConfig()).train()
    return model, {"input_features": torch.randn(8, 80, 3000), "labels": tokens(8, 64, 50_000)}


def _torchvision(name: str, count: int, side: int) -> Any:
    def make() -> tuple[Any, Any]:
        import torchvision

        model = getattr(torchvision.models, name)(num_classes=1000).train()
        return model, (pictures(count, side), classes(count, of=1000))

    return make


def _deeplab() -> tuple[Any, Any]:
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=21
    )
    return model.train(), (pictures(8, 256), classes(8, 256, 256, of=21))


REAL_SIZES = (
    Published("transformers", "GPT2LMHeadModel", _gpt2),
    Published("transformers", "LlamaForCausalLM", _llama),
    Published("transformers", "MixtralForCausalLM", _mixtral),
    Published("transformers", "MambaForCausalLM", _mamba),
    Published("transformers", "BertForMaskedLM", _bert),
    Published("transformers", "T5ForConditionalGeneration", _t5),
    Published("transformers", "ViTForImageClassification", _vit),
    Published("transformers", "Swinv2ForImageClassification", _swin),
    Published("transformers", "ConvNextV2ForImageClassification", _convnext),
    Published("transformers", "SegformerForSemanticSegmentation", _segformer),
    Published("transformers", "CLIPModel", _clip),
    Published("transformers", "WhisperForConditionalGeneration", _whisper),
    Published("torchvision", "resnet50", _torchvision("resnet50", 64, 224)),
    Published("torchvision", "resnet152", _torchvision("resnet152", 32, 224)),
    Published("torchvision", "vgg16_bn", _torchvision("vgg16_bn", 32, 224)),
    Published("torchvision", "vgg19", _torchvision("vgg19", 32, 224)),
    Published("torchvision", "densenet121", _torchvision("densenet121", 32, 224)),
    Published("torchvision", "efficientnet_b0", _torchvision("efficientnet_b0", 64, 224)),
    Published("torchvision", "mobilenet_v3_large", _torchvision("mobilenet_v3_large", 64, 224)),
    Published("torchvision", "convnext_tiny", _torchvision("convnext_tiny", 32, 224)),
    Published("torchvision", "vit_b_16", _torchvision("vit_b_16", 32, 224)),
    Published("torchvision", "regnet_y_16gf", _torchvision("regnet_y_16gf", 16, 224)),
    Published("torchvision", "inception_v3", _torchvision("inception_v3", 32, 299)),
    Published("torchvision", "deeplabv3_resnet50", _deeplab),
)
