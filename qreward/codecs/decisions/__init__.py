"""Codecs of decisions: typed questions about one input, and a probability for every option.

A dialect is the form in which an API takes questions and returns answers. Each dialect has a module.
"""
