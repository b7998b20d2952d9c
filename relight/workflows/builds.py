"""Which build a workflow goes on under, where orchestrators have build ids (docs/deployments.md).

A Temporal server takes such behaviours from versioned workers only, and a definition has one or none: so the process'
environment decides before the definitions are made.
"""

from __future__ import annotations

import os
from typing import Final

from temporalio.common import VersioningBehavior

VARIABLE: Final = "RELIGHT_BUILD_ID"
VERSIONED: Final = bool(os.environ.get(VARIABLE))
ENDS_WHERE_IT_BEGAN: Final = VersioningBehavior.PINNED if VERSIONED else VersioningBehavior.UNSPECIFIED
"""For what is short: no other build ever sees its history."""
FOLLOWS: Final = VersioningBehavior.AUTO_UPGRADE if VERSIONED else VersioningBehavior.UNSPECIFIED
"""For what is long: it goes on under the build that is current, which must be able to replay it."""
