"""Which words go with which region? The pointing game on drawn scenes and their captions."""
