"""Arena: explanation methods against known matches of photographs and texts, on encoders people use."""
