"""How the engine carries out function calls: in the caller's task, or in the caller's thread and worker threads."""
