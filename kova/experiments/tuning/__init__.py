"""Search for the settings of a run, and judge what was found on other seeds."""
