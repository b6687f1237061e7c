"""Looking at a trained agent: episodes, curves and videos."""
