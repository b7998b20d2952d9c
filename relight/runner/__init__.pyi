from relight.runner.agent import LitAgentRunner as LitAgentRunner
from relight.runner.base import Runner as Runner
