"""Fakes that only the tests and benchmarks of this project use: model servers with continuous batching, and every dialect of decisions."""
