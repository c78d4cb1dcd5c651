"""Results shown: tables and bars for the terminal, JSON for programs."""
