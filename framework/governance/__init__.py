"""What an operator allows: permissions, policies, budgets, quality gates, recovery."""
