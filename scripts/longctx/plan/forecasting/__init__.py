"""How long prefills will take: laws fitted to measured, sampled or published ones."""
