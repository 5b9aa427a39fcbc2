"""One Scenario at many points, each run several times: one directory, one table, one page."""
