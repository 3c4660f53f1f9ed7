"""Pictures: classified, segmented, searched, and completed."""

from __future__ import annotations

from typing import Any

import torch

from published._published import Published, classes, pictures


def _vit() -> tuple[Any, Any]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        image_size=32,
        patch_size=8,
        num_labels=10,
    )
    model = ViTForImageClassification(config).train()
    return model, {"pixel_values": pictures(16, 32), "labels": classes(16)}


def _resnet() -> tuple[Any, Any]:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=32, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], num_labels=10
    )
    model = ResNetForImageClassification(config).train()
    return model, {"pixel_values": pictures(16, 64), "labels": classes(16)}


def _convnext() -> tuple[Any, Any]:
    from transformers import ConvNextV2Config, ConvNextV2ForImageClassification

    config = ConvNextV2Config(hidden_sizes=[32, 64, 128, 256], depths=[2, 2, 3, 2], num_labels=10)
    model = ConvNextV2ForImageClassification(config).train()
    return model, {"pixel_values": pictures(16, 64), "labels": classes(16)}


def _swin() -> tuple[Any, Any]:
    from transformers import Swinv2Config, Swinv2ForImageClassification

    config = Swinv2Config(
        image_size=64,
        patch_size=4,
        embed_dim=32,
        depths=[2, 2, 2],
        num_heads=[2, 4, 8],
        window_size=4,
        num_labels=10,
    )
    model = Swinv2ForImageClassification(config).train()
    return model, {"pixel_values": pictures(16, 64), "labels": classes(16)}


def _segformer() -> tuple[Any, Any]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=5)).train()
    return model, {"pixel_values": pictures(4, 64), "labels": classes(4, 64, 64, of=5)}


def _yolos() -> tuple[Any, Any]:
    from transformers import YolosConfig, YolosForObjectDetection

    config = YolosConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=[64, 64],
        patch_size=8,
        num_detection_tokens=10,
        num_labels=3,
    )
    boxes = torch.tensor([[0.5, 0.5, 0.3, 0.2], [0.3, 0.6, 0.1, 0.2]])
    labels = [{"class_labels": torch.tensor([0, 2]), "boxes": boxes} for _ in range(4)]
    return YolosForObjectDetection(config).train(), {
        "pixel_values": pictures(4, 64),
        "labels": labels,
    }


def _masked_autoencoder() -> tuple[Any, Any]:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    config = ViTMAEConfig(
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=256,
        decoder_hidden_size=64,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=128,
        image_size=32,
        patch_size=4,
    )
    return ViTMAEForPreTraining(config).train(), {"pixel_values": pictures(16, 32)}


def _video() -> tuple[Any, Any]:
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    config = TimesformerConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_frames=4,
        num_labels=10,
    )
    model = TimesformerForVideoClassification(config).train()
    return model, {"pixel_values": torch.randn(4, 4, 3, 32, 32), "labels": classes(4)}


def _monai_unet() -> tuple[Any, Any]:
    from monai.networks.nets import UNet

    model = UNet(
        spatial_dims=2,
        in_channels=1,
        out_channels=3,
        channels=(16, 32, 64, 128),
        strides=(2, 2, 2),
        num_res_units=2,
    )
    return model, {"image": pictures(4, 64, 1), "label": classes(4, 1, 64, 64, of=3)}


def _monai_volumes() -> tuple[Any, Any]:
    from monai.networks.nets import SegResNet

    model = SegResNet(spatial_dims=3, init_filters=8, in_channels=1, out_channels=2)
    return model, {
        "image": torch.randn(2, 1, 16, 16, 16),
        "label": classes(2, 1, 16, 16, 16, of=2),
    }


def _monai_densenet() -> tuple[Any, Any]:
    from monai.networks.nets import DenseNet

    model = DenseNet(
        spatial_dims=2, in_channels=3, out_channels=10, init_features=32, growth_rate=16,
        block_config=(3, 6, 6, 3),
    )  # fmt: skip
    return model, (pictures(16, 64), classes(16))


def _monai_unetr() -> tuple[Any, Any]:
    from monai.networks.nets import UNETR

    model = UNETR(
        in_channels=1,
        out_channels=3,
        img_size=(64, 64),
        feature_size=8,
        hidden_size=96,
        mlp_dim=192,
        num_heads=4,
        spatial_dims=2,
    )
    return model, (pictures(4, 64, 1), classes(4, 64, 64, of=3))


def _efficientnet() -> tuple[Any, Any]:
    from efficientnet_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-b0", num_classes=10, image_size=64)
    return model, (pictures(8, 64), classes(8))


VISION = (
    Published("transformers", "ViTForImageClassification", _vit),
    Published("transformers", "ResNetForImageClassification", _resnet),
    Published("transformers", "ConvNextV2ForImageClassification", _convnext),
    Published("transformers", "Swinv2ForImageClassification", _swin),
    Published("transformers", "SegformerForSemanticSegmentation", _segformer),
    Published("transformers scipy", "YolosForObjectDetection", _yolos),
    Published("transformers", "ViTMAEForPreTraining", _masked_autoencoder),
    Published("transformers", "TimesformerForVideoClassification", _video),
    Published("monai", "UNet", _monai_unet),
    Published("monai", "SegResNet", _monai_volumes),
    Published("monai", "DenseNet", _monai_densenet),
    Published("monai einops", "UNETR", _monai_unetr),
    Published("efficientnet_pytorch", "EfficientNet", _efficientnet),
)
