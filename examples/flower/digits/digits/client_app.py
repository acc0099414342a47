"""The client half: the digits of the node's partition."""

from digits import task
from fedkin.flower import client_app


def load_data(context):
    """The samples of this node's partition, and their raw pixels, from which the message is computed."""
    federation, client = task.of(context), int(context.node_config["partition-id"])
    rows = federation.train.rows(client)
    return federation.train.x[rows], federation.train.y[rows], federation.raw(client)


app = client_app(task.MODEL, load_data)
