"""What each paper says, in its own words and with the place, and the question that it answers.

A sentence that several figures bear out is quoted at the first of them alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from equipoise_papers.experiments.verdict import Check


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a paper.

    Args:
        question: What a reader would ask; "yes" is what the paper says.
        quote: The paper's words; empty where an earlier row quotes them or there are none.
        place: Where they stand; where the words are quoted, if an earlier row does.
        answered_by: Patterns, as of file names, of the checks that answer the question; all of
            the source's do if there are none.

    Examples:
        >>> claim = Claim("Is 2 + 2 = 4?", "2 + 2 = 4 = 2 · 2", "p. 1", ("2 + 2*",))
        >>> checks = Check("2 + 2 = 4", "4", True), Check("2 · 2 = 4", "4", True)
        >>> [check.claim for check in claim.answering(checks)]
        ['2 + 2 = 4']
    """

    question: str
    quote: str
    place: str
    answered_by: tuple[str, ...] = ()

    def answering(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """Choose the checks that answer the question."""
        return tuple(
            check
            for check in checks
            if not check.ours
            and (
                not self.answered_by
                or any(fnmatchcase(check.claim, pattern) for pattern in self.answered_by)
            )
        )


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
        ("*slope ln λ_G*",),
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
        "Are networks deeper than about 50 layers untrainable with batch norm?",
        "networks deeper than about 50 layers are untrainable regardless of batch size",
        "Section 4",
        ("networks deeper than about 50 layers*",),
    ),
    "Fig. 2b": Claim(
        "Does the trainable region stay the same at a fixed batch with sub-batch statistics?",
        "In all cases we observe a nearly identical trainable region.",
        "Section 4",
        ("a trainable region nearly identical*",),
    ),
    "Fig. 2c": Claim(
        "Does the trainable region stay the same with RMSProp?",
        "",
        "quoted at Fig. 2b",
        ("a trainable region nearly identical*",),
    ),
    "Fig. 2d": Claim(
        "Does the trainable region stay the same on other data?",
        "",
        "quoted at Fig. 2b",
        ("a trainable region nearly identical*",),
    ),
    "Fig. 3": Claim(
        "Do gradients reach an equilibrium after one step of learning?",
        "the weights grow exponentially in the depth and the magnitude of the gradients are "
        "stable up to some threshold after which they vanish exponentially in the depth",
        "Section 4",
        ("*the first step changes*",),
    ),
    "Fig. 4a": Claim(
        "Do networks train deeper as γ decreases?",
        "As expected, we see the maximum trainable depth increase significantly with decreasing "
        "γ and increasing β.",
        "Section 4",
        ("networks train deeper as γ → 0",),
    ),
    "Fig. 4b": Claim(
        "Do networks train deeper as β increases?",
        "",
        "quoted at Fig. 4a",
        ("networks train deeper as β grows",),
    ),
    "Fig. 4c": Claim(
        "Is there a critical ε near which very deep tanh networks train?",
        "we observe a critical point at large ε where gradients do not explode and very deep "
        "networks are trainable",
        "Section 4",
        ("networks train deeper near ε = 1 than at ε = 0", "a well defined phase transition*"),
    ),
    "Fig. 4d": Claim(
        "Is there a critical ε near which very deep ReLU networks train?",
        "",
        "quoted at Fig. 4c",
        ("networks train deeper near ε = 1 than at ε = 0", "a well defined phase transition*"),
    ),
    "Fig. 5": Claim(
        "Do β > 0 and ε > 0 both help VGG19 with batch norm, each at the other's best value?",
        "We also find initializing β and/or setting ε > 0 having positive effect on VGG19 with "
        "batchnorm.",
        "Fig. 4, caption",
    ),
    "Fig. 6": Claim(
        "Do β > 0 and ε > 0 both help VGG19, the other at its default?", "", "quoted at Fig. 5"
    ),
    "Theorems": Claim(
        "Are the theorems on fixed points and exploding gradients right as printed?",
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
        ("noisy BN trains almost as well as BN*",),
    ),
    "Fig. 3a": Claim(
        "Is internal covariate shift in VGG as large with batch norm as without, or larger?",
        "Models with BatchNorm have similar, or even worse, internal covariate shift",
        "Fig. 3, caption",
        ("ICS is similar or larger with BN*",),
    ),
    "Fig. 3b": Claim(
        "Is internal covariate shift in deep linear networks larger with batch norm?",
        "the standard network experiences almost no ICS for the entirety of training, whereas for "
        "BatchNorm it appears that G and G′ are almost uncorrelated",
        "Section 2.2",
        (
            "ICS is larger with BN*",
            "relative l2 shift is larger*",
        ),
    ),
    "Fig. 4": Claim(
        "Does batch norm make the loss landscape of VGG smoother?",
        "There is a clear improvement in all of these measures in networks with BatchNorm",
        "Fig. 4, caption",
        (
            "the loss varies less*",
            "the gradient changes less*",
            "effective β is smaller*",
        ),
    ),
    "Random directions": Claim(
        "Is the loss smoother with batch norm along random directions too?",
        "the loss behaves in a similar way when we examine other (random) directions too",
        "Section 3.2",
    ),
    "Fig. 5": Claim("What do the two networks of the theory look like?", "", "a drawing"),
    "Fig. 6": Claim(
        "Is internal covariate shift as Fig. 3 has it in further layers too?",
        "",
        "quoted at Fig. 3a and 3b",
    ),
    "Fig. 7": Claim(
        "Are distributions under noisy batch norm less stable than without batch norm?",
        "“Noisy” BatchNorm layers have significantly higher ICS than standard networks, yet "
        "perform better from an optimization perspective",
        "Fig. 7, caption",
        ("with noisy BN a step changes the mean*", "with noisy BN a step changes the variance*"),
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
        ("at equal distances*",),
    ),
    "Fig. 10b": Claim(
        "Are gradients more predictive over the distance moved, in deep linear networks?",
        "",
        "quoted at Fig. 10a",
        ("at equal distances*",),
    ),
    "Fig. 11": Claim(
        "Do ℓp normalisations of VGG all train better and smoother than none?",
        "networks with any normalization strategy have improved performance and smoothness of the "
        "loss landscape over standard training",
        "Fig. 11, caption",
    ),
    "Fig. 12": Claim(
        "Do ℓp normalisations of deep linear networks all train better and smoother than none?",
        "",
        "quoted at Fig. 11",
    ),
    "Fig. 13a": Claim(
        "Are ℓp normalisations of VGG as good as batch norm?",
        "all ℓp normalization strategies perform comparably or even better than BatchNorm",
        "Fig. 13, caption",
        ("*trains as well as BN or better*",),
    ),
    "Fig. 13b": Claim(
        "Are ℓp normalisations of deep linear networks as good as batch norm?",
        "",
        "quoted at Fig. 13a",
        ("*trains as well as BN or better*",),
    ),
    "Fig. 14": Claim(
        "Do distributions shift more under ℓp normalisation than without any?",
        "the ℓp-normalization techniques leads to larger distributional covariate shift compared "
        "to normal networks, yet yield improved optimization performance",
        "Fig. 14, caption",
        ("distributions shift more*",),
    ),
    "Theorems": Claim(
        "Are the theorems on smoothness true as printed?",
        "the Lipschitzness of both the loss and the gradients (also known as β-smoothness [21]) "
        "are improved in models with BatchNorm",
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
        ("the error is small for r, s ≫ k*",),
    ),
    "Fig. 3": Claim(
        "Are BNP and batch norm comparable at batch 60?",
        "BNP and BN outperform the vanilla and LN networks",
        "Section 5",
        ("BN and BNP are comparable*",),
    ),
    "Fig. 4, left": Claim(
        "Does BNP beat batch norm at batch 6?",
        "With mini-batch size 6, BNP outperforms BN and the vanilla network.",
        "Section 5",
        ("BNP is ahead of BN",),
    ),
    "Fig. 4, right, FC": Claim(
        "Does BNP train at batch 1, where batch norm does not (fully connected)?",
        "BNP and LN converges significantly faster than the vanilla network",
        "Section 5",
        (
            "BN does not train",
            "BNP is ahead of the vanilla network",
        ),
    ),
    "Fig. 4, right, CNN": Claim(
        "Does BNP train at batch 1, where batch norm does not (CNN)?",
        "BNP trains faster and reaches slightly higher accuracy than the vanilla network, while "
        "BN with 4 Things significantly underperforms",
        "Section 5",
        (
            "BN does not train",
            "BNP is ahead of the vanilla network",
        ),
    ),
    "Fig. 5, left": Claim(
        "Are BNP and batch norm comparable at batch 128 (CNN)?",
        "BN, BN with 4 Things, and BNP all have comparable performance",
        "Section 5",
        ("BN and BNP (paper) are comparable*",),
    ),
    "Fig. 5, right": Claim(
        "Does BNP beat batch norm at batch 2 (CNN)?",
        "For mini-batch size 2, BNP significantly outperforms BN, Batch Renorm, and BN with 4 "
        "Things.",
        "Section 5",
        ("BNP is significantly ahead of BN",),
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
        ("BNP+GN converges faster than BN before*",),
    ),
    "Fig. 6, right": Claim(
        "Does BNP with group norm train a pre-activation ResNet faster than batch norm?",
        "also converges faster than BN prior to the first learning rate decay at the 150th epoch "
        "but is slightly lower than BN after the decay",
        "Section 5",
        ("BNP+GN converges faster than BN before*",),
    ),
    "Fig. 7": Claim(
        "Does BNP with group norm train ResNet-18 faster than batch norm?",
        "again converges faster than BN prior to the first learning rate decay at the 30th epoch "
        "but is slightly lower than BN after the second decay at the 60th",
        "Section 5",
        ("BNP+GN converges faster than BN before*",),
    ),
    "Fig. 8": Claim(
        "Does BNP reduce the condition number of the Hessian by about κ(D)²?",
        "the BNP transformation reduces the condition number by roughly κ(D)²",
        "Section 5.1",
        ("the condition number improves by roughly κ(D)²*",),
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
        "the best learning rates for each network can be found in Table 2",
        "Appendix B",
        ("*best rates within a decade*",),
    ),
    "Table 3": Claim(
        "Are the paper's learning rates the best ones (CNN)?",
        "all learning rates are found in Table 3",
        "Appendix B",
        ("*best rates within a decade*",),
    ),
    "Theorems": Claim(
        "Does preconditioning with batch statistics improve conditioning, as proved?",
        "the improved conditioning as shown by Theorem 4 implies reduced r and hence improved "
        "reduction of the error",
        "Section 3.3",
        ("Theorem 4,*",),
    ),
}

YU2020 = {
    "Theorem 1": Claim(
        "Does RUN shrink large eigenvalues most, on average?",
        "1 ≥ α₁ ≥ α₂ ≥ … ≥ α_D",
        "supplement, Theorem 1",
        ("1 ≥ α*",),
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
        ("330 times*",),
    ),
    "Accuracy": Claim(
        "Is RUN as accurate as other matrix normalisations?",
        "",
        "abstract of the preprint, on four public benchmarks",
        ("*comparable to Newton–Schulz*",),
    ),
    "Figures and tables": Claim(
        "What do the main paper's figures show?", "", "the body was not available"
    ),
}
