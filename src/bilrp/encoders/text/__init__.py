"""What a text encoder is made of: words from tokens, a folder read without running anything of it, heads on top."""
