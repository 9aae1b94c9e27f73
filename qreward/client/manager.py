"""The module of ``OpenAIChatProxyManager`` in QReward 0.1.7; see :mod:`qreward.compat`."""

from qreward.compat import old_names

__getattr__ = old_names(__name__)
