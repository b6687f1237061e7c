"""What a user types: one module for each command."""
