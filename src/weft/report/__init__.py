"""Presentation of results: tables and bars for the terminal, HTML pages, JSON."""
