"""Settings of clients and endpoints: validated models, read from files and environment variables."""
