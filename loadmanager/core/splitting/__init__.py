"""Splits bundles that have become too large, and merges small ones."""
