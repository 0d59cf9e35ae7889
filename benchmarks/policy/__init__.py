"""Search policies compared at equal budgets: recorded pools of real programs, replay and live searches, ablation."""
