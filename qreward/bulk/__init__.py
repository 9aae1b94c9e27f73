"""Bulk runs, which send the requests of files and write the results. A journal lets an interrupted run continue where it stopped."""
