"""Adapters for other libraries, one package for each. An adapter imports the library only when it is used."""
