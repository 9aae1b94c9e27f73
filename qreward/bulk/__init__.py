"""Bulk runs, which send the requests of files and write the results."""
