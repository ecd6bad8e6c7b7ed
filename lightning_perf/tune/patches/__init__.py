"""The patch of a tuning: the places of settings in the files of a project, edits of them, and the check of both."""
