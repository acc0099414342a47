"""The client half: training by fedkin, and the size of what the client keeps to itself as its evaluation."""

from flwr.app import Context, Message, MetricRecord, RecordDict

import own_algorithms  # noqa: F401 - a node knows the algorithms that its app has imported
from fedkin.flower import memory_of
from flower_oracles import app_of

app = app_of()


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """‖memory‖², 0 for a client that has not been sampled yet."""
    square = sum(float(value.double().square().sum()) for value in memory_of(context).values())
    return Message(RecordDict({"m": MetricRecord({"square": square, "num-examples": 1})}), reply_to=msg)
