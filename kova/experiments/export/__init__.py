"""A trained agent for others: a file of plain Stable-Baselines3, or a repository on the Hugging Face hub."""
