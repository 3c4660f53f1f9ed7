"""Decisions, graphs, tables, fields and pictures that are made."""

from __future__ import annotations

from typing import Any

import torch

from published._published import Published, classes, pictures


def _actor_critic() -> tuple[Any, Any]:
    import gymnasium
    from stable_baselines3.common.policies import ActorCriticPolicy

    observed = gymnasium.spaces.Box(-1.0, 1.0, (8,))
    model = ActorCriticPolicy(observed, gymnasium.spaces.Discrete(4), lambda _: 3e-4)
    return model, torch.randn(64, 8)


def _nature_cnn() -> tuple[Any, Any]:
    import gymnasium
    from stable_baselines3.dqn.policies import CnnPolicy

    seen = gymnasium.spaces.Box(0, 255, (4, 84, 84), dtype="uint8")
    policy = CnnPolicy(seen, gymnasium.spaces.Discrete(6), lambda _: 1e-4)
    model = policy.q_net.train()
    return model, (torch.randint(256, (8, 4, 84, 84), dtype=torch.uint8), torch.randn(8, 6))


def _tianshou() -> tuple[Any, Any]:
    from tianshou.utils.net.common import Net

    model = Net(state_shape=8, action_shape=4, hidden_sizes=[128, 128, 128])
    return model, (torch.randn(64, 8), classes(64, of=4))


def _decision_transformer() -> tuple[Any, Any]:
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    config = DecisionTransformerConfig(
        state_dim=8, act_dim=3, hidden_size=64, n_layer=3, n_head=4, max_ep_len=100
    )
    steps = torch.arange(12).expand(8, -1)
    batch = {
        "states": torch.randn(8, 12, 8),
        "actions": torch.randn(8, 12, 3),
        "rewards": torch.randn(8, 12, 1),
        "returns_to_go": torch.randn(8, 12, 1),
        "timesteps": steps,
        "attention_mask": torch.ones(8, 12, dtype=torch.long),
    }
    return DecisionTransformerModel(config).train(), batch


def _graph(labels: torch.Tensor | None = None) -> Any:
    from torch_geometric.data import Data

    nodes, edges = 200, 800
    y = classes(nodes, of=5) if labels is None else labels
    return Data(x=torch.randn(nodes, 32), edge_index=torch.randint(nodes, (2, edges)), y=y)


def _gcn() -> tuple[Any, Any]:
    from torch_geometric.nn import GCN

    return GCN(32, 64, num_layers=4, out_channels=5, norm="batch"), _graph()


def _gat() -> tuple[Any, Any]:
    from torch_geometric.nn import GAT

    return GAT(32, 64, num_layers=3, out_channels=5, heads=4), _graph()


def _sage() -> tuple[Any, Any]:
    from torch_geometric.nn import GraphSAGE

    return GraphSAGE(32, 64, num_layers=3, out_channels=5), _graph()


def _molecules() -> tuple[Any, Any]:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import AttentiveFP

    def molecule() -> Data:
        bonds = torch.randint(9, (2, 20))
        return Data(
            x=torch.randn(9, 16), edge_index=bonds, edge_attr=torch.randn(20, 4), y=torch.randn(1)
        )

    model = AttentiveFP(16, 64, 1, edge_dim=4, num_layers=3, num_timesteps=2)
    return model, Batch.from_data_list([molecule() for _ in range(16)])


def _diffusion() -> tuple[Any, Any]:
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        block_out_channels=(32, 64, 64),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    return model, pictures(8, 32)


def _vae() -> tuple[Any, Any]:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(32, 64),
        norm_num_groups=8,
    )
    return model, pictures(4, 32)


def _vq() -> tuple[Any, Any]:
    from monai.networks.nets import VQVAE

    model = VQVAE(
        spatial_dims=2, in_channels=3, out_channels=3, channels=(32, 64),
        num_res_channels=(32, 64), num_res_layers=1, downsample_parameters=((2, 4, 1, 1),) * 2,
        upsample_parameters=((2, 4, 1, 1, 0),) * 2, num_embeddings=32, embedding_dim=16,
    )  # fmt: skip
    return model, pictures(8, 32)


def _dit() -> tuple[Any, Any]:
    from monai.networks.nets import DiffusionModelUNet

    model = DiffusionModelUNet(
        spatial_dims=2, in_channels=3, out_channels=3, channels=(32, 64),
        attention_levels=(False, True), num_res_blocks=1, num_head_channels=16, norm_num_groups=8,
    )  # fmt: skip
    return model, pictures(8, 32)


def _gan() -> tuple[Any, Any]:
    from monai.networks.nets import Discriminator

    model = Discriminator(in_shape=(1, 32, 32), channels=(16, 32, 64), strides=(2, 2, 2))
    return model, (pictures(16, 32, 1), classes(16, 1, of=2).float())


def _flow() -> tuple[Any, Any]:
    from zuko.flows import NSF

    model = NSF(features=8, context=4, transforms=3, hidden_features=(64, 64))
    return model, (torch.randn(64, 4), torch.randn(64, 8))


def _fourier() -> tuple[Any, Any]:
    from neuralop.models import FNO

    model = FNO(n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=32, n_layers=4)
    return model, {"x": pictures(4, 32, 1), "y": pictures(4, 32, 1)}


def _tabnet() -> tuple[Any, Any]:
    from pytorch_tabnet.tab_network import TabNet

    group = torch.eye(16)
    model = TabNet(16, 3, group_attention_matrix=group)
    return model, (torch.randn(256, 16), classes(256, of=3))


def _perceiver() -> tuple[Any, Any]:
    from perceiver_pytorch import Perceiver

    model = Perceiver(
        num_freq_bands=4, depth=2, max_freq=10.0, input_channels=3, num_latents=16,
        latent_dim=64, latent_heads=4, num_classes=10, latent_dim_head=16,
    )  # fmt: skip
    return model, (torch.randn(8, 16, 16, 3), classes(8))


def _boring() -> tuple[Any, Any]:
    from lightning.pytorch.demos.boring_classes import BoringModel

    return BoringModel(), torch.randn(16, 32)


OTHERS = (
    Published("stable-baselines3", "ActorCriticPolicy", _actor_critic),
    Published("stable-baselines3", "QNetwork of CnnPolicy", _nature_cnn),
    Published("tianshou", "Net", _tianshou),
    Published("transformers", "DecisionTransformerModel", _decision_transformer),
    Published("torch_geometric", "GCN", _gcn),
    Published("torch_geometric", "GAT", _gat),
    Published("torch_geometric", "GraphSAGE", _sage),
    Published("torch_geometric", "AttentiveFP", _molecules),
    Published("diffusers", "UNet2DModel", _diffusion),
    Published("diffusers", "AutoencoderKL", _vae),
    Published("monai", "VQVAE", _vq),
    Published("monai", "DiffusionModelUNet", _dit),
    Published("monai", "Discriminator", _gan),
    Published("zuko", "NSF", _flow),
    Published("neuraloperator", "FNO", _fourier),
    Published("pytorch-tabnet", "TabNet", _tabnet),
    Published("perceiver-pytorch", "Perceiver", _perceiver),
    Published("lightning", "BoringModel", _boring),
)
