"""The client half of a Flower federation: the node's message, its loss, and its local work on its own data.

`client_app` does it all. To keep a training loop of your own, use `introduce` and `fedkin.flower.Work` instead.
"""

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from fedkin.algorithms.rounds import PURPOSES
from fedkin.data.federation import Clients, from_rows
from fedkin.engine.local_work import SampleLosses, batches_of_client, take_steps, torch_seed
from fedkin.engine.spaces.fused import Fused
from fedkin.engine.spaces.plain import Plain
from fedkin.errors import BadInput
from fedkin.flower.layout import Layout, load_entries
from fedkin.flower.secure import secured
from fedkin.flower.tasks import Task, model_in
from fedkin.flower.wire import LOSSES, METRICS, NODE, ORDER, VECTORS
from fedkin.graph.similarity import message, noisy
from fedkin.models import Model, Module, loss_for, seeded

NodeData = Any  # (x, y), (x, y, raw), or an iterable of batches (x, y) such as a DataLoader
ModelOrModule = Model | Callable[[], nn.Module]

LABEL_WORDS = ("label", "target", "class")  # in the names of entries of a batch
VALIDATION = 0.2  # share of a node's samples that is held out for algorithms that compare models


def client_app(model: ModelOrModule, data: Callable[[Context], NodeData], task: str = "auto") -> ClientApp:
    """A `ClientApp` for a federation whose server runs `fedkin.flower.Strategy`.

    model  what is trained: a function that builds the `torch.nn.Module` (the class itself, say), or a fedkin model
    data   loads the node's own data: arrays (x, y), or a `DataLoader`, which is read once into memory (its batch size
           and order are not used: batches are those of the server's `Local`). With (x, y, raw) the message is computed
           from `raw`, the features before preprocessing, instead of x.
    task   of a module with one output: `binary` (the log-odds of the second of two classes) or `regression` (a number).
           A fedkin model has a loss already, and more outputs are scores of classes.

    The algorithm, its hyper-parameters, epochs and batches come from the server with every round.
    """
    app = ClientApp(mods=[secured])
    introduce(app, data, model, task)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        began = time.perf_counter()
        x, y, _ = arrays(data(context))
        (net, layout), only = _built(model, x, model_in(msg), task), np.array([0])
        clients = _clients(net, x, y)
        received = Task.received(msg, context, layout)
        order, algorithm = received.order, received.order.algorithm
        held = None
        if algorithm.validates:
            clients, held = clients.held_out(VALIDATION, order.seed, [order.client])
        batches = batches_of_client(order.local, len(clients.y), order.seed, order.round, order.client)
        with seeded(torch_seed(order.seed, PURPOSES["noise"], order.round, order.client)):
            got, memory = algorithm.begin(received.got, received.memory, SampleLosses(net, clients, only, held))
            where = Fused if order.local.optimizer == "adam" else Plain
            space = where(net, order.local, clients, only, [batches])
            w, memory = take_steps(algorithm, space, got, memory, len(batches))
        metrics = {"seconds": time.perf_counter() - began}
        return received.reply(w, got, memory, len(batches), len(y), metrics)

    return app


def introduce(
    app: ClientApp, data: Callable[[Context], NodeData], model: ModelOrModule | None = None, task: str = "auto"
) -> None:
    """Let an app answer what the server asks besides training: the node's name, number of samples, message and loss.

    The name is the node's `partition-id` if it has one, else the id that Flower gave it (which a restart changes).
    The message is the first principal component of the data: see `fedkin.message`. It is sent only if the graph needs
    it. The loss is asked for by algorithms that select clients by it; it takes the `model`, and without one the node
    cannot be selected by such an algorithm.
    """

    @app.query()
    def query(msg: Message, context: Context) -> Message:
        x, y, raw = arrays(data(context))
        name = context.node_config.get("partition-id", context.node_id)
        order = msg.content.config_records[ORDER]
        size = _size(model, int(order.get("parameters", 0)))  # type: ignore[arg-type]
        content = RecordDict({NODE: ConfigRecord({"name": str(name), "samples": len(y), "parameters": size})})
        if order["message"]:
            m = message((x if raw is None else raw).reshape(len(x), -1).double().numpy())
            if noise := msg.content.config_records[ORDER].get("noise"):
                m = noisy(m, float(noise), np.random.default_rng())  # type: ignore[arg-type]
            content[VECTORS] = ArrayRecord({"message": Array(m)})
        return Message(content, reply_to=msg)

    if model is None:
        return

    @app.query(LOSSES.partition(".")[2])
    def losses(msg: Message, context: Context) -> Message:
        x, y, _ = arrays(data(context))
        net, layout = _built(model, x, model_in(msg), task)
        w = layout.taken({"model": model_in(msg)})["model"]
        loss = SampleLosses(net, _clients(net, x, y), np.array([0])).mean(w[None])
        return Message(RecordDict({METRICS: MetricRecord({"loss": float(loss)})}), reply_to=msg)


def arrays(data: NodeData) -> tuple[Tensor, Tensor, Tensor | None]:
    """The x (float32), y and raw features (if given) of a node, from arrays or an iterable of batches."""
    if isinstance(data, tuple):
        x, y, *raw = data
    else:
        batches = [_pair(batch) for batch in data]
        if not batches:
            raise BadInput("the node's data loader gives no batch: a node needs at least one sample")
        x, y, raw = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]), []
    x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    if len(x) != len(y) or len(y) == 0:
        raise BadInput(f"the node's data has {len(x)} samples and {len(y)} labels: it needs as many, and at least one")
    return x.cpu(), y.reshape(-1).cpu(), torch.as_tensor(raw[0]).cpu() if raw else None


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """A batch as (x, y), also if it is a dictionary such as {"img": x, "label": y}, in any order."""
    if isinstance(batch, Mapping):
        batch = _by_name(batch)
    x, y = batch
    return torch.as_tensor(x), torch.as_tensor(y)


def _by_name(batch: Mapping[str, Any]) -> tuple[Any, Any]:
    """Samples and labels of a batch, by the names of its entries, or else by their shapes."""
    is_label = {name: any(word in str(name).lower() for word in LABEL_WORDS) or name == "y" for name in batch}
    if len(batch) == 2 and sum(is_label.values()) != 1:
        is_label = {name: torch.as_tensor(value).dim() == 1 for name, value in batch.items()}
    labels = [name for name, found in is_label.items() if found]
    samples = [name for name, found in is_label.items() if not found]
    if len(labels) != 1 or len(samples) != 1:
        raise BadInput(
            f"a batch has the entries {', '.join(map(repr, batch))}, and it is not clear which are the samples and "
            "which the labels: let load_data give batches (x, y), or the arrays (x, y)"
        )
    return batch[samples[0]], batch[labels[0]]


def _clients(net: Model, x: Tensor, y: Tensor) -> Clients:
    """The node as the only client, with targets as the model's loss takes them."""
    with torch.no_grad():
        outputs = net.scores(torch.zeros(1, net.size), x[None, :1].reshape(1, 1, -1)).shape[-2]
    return from_rows(x.reshape(len(x), -1), net.loss.labels(y, outputs), np.array([len(y)]))


def _size(model: ModelOrModule | None, asked: int) -> int:
    """S, the number of entries that the node can take: that of the server if it can; 0 if the model is not known."""
    if model is None or not callable(model):
        return 0 if model is None else model.size
    net = model()
    try:
        Layout.of(net, asked)
    except BadInput:
        return sum(p.numel() for p in net.parameters() if p.requires_grad)
    return asked


def _built(model: ModelOrModule, x: Tensor, sent: Tensor, task: str = "auto") -> tuple[Model, Layout]:
    """The model, and where its parameters are in the vectors of the server.

    A module is wrapped for samples like x. Its constants are those that the server sent, if it did.
    """
    if not callable(model):
        if len(sent) != model.size:
            raise BadInput(
                f"the server sent {len(sent)} parameters where this node's model has {model.size}: use one model"
            )
        return model, Layout()
    net = model()
    layout = Layout.of(net, len(sent))
    load_entries(net, sent)
    with torch.no_grad():
        outputs = net(x[:1])[0].numel()
    return Module(lambda: copy.deepcopy(net), tuple(x.shape[1:]), outputs, loss_for(task, outputs)), layout
