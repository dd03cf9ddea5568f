"""Section 5.1: which layer's similarity carries over to another task, and why."""
