"""``qreward serve MODULE:FUNCTION``: runs a reward server around a scoring function until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from functools import partial

from qreward.callables import load_object
from qreward.errors import ConfigError
from qreward.server import run
from qreward.server.config import PREFIX, ServerConfig, helps, token_of


def add_serve(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=serve)
    parser.epilog = f"Each setting may also be given in the environment: --max-queue is {PREFIX}MAX_QUEUE."
    function = "function that is called with lists of completions and of metadata, and returns the rewards"
    parser.add_argument("scorer", metavar="MODULE:FUNCTION", help=function)
    what = f"that holds the token which callers must send (default: the token in {PREFIX}TOKEN, or none)"
    parser.add_argument("--token-env", metavar="NAME", help=f"environment variable {what}")
    parser.add_argument("--token-file", metavar="PATH", help=f"file {what}")
    for name, words in helps().items():
        default = ServerConfig.model_fields[name].default
        if name != "token":
            shown = "none" if default is None else default
            parser.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=f"{words.rstrip('.')} (default: {shown})")


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal arrives. Return 0 if all requests that were in flight at the signal were finished, else 1."""
    if importlib.util.find_spec("uvicorn") is None:
        raise ConfigError("the reward server needs uvicorn: pip install 'qreward[server]'")
    texts = {name: getattr(args, name) for name in helps() if name != "token"}
    config = ServerConfig.from_env(**texts, token=token_of(args.token_env, args.token_file))
    scorer = load_object(args.scorer, "scorer", "my_rewards:score")
    guarded = "" if config.token is None else ", with a token"
    show = partial(print, file=sys.stderr, flush=True)
    try:
        done = run(scorer, config, lambda address: show(f"{args.scorer} is served at {address}{guarded}; Ctrl-C ends it."))
    except TypeError as error:
        raise ConfigError(f"{args.scorer}: {error}") from error
    return 0 if done else 1
