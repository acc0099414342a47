"""The client half."""

from fedkin.flower import client_app
from scale import task

app = client_app(task.MODEL, lambda context: task.drawn(int(context.node_config["partition-id"])))
