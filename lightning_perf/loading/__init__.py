"""Why a data loader is slow: a short run of the user's own data set in a worker process, timed by stage."""
