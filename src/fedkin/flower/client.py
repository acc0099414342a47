"""The client half of a Flower federation: the node's message, and its local work on its own data.

`client_app` does it all. With a training loop of your own, use its parts in your `ClientApp`:

    introduce(app, load_data)                       # load_data(context) gives the node's data

    @app.train()
    def train(msg, context):
        net = Net()
        work = Work(msg, net)                       # loads w̄ into net
        for x, y in loader:
            optimizer.zero_grad()
            with work.gradient_point():             # here net holds β·w + (1−β)·u
                criterion(net(x), y).backward()
            optimizer.step()                        # w ← w − γ·(∇f(β·w + (1−β)·u) + α·(w − w̄))
        return work.reply(samples=len(loader.dataset))
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedkin.data.federation import from_rows
from fedkin.engine.simulation import NOISE, deal, take_steps, torch_seed
from fedkin.engine.spaces.plain import Plain
from fedkin.errors import BadInput
from fedkin.flower.wire import METRICS, NODE, VECTORS, WORK, Order, pack, unpack
from fedkin.graph.similarity import message
from fedkin.models import Model, Module, seeded
from fedkin.types import Tensors

Data = Any  # (x, y), (x, y, raw), or an iterable of batches (x, y) such as a DataLoader
MEMORY = "fedkin"  # the record of the node's state in which an algorithm's memory is kept


def client_app(model: Model | Callable[[], nn.Module], data: Callable[[Context], Data]) -> ClientApp:
    """A `ClientApp` that takes part in a federation led by `fedkin.flower.Strategy`.

    model  what is trained: a function that builds the `torch.nn.Module` (the class itself, say), or a fedkin model
    data   loads the node's own data: arrays (x, y), or a `DataLoader`, which is read once into memory (its batches play
           no part: the server's `Local` says how samples are dealt into batches). With (x, y, raw) the message is made
           of `raw`, the features before preprocessing, instead of x.

    What to do (the algorithm, its hyper-parameters, epochs, batches) comes from the server with every round.
    """
    app = ClientApp()
    introduce(app, data)

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        x, y, _ = arrays(data(context))
        order, got = _received(msg)
        net = model if not callable(model) else _module(model, x)
        if net.size != got["model"].shape[-1]:
            raise BadInput(
                f"the server sent {got['model'].shape[-1]} parameters where this node's model has {net.size}"
            )
        memory = _remembered(context) or order.algorithm.remember(got["model"][0], 1)
        dealt = [deal(order.local, len(y), order.seed, order.round, order.client)]
        clients = from_rows(x.reshape(len(x), -1), y, np.array([len(y)]))
        with seeded(torch_seed(order.seed, NOISE, order.round, order.client)):
            space = Plain(net, order.local, clients, np.array([0]), dealt)
            w, memory = take_steps(order.algorithm, space, got, memory, len(dealt[0]))
        if memory:
            context.state[MEMORY] = pack({name: value[0] for name, value in memory.items()})
        sent = order.algorithm.reply(w, got, memory, torch.tensor([len(dealt[0])]))
        return _reply(msg, {name: value[0] for name, value in sent.items()}, len(y))

    return app


def introduce(app: ClientApp, data: Callable[[Context], Data]) -> None:
    """Let an app answer the server's first question: who it is, how many samples it has, its message if asked for.

    The name is the node's `partition-id` if it has one, else the id that Flower gave it (which a restart changes).
    The message is the first principal component of the data: see `fedkin.message`.
    """

    @app.query()
    def query(msg: Message, context: Context) -> Message:
        x, y, raw = arrays(data(context))
        name = context.node_config.get("partition-id", context.node_id)
        content = RecordDict({NODE: ConfigRecord({"name": str(name), "samples": len(y)})})
        if msg.content.config_records[WORK]["message"]:
            m = message((x if raw is None else raw).reshape(len(x), -1).double().numpy())
            content[VECTORS] = ArrayRecord({"message": Array(m)})
        return Message(content, reply_to=msg)


class Work:
    """A round's work for a training loop of your own: hands it the gradient point, and sends what comes out.

    net  the module to train; the global model w̄ is loaded into it
    """

    def __init__(self, msg: Message, net: nn.Module) -> None:
        self.message, self.net = msg, net
        self.order, got = _received(msg)
        self.got = {name: value[0] for name, value in got.items()}
        size = sum(p.numel() for p in net.parameters())
        if size != len(self.got["model"]):
            raise BadInput(f"the server sent {len(self.got['model'])} parameters where this node's model has {size}")
        device = next(net.parameters()).device
        self.got = {name: value.to(device) for name, value in self.got.items()}
        vector_to_parameters(self.got["model"].clone(), net.parameters())

    @contextmanager
    def gradient_point(self) -> Iterator[None]:
        """Inside, the module holds β·w + (1−β)·u; afterwards w again, with α·(w − w̄) added to its gradients.

        Plain SGD with step size γ then makes the step of the family; any other optimiser works on the same direction.
        """
        algorithm, parameters = self.order.algorithm, list(self.net.parameters())
        u = self.got.get("anchor", self.got["model"])
        with torch.no_grad():
            w = parameters_to_vector(parameters).clone()
            vector_to_parameters(algorithm.beta * w + (1 - algorithm.beta) * u, parameters)
        try:
            yield
        finally:
            vector_to_parameters(w, parameters)
        if algorithm.alpha:
            away = algorithm.alpha * (w - self.got["model"])
            for p, pull in zip(parameters, torch.split(away, [p.numel() for p in parameters]), strict=True):
                if p.grad is not None:
                    p.grad += pull.view_as(p)

    def reply(self, samples: int, metrics: dict[str, float] | None = None) -> Message:
        """What the node sends back: the module's parameters, and metrics of your own if you like."""
        with torch.no_grad():
            w = parameters_to_vector(self.net.parameters())
        return _reply(self.message, {"model": w}, samples, metrics)


def arrays(data: Data) -> tuple[Tensor, Tensor, Tensor | None]:
    """The x (float32), y (int64) and raw features (if given) of a node, from arrays or an iterable of batches."""
    if isinstance(data, tuple):
        x, y, *raw = data
    else:
        batches = [_pair(batch) for batch in data]
        if not batches:
            raise BadInput("the node's data loader gives no batch: a node needs at least one sample")
        x, y, raw = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]), []
    x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y, dtype=torch.int64)
    if len(x) != len(y) or len(y) == 0:
        raise BadInput(f"the node's data has {len(x)} samples and {len(y)} labels: it needs as many, and at least one")
    return x.cpu(), y.reshape(-1).cpu(), torch.as_tensor(raw[0]).cpu() if raw else None


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    """A batch as (x, y), also if it is a dictionary such as {"img": x, "label": y}."""
    x, y = batch.values() if isinstance(batch, dict) else batch
    return torch.as_tensor(x), torch.as_tensor(y)


def _module(make: Callable[[], nn.Module], x: Tensor) -> Module:
    with torch.no_grad():
        classes = make()(x[:1]).shape[-1]
    return Module(make, tuple(x.shape[1:]), classes)


def _received(msg: Message) -> tuple[Order, Tensors]:
    """The order, and the vectors stacked for a single client, (1, P)."""
    content = msg.content
    got = unpack(content.array_records[VECTORS])
    return Order.unpack(content.config_records[WORK]), {name: value[None] for name, value in got.items()}


def _remembered(context: Context) -> Tensors:
    kept = context.state.array_records.get(MEMORY)
    return {name: value[None] for name, value in unpack(kept).items()} if kept else {}


def _reply(msg: Message, sent: Tensors, samples: int, metrics: dict[str, float] | None = None) -> Message:
    numbers = MetricRecord({"num-examples": samples, **(metrics or {})})
    return Message(RecordDict({VECTORS: pack(sent), METRICS: numbers}), reply_to=msg)
