"""What mean-field theory predicts for wide random networks, normalised or not."""

from typing import TYPE_CHECKING

from equipoise._lazy import import_on_first_use

if TYPE_CHECKING:
    from equipoise.theory.activation.adapt import as_activation
    from equipoise.theory.activation.catalogue import Activation
    from equipoise.theory.batch_norm.explosion import (
        UnstableFixedPointWarning,
        depth_scale,
        explosion_rate,
        max_trainable_depth,
        weight_gradients,
    )
    from equipoise.theory.batch_norm.fixed_point.critical_eps import critical_eps
    from equipoise.theory.batch_norm.fixed_point.solve import bsb1_fixed_point
    from equipoise.theory.batch_norm.setting import Setting
    from equipoise.theory.batch_norm.spectra.cross_batch import cross_batch
    from equipoise.theory.batch_norm.spectra.eigenvalues import backward_spectrum, forward_spectrum
    from equipoise.theory.batch_norm.spectra.gegenbauer_expansion import gegenbauer_expansion
    from equipoise.theory.batch_norm.stability import alpha_transition, stability
    from equipoise.theory.covariance.bn_map import bn_map
    from equipoise.theory.covariance.iterate import iterate_map
    from equipoise.theory.networks.edge_of_chaos import edge_of_chaos
    from equipoise.theory.networks.feature_norms import group_norm, layer_norm
    from equipoise.theory.networks.residual import residual_growth
    from equipoise.theory.networks.vanilla.network import vanilla
    from equipoise.theory.simulation.gradients import simulate_networks
    from equipoise.theory.simulation.networks import Architecture
    from equipoise.theory.simulation.spectra import simulate_spectra

__all__ = [
    # the setting
    "Setting",
    "Activation",
    "as_activation",
    # batch norm: the fixed point and how fast gradients explode
    "bsb1_fixed_point",
    "critical_eps",
    "explosion_rate",
    "depth_scale",
    "max_trainable_depth",
    "UnstableFixedPointWarning",
    "weight_gradients",
    # batch norm: eigenvalues and stability
    "backward_spectrum",
    "forward_spectrum",
    "cross_batch",
    "gegenbauer_expansion",
    "stability",
    "alpha_transition",
    # maps of any covariance
    "bn_map",
    "iterate_map",
    # other networks
    "layer_norm",
    "group_norm",
    "residual_growth",
    "vanilla",
    "edge_of_chaos",
    # simulation
    "Architecture",
    "simulate_networks",
    "simulate_spectra",
]

import_on_first_use(
    __name__,
    {
        "activation.adapt": "as_activation",
        "activation.catalogue": "Activation",
        "batch_norm.explosion": (
            "UnstableFixedPointWarning depth_scale explosion_rate max_trainable_depth "
            "weight_gradients"
        ),
        "batch_norm.fixed_point.critical_eps": "critical_eps",
        "batch_norm.fixed_point.solve": "bsb1_fixed_point",
        "batch_norm.setting": "Setting",
        "batch_norm.spectra.cross_batch": "cross_batch",
        "batch_norm.spectra.eigenvalues": "backward_spectrum forward_spectrum",
        "batch_norm.spectra.gegenbauer_expansion": "gegenbauer_expansion",
        "batch_norm.stability": "alpha_transition stability",
        "covariance.bn_map": "bn_map",
        "covariance.iterate": "iterate_map",
        "networks.edge_of_chaos": "edge_of_chaos",
        "networks.feature_norms": "group_norm layer_norm",
        "networks.residual": "residual_growth",
        "networks.vanilla.network": "vanilla",
        "simulation.gradients": "simulate_networks",
        "simulation.networks": "Architecture",
        "simulation.spectra": "simulate_spectra",
    },
)
