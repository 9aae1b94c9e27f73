"""Decision endpoints: typed questions about one input, and a probability for every option. One module per dialect."""
