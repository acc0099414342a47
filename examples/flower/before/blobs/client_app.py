"""The client half."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from blobs.task import Net, load_data
from blobs.task import test as test_fn
from blobs.task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train the global model on the node's data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(context.node_config["partition-id"])
    train_fn(model, loader, context.run_config["local-epochs"], context.run_config["lr"])
    arrays = ArrayRecord(model.state_dict())
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    """Test the global model on the node's data."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, loader = load_data(context.node_config["partition-id"])
    metrics = MetricRecord({"accuracy": test_fn(model, loader), "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=msg)
