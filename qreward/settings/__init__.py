"""Settings of clients and endpoints: validated values, and how they are read from files and the environment."""
