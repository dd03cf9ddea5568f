"""Section 5 on photographs: what neighbours have in common, and true correspondences on a stereo pair."""
