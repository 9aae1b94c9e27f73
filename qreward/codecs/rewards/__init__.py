"""Codecs of GPU reward servers and of the OpenAI APIs that take lists."""
