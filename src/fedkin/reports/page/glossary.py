"""What the words of the page mean."""

from collections.abc import Sequence

from fedkin.algorithms import label_of
from fedkin.markup import Markup, concatenated, tag
from fedkin.reports.run import Run

_METHODS = {
    "fedavg": "One model for all: clients train the global model on their samples, and the server averages.",
    "fedprox": "FedAvg in which clients are held near the global model by a proximal term of strength α.",
    "fedkin": "One model for all; gradients are taken between a client's model and the average of its kin.",
    "kin": "Every client starts its rounds at the average of similar clients, who are found during training.",
    "fedsgd": "One gradient step on all samples of every client a round.",
    "alone": "Every client trains a model by itself; nothing is exchanged.",
    "finetuned": "FedAvg's model, which each client trains further on its own samples before it uses it.",
    "ifca": "Several models; every client takes the one with the lowest loss on its samples.",
}
_WORDS = {
    "client": "A participant with samples of its own, such as a hospital or a device. Its samples stay with it.",
    "round": "The server sends models to clients, they train on their samples and reply, and the server combines them.",
    "clients' models": "The model a client uses in the end: its own if the method makes one, else the global model.",
    "validation samples": "Samples that each client holds out of training. Settings are chosen by them.",
    "worst tenth": "The tenth of the clients (at least one) for which the result is worst.",
    "paired interval": "Methods are compared on the same seeds (or clients), and differences are averaged. The 95 % "
    "interval says where the mean difference lies; if it contains 0, no difference was measured.",
    "seed": "A number that fixes all that is random: the division of data, the first model, the order of samples. "
    "Other seeds show what is due to chance.",
    "γ, E, λ, β, α, κ": "Step size, epochs a round, L2 penalty; and the numbers of FedKin (β, κ) and FedProx (α).",
    "pooled": "All samples in one place. No federation has that; it is a reference.",
}


def glossary(runs: Sequence[Run]) -> Markup:
    """Methods of the page and words in plain sentences, collapsed."""
    present = dict.fromkeys(run.algorithm for run in runs)
    entries = {label_of(name): _METHODS[name] for name in present if name in _METHODS} | _WORDS
    terms = [concatenated([tag("dt", term), tag("dd", meaning)]) for term, meaning in entries.items()]
    return tag(
        "section",
        tag("h2", "What the words mean"),
        tag("details", tag("summary", "Methods and terms"), tag("dl", *terms)),
    )
