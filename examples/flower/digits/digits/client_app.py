"""The client half: the node's part of the digits."""

from digits import task
from fedkin.flower import client_app


def load_data(context):
    """The samples of this node's partition, and their pixels before preprocessing, of which the message is made."""
    federation, client = task.of(context), int(context.node_config["partition-id"])
    rows = federation.train.rows(client)
    return federation.train.x[rows], federation.train.y[rows], federation.raw(client)


app = client_app(task.MODEL, load_data)
