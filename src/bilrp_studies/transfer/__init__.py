"""Transfer study (section 5.1): which layer's similarity transfers to another task, and why."""
