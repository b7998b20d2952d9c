"""What training writes: plans, the ledger, preflights, regrades."""
