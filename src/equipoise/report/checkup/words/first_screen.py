"""What stands on the first screen of every report, beside the verdict and the headlines."""

from __future__ import annotations

from equipoise.diagnosis.fix.words import in_words
from equipoise.diagnosis.record import Checkup
from equipoise.records import wording


def assumed(checkup: Checkup) -> str:
    """What was assumed, in one line."""
    return "; ".join(checkup.assumptions) or "nothing was assumed"


def measured(checkup: Checkup) -> str:
    """How gradients change per layer, as a caption of the picture."""
    growth = checkup.growth
    if growth is None:
        return "Gradients were not measured."
    if growth.rate is None:
        return f"Squared gradient norm at {wording.count(len(growth.layers), 'layer')}."
    return (
        f"Squared gradient norm per layer: {wording.factor(growth.rate.value)} for each layer "
        "towards the input."
    )


# Characters of code that a first screen has room for.
_MOST_CODE = 600


def remedy_as_code(checkup: Checkup) -> str:
    """The likeliest or the first verified remedy as code; empty without one.

    So it is where remedies were trained: what was proved, or not, stands above.
    """
    if checkup.fix is not None and checkup.fix.gains:
        return ""
    if checkup.proposal is not None and checkup.proposal.predicted is not None:
        code = "\n".join(checkup.proposal.code)
        if len(code) > _MOST_CODE:
            code = "equipoise.apply(model, found.proposal.remedy)  # or the saved remedy.json"
        return f"{_promise(in_words(checkup.proposal.remedy), checkup.proposal.predicted)}\n{code}"
    remedy = next((one for one in checkup.remedies if one.verified), None)
    if remedy is None:
        return ""
    return "\n".join(
        (
            _promise(remedy.change, remedy.predicted_probability),
            "for norm in model.modules():",
            "    if isinstance(norm, torch.nn.modules.batchnorm._BatchNorm):",
            f"        {remedy.code}",
        )
    )


def _promise(change: str, probability: float) -> str:
    # Two lines, as a terminal of 80 columns would fold one, and the rest would be no comment.
    return f"# {change}:\n# it then trains with a probability of {wording.percent(probability)}"


def change_as_code(checkup: Checkup) -> str:
    """What to change as code: what trained best, or the first verified remedy; or nothing."""
    fix = checkup.fix
    return "\n".join(fix.code) if fix is not None and fix.code else remedy_as_code(checkup)


def rest(checkup: Checkup) -> str:
    """How many findings are left, and which measurements were left out."""
    more = len(checkup.findings) - len(checkup.headlines)
    words = f"{wording.count(more, 'more finding')}" if more else "No more findings"
    if checkup.left_out:
        listed = "; ".join(f"{one.what} ({one.option})" for one in checkup.left_out)
        words += f". Left out to save time: {listed}"
    return words + "."
