"""``fedlearn``: run and compare methods from a terminal, serve and join real runs, check claims, make the class edition."""

import argparse
import ast
import inspect
import json
import sys
from pathlib import Path


def options_of(function, pairs):
    """["share=0.5"] -> {"share": 0.5}, checked against the method's own signature."""
    from .errors import pick

    known, options = inspect.signature(function).parameters, {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"An option has the form NAME=VALUE, not {pair!r}.")
        pick(name, known, f"option of {function.__name__}")
        try:
            options[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            options[name] = text
    return options


def make_methods(args):
    """All methods that were named. Each gets the options that it knows; an option that none knows is an error."""
    from . import methods
    from .errors import pick

    functions = [pick(name, methods.METHODS, "method") for name in args.names]
    known = {name for function in functions for name in inspect.signature(function).parameters}
    made = []
    for function in functions:
        own = inspect.signature(function).parameters
        options = options_of(
            function,
            [
                o
                for o in args.option
                if o.partition("=")[0] in own or o.partition("=")[0] not in known
            ],
        )
        made.append(function(**options | ({} if args.lr is None else {"lr": args.lr})))
    return made


def make_task(args):
    from . import tasks

    return tasks.classification(
        args.dataset,
        args.clients,
        args.partition,
        args.seed,
        args.network,
        args.augment,
        args.train,
        args.test,
        args.device,
    )


def job(args, method=None, task=None):
    """The run that the arguments state, for Flower."""
    from .flower import Job
    from .method import Settings

    settings = Settings(
        args.participation, args.epochs, args.batch_size, args.evaluate_every, args.precision
    )
    return Job(
        method or make_methods(args)[0],
        task or make_task(args),
        args.rounds,
        settings,
        args.threads,
    )


def run_one(args, method, task, checkpoint):
    """One run, from its checkpoint if there is one."""
    from . import federation

    if checkpoint.exists():
        print(f"Going on from {checkpoint}.", file=sys.stderr)
    try:
        if args.engine == "flower-sim" and args.memory_limit is None:
            from . import flower

            share = {
                "cpus_per_client": args.cpus_per_client,
                "gpus_per_client": args.gpus_per_client,
            }
            return flower.simulate(
                job(args, method, task), **share, checkpoint=checkpoint, progress=args.progress
            )
        return federation.run(
            method,
            task,
            args.rounds,
            participation=args.participation,
            epochs=args.epochs,
            batch_size=args.batch_size,
            evaluate_every=args.evaluate_every,
            precision=args.precision,
            engine=args.engine,
            memory_limit=args.memory_limit and args.memory_limit * 1e6,
            threads=args.threads,
            checkpoint=checkpoint,
            progress=args.progress,
        )
    except KeyboardInterrupt:
        if checkpoint.exists():
            print(
                f"\nStopped. The finished rounds are in {checkpoint}; the same command goes on from there.",
                file=sys.stderr,
            )
        raise


def provenance():
    """Where a result comes from: the command, the day, and the commit of the checkout if there is one."""
    import subprocess
    from datetime import date

    git = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "not a checkout"
    return {
        "command": " ".join(["fedlearn", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "commit": commit,
    }


def table(histories):
    """A line a run: where it ended and what it cost."""
    lines = [
        f"{'method':<12}{'rounds':>7}{'accuracy':>10}{'loss':>9}{'MB up':>10}{'MB down':>10}{'seconds':>9}{'refused':>9}"
    ]
    for h in histories:
        refused = sum(len(row["refused"]) for row in h.rows)
        lines.append(
            f"{h.method:<12}{len(h):>7}{h.final['accuracy']:>10.4f}{h.final['loss']:>9.4f}{h.bytes_up.sum() / 1e6:>10.3f}"
            f"{h.bytes_down.sum() / 1e6:>10.3f}{h.seconds.sum():>9.1f}{refused:>9}"
        )
    return "\n".join(lines)


def command_run(args):
    from .history import write_text

    chosen, origin = (
        make_methods(args),
        provenance(),
    )  # of the code that runs, not of what the checkout becomes meanwhile
    task = make_task(args)
    if args.checkpoint and len(chosen) == 1:
        checkpoints = [Path(args.checkpoint)]
    else:  # one for each method
        base = Path(args.checkpoint or ("fedlearn.json" if args.out in (None, "-") else args.out))
        checkpoints = [base.with_suffix(f".{name}.checkpoint") for name in args.names]
    histories = [run_one(args, m, task, path) for m, path in zip(chosen, checkpoints, strict=True)]
    for history in histories:
        history.meta["provenance"] = origin
    if args.out == "-":
        print(as_json(histories))
    else:
        if args.out:
            write_text(args.out, as_json(histories) + "\n")
        print(table(histories))
    for path in checkpoints:  # only now: a comparison that stops in its second run keeps the first
        path.unlink(missing_ok=True)
        if args.engine == "flower-sim":
            from . import flower

            flower.forget(path)
    if getattr(args, "plot", None):
        from . import plot

        plot.compare(histories, args.against).figure.savefig(args.plot, dpi=150)


def restate(args):
    """The arguments that state a run, as ``serve`` and ``join`` write them down: the method, and every option that is not as
    it is by default."""
    argv = [args.names[0]]
    for action in common_parser()._actions:
        value = getattr(args, action.dest, action.default)
        if value != action.default:
            for v in value if isinstance(value, list) else [value]:
                option, text = action.option_strings[0], str(v)
                argv += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return argv


def command_serve(args):
    from . import deploy
    from .history import write_text

    history = deploy.serve(  # what is wrong with the run itself is said before anything is started
        job(args),
        restate(args),
        args.folder,
        host=args.host,
        port=args.port,
        names=args.name,
        keys=args.keys,
        insecure=args.insecure,
        wait=args.wait,
        timeout=args.timeout,
        start_with=args.start_with,
        provenance=provenance(),
    )
    if args.out:
        write_text(args.out, as_json([history]) + "\n")
    print(table([history]))


def command_join(args):
    from . import deploy

    task = job(args).task
    if not 0 <= args.client < task.clients:
        raise ValueError(
            f"--client is a client's number, 0 to {task.clients - 1}, not {args.client}."
        )
    deploy.join(
        restate(args),
        args.client,
        args.address,
        args.folder or f"fedlearn-client-{args.client}",
        root_certificate=args.root_certificate,
        key=args.key,
        insecure=args.insecure,
        wait=args.wait,
    )


def as_json(histories):
    data = [h.to_dict() for h in histories]
    return json.dumps(data[0] if len(data) == 1 else data, indent=1)


def command_methods(args):
    from . import methods
    from .method import Method

    base = Method().parts()
    for name, function in methods.METHODS.items():
        first = inspect.getdoc(inspect.getmodule(function)).split("\n\n")[0].replace("\n", " ")
        print(f"{name}{inspect.signature(function)}\n    {first}")
        for part, text in function().parts().items():
            if text != base[part]:
                print(f"    {part:<10}{text}")
        print()


def command_check(args):
    from collections import Counter

    from . import claims
    from .errors import pick

    if args.paper is not None:
        pick(
            args.paper,
            dict.fromkeys(claim["paper"] for claim in claims.load()),
            "paper in the ledger",
        )
    results = claims.check(args.paper, strict=False)
    width = max(len(r.claim["id"]) for r in results)
    for r in results:
        text = f"printed {r.claim['printed']!s:.60}, computed {claims.show(r.computed) or '-'}"
        print(
            f"{r.claim['id']:<{width}}  {r.verdict:<14}  {'LEDGER WRONG: ' + r.problem if r.problem else text}"
        )
    print(", ".join(f"{n} {verdict}" for verdict, n in Counter(r.verdict for r in results).items()))
    return 1 if any(r.problem for r in results) else 0


def command_reproduce(args):
    from .reproduce import reproduce

    device = args.device or ("cuda" if _has_gpu() else "cpu")
    choice = {
        "only": args.only,
        "seeds": args.seed,
        "rounds": args.rounds,
        "train": args.train,
        "test": args.test,
    }
    choice |= {"split": args.partition, "device": device}
    print(
        reproduce(args.paper, args.scale, args.out, provenance(), progress=args.progress, **choice)
    )


def _has_gpu():
    import torch

    return torch.cuda.is_available()


def command_classroom(args):
    from .classroom import make

    for path in make(args.folder, args.out):
        print(path)


def common_parser():
    """The options that state a run: every side of it has to be given the same."""
    common = argparse.ArgumentParser(add_help=False)
    task = common.add_argument_group("the task")
    task.add_argument(
        "--dataset",
        default="digits",
        help="digits (embedded, the default), mnist, fashion_mnist, cifar10, cifar100",
    )
    task.add_argument("--clients", type=int, default=10, help="number of clients (default 10)")
    task.add_argument(
        "--partition",
        default="iid",
        metavar="P",
        help="how the images are split: iid, dirichlet:ALPHA, shards:K, classes, main_class:SHARE, permuted, table:NAME (default iid)",
    )
    task.add_argument(
        "--network", help="a network of fedlearn.models; by default the data set's own"
    )
    task.add_argument(
        "--augment",
        action="append",
        default=[],
        metavar="A",
        help="crop or flip; may be given twice",
    )
    task.add_argument("--train", type=int, metavar="N", help="keep only N training images")
    task.add_argument("--test", type=int, metavar="N", help="keep only N test images")
    task.add_argument(
        "--seed", type=int, default=0, help="the seed of every random choice (default 0)"
    )
    task.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    training = common.add_argument_group("training")
    training.add_argument(
        "--rounds", type=int, default=20, help="communication rounds (default 20)"
    )
    training.add_argument(
        "--participation",
        type=float,
        default=1.0,
        metavar="C",
        help="share of the clients drawn each round (default 1)",
    )
    training.add_argument(
        "--epochs", type=int, default=1, metavar="E", help="local epochs a round (default 1)"
    )
    training.add_argument(
        "--batch-size", type=int, default=32, metavar="B", help="local batch size (default 32)"
    )
    training.add_argument(
        "--lr", type=float, help="local learning rate; by default the method's own"
    )
    training.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the method, as `fedlearn methods` lists them, such as share=0.5; may be given several times",
    )
    training.add_argument(
        "--precision",
        default="float32",
        help="arithmetic of training: float32 (default), tf32 or bf16",
    )
    training.add_argument(
        "--threads",
        type=int,
        help="CPU threads; by default one for small networks, all for large ones",
    )
    training.add_argument(
        "--evaluate-every",
        type=int,
        default=1,
        metavar="N",
        help="look at the test set every N rounds (default 1)",
    )
    return common


def parser():
    top = argparse.ArgumentParser(
        prog="fedlearn",
        description="Communication-efficient federated learning, simulated with real bytes.",
        epilog="Example: fedlearn compare fedavg rpn --partition dirichlet:0.5 --rounds 20 --out both.json",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    stated = common_parser()
    common = argparse.ArgumentParser(add_help=False, parents=[stated])
    engine = common.add_argument_group("the engine")
    engine.add_argument(
        "--engine",
        default="sequential",
        help="sequential: clients train one after another (default); stacked: all of a round in one step; auto: whichever is faster; "
        "flower-sim: in processes of their own, through Flower's simulation",
    )
    engine.add_argument(
        "--memory-limit",
        type=float,
        metavar="MB",
        help="memory for stacked training (default: half of what is free)",
    )
    engine.add_argument(
        "--cpus-per-client",
        type=float,
        default=1,
        metavar="N",
        help="flower-sim: CPUs that a training client takes (default 1)",
    )
    engine.add_argument(
        "--gpus-per-client",
        type=float,
        default=0.0,
        metavar="N",
        help="flower-sim: share of a GPU that it takes, such as 0.1 (default 0)",
    )
    output = common.add_argument_group("output")
    output.add_argument("--out", metavar="FILE", help="write the history as JSON; - prints it")
    output.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="where finished rounds are kept until the run ends (default: beside --out); if the file is there, the run goes on from it",
    )
    output.add_argument(
        "--no-progress", dest="progress", action="store_false", default=None, help="no progress bar"
    )

    one = commands.add_parser(
        "run",
        parents=[common],
        help="run one method",
        description="Run one method and print or write its history.",
    )
    one.add_argument(
        "names", nargs=1, metavar="METHOD", help="a name that `fedlearn methods` lists"
    )
    one.set_defaults(call=command_run)
    several = commands.add_parser(
        "compare",
        parents=[common],
        help="run several methods on the same task",
        description="Run several methods on the same task and print what each reached and what it cost.",
    )
    several.add_argument(
        "names", nargs="+", metavar="METHOD", help="names that `fedlearn methods` lists"
    )
    several.add_argument(
        "--plot", metavar="FILE", help="also draw the accuracies into an image file"
    )
    several.add_argument(
        "--against",
        default="bytes",
        choices=["rounds", "bytes", "seconds"],
        help="horizontal axis of --plot (default bytes)",
    )
    several.set_defaults(call=command_run)
    server = commands.add_parser(
        "serve",
        parents=[stated],
        help="be the server of a run with real clients (needs Flower)",
        description="Start the server of a run, print what to type on each client's machine, wait for the clients and run. Stopped "
        "between rounds, the same command goes on where it was.",
    )
    server.add_argument(
        "names", nargs=1, metavar="METHOD", help="a name that `fedlearn methods` lists"
    )
    server.add_argument(
        "--folder",
        default="fedlearn-server",
        help="where certificates, logs and finished rounds are kept (default fedlearn-server)",
    )
    server.add_argument(
        "--host",
        help="the address to listen on (default 0.0.0.0, all of this machine's; with --insecure 127.0.0.1)",
    )
    server.add_argument(
        "--port", type=int, default=8000, help="the port to listen on (default 8000)"
    )
    server.add_argument(
        "--name",
        action="append",
        default=[],
        help="a name or address of this machine that clients use; may be given several times",
    )
    server.add_argument(
        "--keys",
        metavar="FOLDER",
        help="the public keys of the clients that may join: K.key.pub for client K",
    )
    server.add_argument("--out", metavar="FILE", help="also write the history as JSON here")
    server.set_defaults(call=command_serve)
    client = commands.add_parser(
        "join",
        parents=[stated],
        help="be one client of such a run",
        description="Start a client. Method and options are those that the server was started with; it turns others away.",
    )
    client.add_argument("address", metavar="HOST:PORT", help="where the server listens")
    client.add_argument("names", nargs=1, metavar="METHOD", help="the server's method")
    client.add_argument(
        "--client",
        type=int,
        required=True,
        metavar="K",
        help="which client this is, 0 to the number of clients less 1",
    )
    client.add_argument(
        "--folder", help="where this client keeps what is its own (default fedlearn-client-K)"
    )
    client.add_argument("--root-certificate", metavar="FILE", help="the server's ca.pem")
    client.add_argument(
        "--key",
        metavar="FILE",
        help="this client's private key, best named K.key; a new one is made if the file is missing",
    )
    client.set_defaults(call=command_join)
    for end in (server, client):
        end.add_argument(
            "--insecure",
            action="store_true",
            help="without encryption and keys: for trials on one machine only",
        )
        end.add_argument(
            "--wait",
            type=float,
            default=600.0,
            metavar="S",
            help="seconds to wait for the other side to be there (default 600)",
        )
    server.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds to wait for the answers of a round (default 600)",
    )
    server.add_argument(
        "--start-with",
        type=int,
        metavar="N",
        help="begin the first round as soon as N clients are here (default: all of them)",
    )
    listing = commands.add_parser(
        "methods", help="list the methods, their options and the parts they replace"
    )
    listing.set_defaults(call=command_methods)
    ledger = commands.add_parser(
        "check", help="recompute every claim of the ledger data/claims.yaml"
    )
    ledger.add_argument("--paper", help="only this paper, such as rpn")
    ledger.set_defaults(call=command_check)
    recipe = commands.add_parser(
        "reproduce",
        help="run a paper's comparison, method by method, and keep the histories",
        description="Run a paper's comparison. Finished runs are kept in one file as they come; the same command goes on from there.",
    )
    recipe.add_argument("paper", help="fed_gkt, fed_kgf, fed_mmd_fusion, fed_repopt or rpn")
    recipe.add_argument(
        "--scale",
        default="quick",
        help="quick: handwritten digits (default); full: the paper's data and network",
    )
    recipe.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW",
        help="only this row of the comparison; may be given several times",
    )
    recipe.add_argument("--rounds", type=int, help="communication rounds (default: the recipe's)")
    recipe.add_argument("--train", type=int, metavar="N", help="keep only N training images")
    recipe.add_argument("--test", type=int, metavar="N", help="keep only N test images")
    recipe.add_argument(
        "--partition",
        action="append",
        metavar="P",
        help="only this one of the recipe; may be given several times",
    )
    recipe.add_argument(
        "--seed",
        type=int,
        action="append",
        help="a seed, may be given several times (default: the recipe's)",
    )
    recipe.add_argument(
        "--device",
        help="cpu, cuda, ... (default: a GPU if there is one); on a GPU training uses bfloat16",
    )
    recipe.add_argument(
        "--out",
        metavar="FILE",
        help="where the histories are kept (default: data/results/, where the book looks)",
    )
    recipe.add_argument(
        "--no-progress", dest="progress", action="store_false", default=None, help="no progress bar"
    )
    recipe.set_defaults(call=command_reproduce)
    classroom = commands.add_parser(
        "classroom", help="write the chapters without the solutions, for a class"
    )
    classroom.add_argument("folder", help="the folder with the chapters, book/ in a checkout")
    classroom.add_argument("out", help="the folder to write")
    classroom.set_defaults(call=command_classroom)
    return top


def main(argv=None):
    from .errors import DataError, WireError

    args = parser().parse_args(argv)
    try:
        return args.call(args)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        sys.stdout = None
        return 0
    except (ValueError, OSError, ImportError, DataError, WireError) as error:
        print(f"fedlearn: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
