"""What a model server needs between its requests and the GPU: batches, steps, clients that leave.

A handler awaits an item of `Batches` (`batches`). For each stream that it gets, a task takes the
items that wait, runs the function on the stream, and gives each waiting task its result. In the
block of `while_connected` (`clients`) a second task receives for the handler, and cancels the block
when the client leaves. For answers that come in pieces, one task runs the steps of all requests
(`steps`): it launches a step (`_one_step`), and hands each reader its result (`results`). All of it
runs in the thread of one loop.
"""

from aiostream.serving.batches import Batches
from aiostream.serving.clients import while_connected
from aiostream.serving.results import Active, End, Results
from aiostream.serving.steps import Steps

__all__ = ["Active", "Batches", "End", "Results", "Steps", "while_connected"]

# Where programs import them from.
for _each in (Active, Batches, End, Results, Steps, while_connected):
    _each.__module__ = __name__
