"""Under which build a workflow continues, if orchestrators have build ids (docs/deployments.md).

A Temporal server accepts a versioning behavior from versioned workers only, and a workflow definition has one or none.
So an environment variable of the process decides before the definitions are made.
"""

from __future__ import annotations

import os
from typing import Final

from temporalio.common import VersioningBehavior

VARIABLE: Final = "RELIGHT_BUILD_ID"
VERSIONED: Final = bool(os.environ.get(VARIABLE))
PINNED: Final = VersioningBehavior.PINNED if VERSIONED else VersioningBehavior.UNSPECIFIED
"""For short workflows: no other build ever replays their histories."""
AUTO_UPGRADE: Final = VersioningBehavior.AUTO_UPGRADE if VERSIONED else VersioningBehavior.UNSPECIFIED
"""For long workflows: they continue under the current build, which must be able to replay their histories."""
