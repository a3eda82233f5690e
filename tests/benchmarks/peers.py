"""A round of federated averaging in other simulators, for ``speed.py``; each is optional
(requirements-peers.txt).

Each function of ``PEERS`` takes ``(shards, build, lr, batch_size, rounds)`` and returns the seconds
of each round (no start-up) and the final state dict. ``shards`` lists (x float32 [n, c, h, w], y
int64 [n]) by client; ``build()`` makes the network, with the same weights every time. All clients
train in every round: one epoch of SGD, weighted by samples.
"""

import asyncio
import logging
import os
import tempfile
import time
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import torch
import torch.nn.functional as F


def batches(x, y, batch_size):
    """Shuffled, cut from memory: a loader that works image by image would hide the simulator."""
    return [(x[i], y[i]) for i in torch.randperm(len(y)).split(batch_size)]


@lru_cache(maxsize=1)
def handed_over(path):
    """Shards and network, once for each Ray worker: what a client function captures travels with
    every message."""
    torch.set_num_threads(1)
    return torch.load(path, weights_only=False, mmap=True)


def flower(shards, build, lr, batch_size, rounds):
    """Flower's Message API on Ray: a worker for each core, no evaluation, data read once by each
    worker. It looks for messages and for replies every 0.1 s, which no option changes."""
    names = "FLWR_TELEMETRY_ENABLED RAY_USAGE_STATS_ENABLED RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
    environment = dict.fromkeys(names.split(), "0") | {"FLWR_DISABLE_UPDATE_CHECK": "1"}
    # restored afterwards, because Flower itself lengthens PYTHONPATH on every call
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, environment):
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp
        from flwr.serverapp.strategy import FedAvg
        from flwr.simulation import run_simulation

        logging.getLogger("flwr").setLevel(logging.ERROR)
        path, clients, seconds, final = os.path.join(folder, "shards.pt"), len(shards), [], {}
        torch.save((shards, build()), path)
        client, server = ClientApp(), ServerApp()

        @client.train()
        def train(message, context):
            shards, net = handed_over(path)
            x, y = shards[context.node_config["partition-id"]]
            net.load_state_dict(message.content["arrays"].to_torch_state_dict())
            optimiser = torch.optim.SGD(net.train().parameters(), lr)
            for images, labels in batches(x, y, batch_size):
                optimiser.zero_grad()
                F.cross_entropy(net(images), labels).backward()
                optimiser.step()
            answer = {"arrays": ArrayRecord(net.state_dict())}
            answer["metrics"] = MetricRecord({"num-examples": len(y)})
            return Message(content=RecordDict(answer), reply_to=message)

        class Timed(FedAvg):
            def configure_train(self, *args):
                self.began = time.perf_counter()
                return super().configure_train(*args)

            def aggregate_train(self, server_round, replies):
                errors = [reply.error.reason for reply in replies if reply.has_error()]
                if errors or len(replies) < clients:  # Flower itself would go on with the others
                    raise RuntimeError(f"{len(replies)} clients trained; errors {errors[:1]}")
                result = super().aggregate_train(server_round, replies)
                seconds.append(time.perf_counter() - self.began)
                return result

        @server.main()
        def main(grid, context):
            few = dict.fromkeys(("min_train_nodes", "min_available_nodes"), clients)
            strategy = Timed(fraction_evaluate=0.0, **few)
            result = strategy.start(grid, ArrayRecord(build().state_dict()), num_rounds=rounds)
            final.update(result.arrays.to_torch_state_dict())

        ray = {"num_cpus": min(os.cpu_count(), clients), "logging_level": "ERROR"}
        ray["log_to_driver"] = False
        backend = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray}
        run_simulation(server, client, clients, backend_config=backend)
    return seconds, final


def pfl_research(shards, build, lr, batch_size, rounds):
    """pfl's simulation in one process (several need a launcher), tensors in memory, no evaluation
    (the first round asks for metrics all the same and gets none)."""
    # otherwise it takes a GPU wherever there is one
    with mock.patch.dict(os.environ, PFL_PYTORCH_DEVICE="cpu"):
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.callback.base import TrainingProcessCallback
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.sampling import MinimizeReuseUserSampler
        from pfl.hyperparam.base import NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        def user(k):
            x, y = shards[k]
            order = torch.randperm(len(y))  # a data set of pfl keeps its order
            return PyTorchTensorDataset((x[order], y[order]), user_id=k)

        class Laps(TrainingProcessCallback):
            def after_central_iteration(self, *args, **kwargs):
                laps.append(time.perf_counter())
                return super().after_central_iteration(*args, **kwargs)

        # pfl asks for one, which newer Pythons do not make on demand
        asyncio.set_event_loop(asyncio.new_event_loop())
        net = build().train()
        net.loss, net.metrics = lambda x, y: F.cross_entropy(net(x), y), lambda x, y: {}
        data = FederatedDataset(user, MinimizeReuseUserSampler(range(len(shards))))
        backend = SimulatedBackend(data, data, [WeightByDatapoints()])
        model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
        cohorts = {"train_cohort_size": len(shards), "val_cohort_size": 0}
        plan = NNAlgorithmParams(rounds, evaluation_frequency=10**9, **cohorts)
        how = {"local_num_epochs": 1, "local_learning_rate": lr}
        local = NNTrainHyperParams(local_batch_size=batch_size, **how)
        laps = [time.perf_counter()]
        how = {"callbacks": [Laps()], "send_metrics_to_platform": False}
        FederatedAveraging().run(plan, backend, model, local, **how)
    # batch statistics: all clients share the network's own
    return [b - a for a, b in pairwise(laps)], net.state_dict()


def fedlab_serial(shards, build, lr, batch_size, rounds):
    """FedLab's standalone pipeline with its serial trainer, no evaluation. The number of samples is
    sent along, since its server weights all clients equally otherwise."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    from fedlab.contrib.algorithm import SGDSerialClientTrainer, SyncServerHandler
    from fedlab.core.standalone import StandalonePipeline
    from fedlab.utils import Aggregators, Logger, SerializationTool

    root.setLevel(level)  # importing FedLab turns on every library's messages
    root.handlers[:] = handlers

    class Trainer(SGDSerialClientTrainer):
        def train(self, parameters, loader):
            count = torch.tensor(float(sum(len(y) for _, y in loader)))
            return [*super().train(parameters, loader), count]

    class Handler(SyncServerHandler):
        def global_update(self, buffer):
            parameters, samples = zip(*buffer, strict=True)
            mean = Aggregators.fedavg_aggregate(list(parameters), torch.stack(samples))
            SerializationTool.deserialize_model(self._model, mean)

    # FedLab's view(-1) does not take channels_last
    net = build().to(memory_format=torch.contiguous_format)
    trainer = Trainer(net, len(shards), logger=Logger("fedlab"))
    trainer.setup_dataset(SimpleNamespace(get_dataloader=lambda k, size: batches(*shards[k], size)))
    trainer.setup_optim(1, batch_size, lr)
    handler = Handler(net, rounds, 1.0, logger=Logger("fedlab"))
    pipeline, laps = StandalonePipeline(handler, trainer), [time.perf_counter()]
    # what it calls at the end of a round
    pipeline.evaluate = lambda: laps.append(time.perf_counter())
    pipeline.main()
    averaged = {name: p.detach() for name, p in handler.model.named_parameters()}
    state = trainer.model.state_dict() | averaged  # batch statistics as in pfl
    return [b - a for a, b in pairwise(laps)], state


def shards_of(task):
    """What the functions of ``PEERS`` train on: every client's normalised images and labels."""
    return [task.epoch(k, torch.arange(task.sizes[k]), None) for k in range(task.clients)]


PEERS = {
    "Flower (Ray)": ("flwr", flower),
    "pfl-research": ("pfl", pfl_research),
    "FedLab": ("fedlab", fedlab_serial),
}
