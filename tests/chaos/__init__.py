"""Runs on the whole stack whose processes die: everything real but the engine and the trainer, which are fast and
deterministic, behind the same interfaces."""
