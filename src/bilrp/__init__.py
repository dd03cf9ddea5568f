"""Which parts of these two inputs make the model call them similar? Exact BiLRP for any PyTorch encoder."""
