"""Parts of text encoders: tokens to regions, model folders, pooling and heads."""
