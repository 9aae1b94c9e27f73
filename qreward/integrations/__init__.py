"""Where this library meets others: one room for each of them, which imports its package only when it is used."""
