"""The queue of a route: priorities, deadlines, retries, fair queueing."""
