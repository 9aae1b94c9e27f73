"""Decision endpoints: typed questions about one input, and a probability for every option. Each dialect has a module."""
