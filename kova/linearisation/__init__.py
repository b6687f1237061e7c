"""The observation function h(u; θ) and its derivative ∂h/∂θ."""
