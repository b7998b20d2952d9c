"""Types that several packages share: rollouts, the run file, payloads, wire messages. They import pydantic alone."""
