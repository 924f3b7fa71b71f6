"""Campaigns: many games, agents and seeds, trained as fleets on one machine, on Ray or under SLURM.

`campaign.json` in the folder of a campaign has its settings and its fleets. Run folders and file locks are
all that engines share, so that any of them can be killed, resumed, or replaced by another.
"""
