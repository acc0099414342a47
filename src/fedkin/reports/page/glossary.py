"""What the words of the page mean."""

from collections.abc import Sequence

from fedkin.algorithms import label_of
from fedkin.markup import Markup, concatenated, tag
from fedkin.reports.run import Run

METHODS_IN_WORDS = {
    "fedavg": "One model for all: clients train the global model on their samples, and the server averages.",
    "fedprox": "FedAvg in which clients are held near the global model by a proximal term of strength α.",
    "fedkin": "One model for all; gradients are taken between a client's model and the average of its kin.",
    "kin": "Every client starts its rounds at the average of similar clients, who are found during training.",
    "fedsgd": "One gradient step on all samples of every client a round.",
    "alone": "Every client trains a model by itself; nothing is exchanged.",
    "finetuned": "FedAvg's model, which each client trains further on its own samples before it uses it.",
    "ifca": "Several models; every client takes the one with the lowest loss on its samples.",
    "fedavgm": "FedAvg whose server goes on in the direction of earlier rounds (momentum).",
    "fedadagrad": "FedAvg whose server takes smaller steps for parameters that have changed much so far.",
    "fedadam": "FedAvg whose server has momentum, and takes smaller steps for parameters that change much.",
    "fedyogi": "FedAdam that adapts more slowly when the size of changes varies.",
    "scaffold": "One model for all; clients correct their gradients by how their own differ from the average.",
    "fednova": "FedAvg whose updates count per step, so that clients with many samples do not dominate.",
    "feddyn": "One model for all; clients correct their gradients by what they have drifted apart in earlier rounds.",
    "powerofchoice": "FedAvg that samples the clients with the largest losses.",
    "ditto": "FedAvg, and beside it a model of every client's own that is held near the global one.",
    "apfl": "FedAvg, and beside it a model of every client's own; it uses a mixture of both.",
    "mrmtl": "Every client trains its own model, which is held near the average of all.",
    "l2gd": "Every client trains its own model and is now and then pulled to the average of all.",
    "pfedme": "A global model from which every client takes a proximal step to a model of its own.",
    "perfedavg": "A global model that is trained to be good after one step on a client's own samples.",
    "fedu": "Every client trains its own model, and models of similar clients are pulled together.",
    "mocha": "Every client trains its own model, and learnt relationships pull models together.",
    "cfl": "FedAvg in groups of clients, which are divided when their updates point in opposite directions.",
    "fedamp": "Every client is held near an average of models in which those like its own count more.",
    "fedem": "Several models; every client uses a mixture of them, with shares that suit its samples.",
}
_WORDS = {
    "client": "A participant with samples of its own, such as a hospital or a device. Its samples stay with it.",
    "round": "The server sends models to clients, they train on their samples and reply, and the server combines them.",
    "clients' models": "The model a client uses in the end: its own if the method makes one, else the global model.",
    "validation samples": "Samples that each client holds out of training. Settings are chosen by them.",
    "global model": "The one model that the server has. It is tested on the test samples of all clients.",
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
    entries = {label_of(name): METHODS_IN_WORDS[name] for name in present if name in METHODS_IN_WORDS} | _WORDS
    terms = [concatenated([tag("dt", term), tag("dd", meaning)]) for term, meaning in entries.items()]
    return tag(
        "section",
        tag("h2", "What the words mean"),
        tag("details", tag("summary", "Methods and terms"), tag("dl", *terms)),
    )
