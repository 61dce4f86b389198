"""What exists to try the product: reference broker, faults, checker, demo."""
