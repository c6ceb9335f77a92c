"""The command line on the toy model with its fake judge, in a process of its own: the arguments are the command's."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "lane")]

import chatting
import lane_fakes as fakes

from fasttrack import cli, services

services.default = lambda: fakes.services(chatting.Judge())
services.contract = lambda name: fakes.Contract()
sys.exit(cli.run(sys.argv[1:]))
