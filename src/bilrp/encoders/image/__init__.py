"""Image encoders from folders: how a picture is prepared, and what of a model's output is its embedding."""
