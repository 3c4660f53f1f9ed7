"""What each paper says, in its own words and with the place, and the question that it answers.

A sentence that several figures bear out is quoted at the first of them alone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a paper.

    Args:
        question: What a reader would ask.
        quote: The paper's words; empty where an earlier row quotes them or there are none.
        place: Where they stand; where the words are quoted, if an earlier row does.
    """

    question: str
    quote: str
    place: str


YANG2019 = {
    "Fig. 1a": Claim(
        "Does mean-field theory predict the eigenvalues of the backward Jacobian?",
        "Comparison between theoretical prediction (dashed lines) and Monte Carlo simulations "
        "(solid lines) for the eigenvalues of backwards jacobian as a function of batch size",
        "Fig. 1, caption",
    ),
    "Fig. 1b": Claim(
        "Do gradients of deep batch-normalised networks explode at the predicted rate?",
        "gradient signals grow exponentially in depth",
        "abstract",
    ),
    "Fig. 1c": Claim(
        "Does the symmetry between samples break at a critical α?",
        "which clearly shows a jump at the transition",
        "Fig. 1, caption",
    ),
    "Fig. 1d": Claim(
        "Do samples fall into two blocks above the transition?",
        "we plot representative covariance matrices for the two phases (BSB1 bottom, BSB2 top)",
        "Fig. 1, caption",
    ),
    "Fig. 2a": Claim(
        "Are networks deeper than about 50 layers untrainable with batch norm, and is 16ξ the "
        "limit?",
        "networks deeper than about 50 layers are untrainable regardless of batch size",
        "Section 4",
    ),
    "Fig. 2b": Claim(
        "Does the trainable region stay the same at a fixed batch with sub-batch statistics?",
        "In all cases we observe a nearly identical trainable region.",
        "Section 4",
    ),
    "Fig. 2c": Claim(
        "Does the trainable region stay the same with RMSProp?", "", "quoted at Fig. 2b"
    ),
    "Fig. 2d": Claim(
        "Does the trainable region stay the same on other data?", "", "quoted at Fig. 2b"
    ),
    "Fig. 3": Claim(
        "Do gradients reach an equilibrium after one step of learning?",
        "the weights grow exponentially in the depth and the magnitude of the gradients are "
        "stable up to some threshold after which they vanish exponentially in the depth",
        "Section 4",
    ),
    "Fig. 4a": Claim(
        "Do networks train deeper as γ decreases?",
        "As expected, we see the maximum trainable depth increase significantly with decreasing "
        "γ and increasing β.",
        "Section 4",
    ),
    "Fig. 4b": Claim("Do networks train deeper as β increases?", "", "quoted at Fig. 4a"),
    "Fig. 4c": Claim(
        "Is there a critical ε at which very deep tanh networks train?",
        "we observe a critical point at large ε where gradients do not explode and very deep "
        "networks are trainable",
        "Section 4",
    ),
    "Fig. 4d": Claim(
        "Is there a critical ε at which very deep ReLU networks train?", "", "quoted at Fig. 4c"
    ),
    "Fig. 5": Claim(
        "Does β > 0 or ε > 0 help VGG19 with batch norm, each at the other's best value?",
        "We also find initializing β and/or setting ε > 0 having positive effect on VGG19 with "
        "batchnorm.",
        "Fig. 4, caption",
    ),
    "Fig. 6": Claim(
        "Does β > 0 or ε > 0 help VGG19, the other at its default?", "", "quoted at Fig. 5"
    ),
    "Theorems": Claim(
        "Is batch norm itself the cause of exploding gradients, whatever the activation?",
        "for any choice of nonlinearity, gradients of fully-connected networks with batch "
        "normalization explode exponentially in the depth of the network",
        "Section 1",
    ),
}

SANTURKAR2018 = {
    "Fig. 1": Claim(
        "Does batch norm train faster and generalise better, with distributions no more stable?",
        "the difference in distributional stability (change in the mean and variance) in networks "
        "with and without BatchNorm layers seems to be marginal",
        "Section 2",
    ),
    "Fig. 2": Claim(
        "Does noisy batch norm train as well as batch norm?",
        "the performance difference between models with BatchNorm layers, and “noisy” BatchNorm "
        "layers is almost non-existent",
        "Section 2.1",
    ),
    "Fig. 3a": Claim(
        "Does batch norm reduce internal covariate shift in VGG?",
        "Models with BatchNorm have similar, or even worse, internal covariate shift",
        "Fig. 3, caption",
    ),
    "Fig. 3b": Claim(
        "Does batch norm reduce internal covariate shift in deep linear networks?",
        "the standard network experiences almost no ICS for the entirety of training, whereas for "
        "BatchNorm it appears that G and G′ are almost uncorrelated",
        "Section 2.2",
    ),
    "Fig. 4": Claim(
        "Does batch norm make the loss landscape of VGG smoother?",
        "There is a clear improvement in all of these measures in networks with BatchNorm",
        "Fig. 4, caption",
    ),
    "Random directions": Claim(
        "Is the loss smoother with batch norm along random directions too?",
        "the loss behaves in a similar way when we examine other (random) directions too",
        "Section 3.2",
    ),
    "Fig. 5": Claim("What do the two networks of the theory look like?", "", "a drawing"),
    "Fig. 6": Claim(
        "Is internal covariate shift alike in further layers?", "", "quoted at Fig. 3a and 3b"
    ),
    "Fig. 7": Claim(
        "Are distributions under noisy batch norm less stable than without batch norm?",
        "“Noisy” BatchNorm layers have significantly higher ICS than standard networks, yet "
        "perform better from an optimization perspective",
        "Fig. 7, caption",
    ),
    "Fig. 8": Claim(
        "Is σ large in practice, so that γ/σ flattens the loss?",
        "σ_j tends to be large in practice (cf. Appendix Figure 8)",
        "Section 4.2",
    ),
    "Fig. 9": Claim(
        "Does batch norm make the landscape of deep linear networks smoother?",
        "There is a clear improvement in each of these measures of smoothness of the optimization "
        "landscape in networks with BatchNorm layers.",
        "Fig. 9, caption",
    ),
    "Fig. 10a": Claim(
        "Are gradients more predictive over the distance moved, in VGG?",
        "gradients are significantly more predictive in networks with BatchNorm and change slowly "
        "in a given local neighborhood",
        "Fig. 10, caption",
    ),
    "Fig. 10b": Claim(
        "Are gradients more predictive over the distance moved, in deep linear networks?",
        "",
        "quoted at Fig. 10a",
    ),
    "Fig. 11": Claim(
        "Does every ℓp normalisation of VGG train better and smoother than none?",
        "networks with any normalization strategy have improved performance and smoothness of the "
        "loss landscape over standard training",
        "Fig. 11, caption",
    ),
    "Fig. 12": Claim(
        "Does every ℓp normalisation of deep linear networks train better and smoother than none?",
        "",
        "quoted at Fig. 11",
    ),
    "Fig. 13a": Claim(
        "Is every ℓp normalisation of VGG as good as batch norm?",
        "all ℓp normalization strategies perform comparably or even better than BatchNorm",
        "Fig. 13, caption",
    ),
    "Fig. 13b": Claim(
        "Is every ℓp normalisation of deep linear networks as good as batch norm?",
        "",
        "quoted at Fig. 13a",
    ),
    "Fig. 14": Claim(
        "Do distributions shift more under ℓp normalisation than without any?",
        "the ℓp-normalization techniques leads to larger distributional covariate shift compared "
        "to normal networks, yet yield improved optimization performance",
        "Fig. 14, caption",
    ),
    "Theorems": Claim(
        "Are the theorems on smoothness true as printed?",
        "the Lipschitzness of both the loss and the gradients (also known as β-smoothness) are "
        "improved in models with BatchNorm",
        "Section 1",
    ),
}

LANGE2022 = {
    "Fig. 1": Claim("Which elements does a kernel pass over?", "", "a drawing"),
    "Fig. 2": Claim(
        "Is one mean and variance per channel good enough for convolutions?",
        "If r, s are large, they are all approximately equal to the mean and variance of the "
        "feature map",
        "Section 4",
    ),
    "Fig. 3": Claim(
        "Are BNP and batch norm comparable at batch 60?",
        "BNP and BN outperform the vanilla and LN networks",
        "Section 5",
    ),
    "Fig. 4, left": Claim(
        "Does BNP beat batch norm at batch 6?",
        "With mini-batch size 6, BNP outperforms BN and the vanilla network.",
        "Section 5",
    ),
    "Fig. 4, right, FC": Claim(
        "Does BNP train at batch 1, where batch norm does not (fully connected)?",
        "BNP and LN converges significantly faster than the vanilla network",
        "Section 5",
    ),
    "Fig. 4, right, CNN": Claim(
        "Does BNP train at batch 1, where batch norm does not (CNN)?",
        "BNP trains faster and reaches slightly higher accuracy than the vanilla network, while "
        "BN with 4 Things significantly underperforms",
        "Section 5",
    ),
    "Fig. 5, left": Claim(
        "Are BNP and batch norm comparable at batch 128 (CNN)?",
        "BN, BN with 4 Things, and BNP all have comparable performance",
        "Section 5",
    ),
    "Fig. 5, right": Claim(
        "Does BNP beat batch norm at batch 2 (CNN)?",
        "For mini-batch size 2, BNP significantly outperforms BN, Batch Renorm, and BN with 4 "
        "Things.",
        "Section 5",
    ),
    "Batches of 3 and 4": Claim(
        "Does batch norm work down to batch 4, and Renorm down to 3 (CNN)?",
        "BN and Batch Renorm work well for batch sizes as small as 4 and 3 respectively",
        "Section 5",
    ),
    "Fig. 6, left": Claim(
        "Does BNP with group norm train a ResNet faster than batch norm?",
        "The test accuracy for BNP+GN converges faster than BN prior to the first learning rate "
        "decay at the 80th epoch and is comparable to BN after the decay.",
        "Section 5",
    ),
    "Fig. 6, right": Claim(
        "Does BNP with group norm train a pre-activation ResNet faster than batch norm?",
        "also converges faster than BN prior to the first learning rate decay at the 150th epoch "
        "but is slightly lower than BN after the decay",
        "Section 5",
    ),
    "Fig. 7": Claim(
        "Does BNP with group norm train ResNet-18 faster than batch norm?",
        "again converges faster than BN prior to the first learning rate decay at the 30th epoch "
        "but is slightly lower than BN after the second decay at the 60th",
        "Section 5",
    ),
    "Fig. 8": Claim(
        "Does BNP reduce the condition number of the Hessian by about κ(D)²?",
        "the BNP transformation reduces the condition number by roughly κ(D)²",
        "Section 5.1",
    ),
    "Fig. 9": Claim(
        "Does an epoch with BNP take about as long as one with batch norm?",
        "Overall, the difference is small and the two methods are quite comparable in "
        "computational efficiency.",
        "Section 5.1",
    ),
    "Table 1": Claim(
        "Is batch norm faster at small batches and BNP at large ones?",
        "for smaller mini-batch size BN is faster than BNP and for larger mini-batch size BNP has "
        "a tiny improvement over BN",
        "Section 5.1",
    ),
    "Table 2": Claim(
        "Are the paper's learning rates the best ones (fully connected)?",
        "all learning rates are found in Table 3",
        "Appendix B, said of the CNNs",
    ),
    "Table 3": Claim(
        "Are the paper's learning rates the best ones (CNN)?", "", "quoted at Table 2"
    ),
    "Theorems": Claim(
        "Does preconditioning with batch statistics improve conditioning, as proved?",
        "the improved conditioning as shown by Theorem 4 implies reduced r and hence improved "
        "reduction of the error",
        "Section 3",
    ),
}

YU2020 = {
    "Theorem 1": Claim(
        "Does RUN shrink large eigenvalues most, on average?",
        "1 ≥ α₁ ≥ α₂ ≥ … ≥ α_D",
        "supplement, Theorem 1",
    ),
    "Back-propagation": Claim(
        "Are the printed gradients of RUN right?",
        "derive the backward propagation of the proposed RUN algorithm",
        "supplement, abstract",
    ),
    "Speed": Claim(
        "Is RUN hundreds of times as fast as Newton–Schulz?",
        "",
        "abstract of the preprint; the published abstract names no factor",
    ),
    "Accuracy": Claim(
        "Is RUN as accurate as other matrix normalisations?",
        "",
        "abstract of the preprint, on four public benchmarks",
    ),
    "Figures and tables": Claim(
        "What do the main paper's figures show?", "", "the body was not available"
    ),
}
