"""What happens around the steps: `Monitor` (figures), `Evaluate` (tiers), `Save` (checkpoints). Their order is their meaning:
a step's figures are written before its evaluation, and both before the checkpoint that contains it."""
