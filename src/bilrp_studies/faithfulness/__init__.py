"""Are explanations of photographs true to the model? Five methods under one suite."""
